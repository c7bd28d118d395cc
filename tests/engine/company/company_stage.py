"""Runs that share a transaction, begun in the same moment, on rows that a test can look at."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from payonce.engine import metrics
from payonce.engine.company.apart import Apart
from payonce.engine.company.sharing import Sharing
from payonce.engine.database import Connection, fenced_transaction
from payonce.testing import OpenStage, Stage

Body = Callable[[Connection], Awaitable[Any]]

LOCKED = "select id, n from rows where id = $1 for update"
WRITE = "update rows set n = $2 where id = $1 returning id"
WRITE_SOME = "update rows set n = $2 where id = $1"
"""Does not say which."""


async def let_in(_: Connection) -> bool:
    return True


async def turned_away(connection: Connection) -> bool:
    return bool(await connection.fetchval("select id from rows where id = $1 and n < 0", 0))


@dataclass
class Table:
    """A few rows, and who shares them."""

    s: Stage
    sharing: Sharing
    alone: list[int] = field(default_factory=list)
    """Who did its part again, by itself."""
    room_alone: int = 100
    """How many do so at once. Those that lock rows crosswise take the server a second to tell from each other."""

    def __post_init__(self) -> None:
        self._alone = asyncio.Semaphore(self.room_alone)

    async def together(self, *bodies: Body, alone: bool = True) -> list[Any]:
        """What each came to, all begun in the same moment; in company first and, like a worker's run, alone then."""
        doing = [self.one(number, body, alone) for number, body in enumerate(bodies)]
        return await asyncio.gather(*doing, return_exceptions=True)

    async def one(self, number: int, body: Body, alone: bool = True) -> Any:
        try:
            async with self.sharing.join(let_in) as connection:
                assert connection is not None
                came_to = await body(connection)
        except Apart:
            if not alone:
                raise
        else:
            return came_to
        self.alone.append(number)
        async with self._alone, fenced_transaction(self.s.database, let_in) as connection:
            assert connection is not None
            return await body(connection)

    async def rows(self) -> list[int]:
        return [row["n"] for row in await self.s.owner.fetch("select n from rows order by id")]


@asynccontextmanager
async def open_table(stage: OpenStage, rows: int = 2, **how: Any) -> AsyncIterator[Table]:
    async with stage() as s:
        await s.owner.execute(
            f"""
            create table rows (id integer primary key, n integer not null default 0, name text);
            insert into rows select number, 0 from generate_series(1, {rows}) number;
            create table notes (id integer generated always as identity primary key, note text unique not null);
            grant all on rows, notes to payonce_service;
            """
        )
        yield Table(s, Sharing(s.database), **how)


def noting(text: str) -> Body:
    async def write(connection: Connection) -> str:
        await connection.execute("insert into notes (note) values ($1)", text)
        return text

    return write


def adding(row: int, to: int = 1) -> Body:
    """What is lost where two read the same."""

    async def add(connection: Connection) -> int:
        [locked] = await connection.fetch(LOCKED, row)
        n: int = locked["n"]
        await connection.execute("select 1")
        await connection.execute(WRITE, row, n + to)
        return n

    return add


async def notes(s: Stage) -> list[str]:
    return [row["note"] for row in await s.owner.fetch("select note from notes order by note")]


@dataclass
class Counted:
    committed: float = 0.0
    parted: float = 0.0


@contextmanager
def counted() -> Iterator[Counted]:
    """How many shared transactions ended either way meanwhile."""
    found = Counted()
    before = [_count(outcome) for outcome in ("committed", "parted")]
    yield found
    found.committed, found.parted = (
        _count(outcome) - earlier for outcome, earlier in zip(("committed", "parted"), before, strict=True)
    )


async def turns_of_the_loop() -> None:
    """What needs no answer of the server has happened then."""
    for _ in range(100):
        await asyncio.sleep(0)


def parted() -> float:
    """So far."""
    return _count("parted")


def _count(outcome: str) -> float:
    return float(metrics.SHARED_TRANSACTIONS.labels(outcome)._value.get())


async def session_of(connection: Connection) -> int:
    pid: int = await connection.fetchval("select pg_backend_pid()")
    return pid


async def end_session(s: Stage, pid: int) -> None:
    superuser = await asyncpg.connect(s.scratch.superuser_url, database=s.scratch.name)
    try:
        await superuser.fetchval("select pg_terminate_backend($1, 10000)", pid)
    finally:
        await superuser.close()
