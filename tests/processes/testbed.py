"""Where a test stands: it puts messages, starts workers, and reads the books that they write."""

import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.migrate import SERVICE_ROLE
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed, Policy
from payonce.queues.postgres import PostgresFeed
from payonce.testing import ScratchDatabase, eventually
from payonce.testing.processes import Child, Processes
from tests.processes.journal import Journal
from tests.processes.worker import APPLICATION_NAME, Duty

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "additions"
LEASE_S = 1.0
POLICY = Policy(QUEUE, max_attempts=20, backoff=Fixed(0.05), lease_s=LEASE_S, run_limit_s=60.0)
LONG_LEASE = replace(POLICY, lease_s=300.0)
"""Where no lease is to end: with a short one a healthy worker that a busy machine wakes late is taken for dead."""
START_LIMIT_S = 60.0
DRAIN_LIMIT_S = 60.0

_CONNECTIONS = """pg_stat_activity where datname = current_database() and application_name = $1
    and query ilike $2 and pid <> pg_backend_pid()"""


@dataclass
class ProcessTestbed:
    scratch: ScratchDatabase
    feed: PostgresFeed
    processes: Processes
    journal: Journal
    database: Database

    async def worker(self, policy: Policy = POLICY, url: str | None = None, **duty: Any) -> Child:
        """A worker process, serving."""
        child = self.begin_worker(policy, url, **duty)
        await self.serving(child)
        return child

    def begin_worker(self, policy: Policy = POLICY, url: str | None = None, **duty: Any) -> Child:
        """A worker process that is about to serve."""
        told = Duty(
            url=url or self.scratch.service_url,
            folder=str(self.journal.folder),
            policy={name: value for name, value in policy.described().items() if name != "on_give_up"},
            **duty,
        )
        command = (sys.executable, "-m", "tests.processes.worker", msgspec.json.encode(told).decode())
        environment = {"DATABASE_URL": told.url, "PAYONCE_DATA_DIR": told.folder}
        return self.processes.start(*command, name="worker", cwd=ROOT, environment=environment)

    async def serving(self, *children: Child) -> None:
        for child in children:
            await self.noted("ready", 0, START_LIMIT_S, pid=child.pid)

    async def put(
        self, rows: Iterable[int], policy: Policy = POLICY, delay_s: float = 0.0, **payload: Any
    ) -> list[UUID]:
        """One message per row, each row there before its message."""
        numbers = list(rows)
        await self.feed.declare([policy])
        await self.ask("insert into books.rows (id) select unnest($1::bigint[])", numbers)
        return await self.feed.put(
            [Message(queue=policy.queue, payload={"row": row, **payload}, delay_s=delay_s) for row in numbers]
        )

    async def noted(
        self, event: str, row: int, within_s: float = 30.0, *, pid: int | None = None, times: int = 1
    ) -> None:
        """Waits until that happened so many times, in any worker or in that of a `pid`."""
        await eventually(
            lambda: len(self.journal.notes(event, row, pid)) >= times,
            within_s,
            f"{event} of row {row} is {times} times in the journal",
        )

    async def ask(self, statement: str, *arguments: object) -> Any:
        return await self.database.work.fetchval(statement, *arguments)

    async def applied(self) -> int:
        count: int = await self.ask("select count(*) from books.lines")
        return count

    async def reached(self, count: int, within_s: float = DRAIN_LIMIT_S) -> None:
        async def enough() -> bool:
            return await self.applied() >= count

        await eventually(enough, within_s, f"{count} messages are applied")

    async def drained(self, within_s: float = DRAIN_LIMIT_S) -> None:
        """Waits until nothing but parked messages is left; the store may be away meanwhile."""

        async def nothing_left() -> bool:
            return await self.answers() and not await self.ask(
                "select exists (select from payonce.messages where state <> 'parked')"
            )

        await eventually(nothing_left, within_s, "every message is applied or parked")

    async def answers(self) -> bool:
        try:
            return bool(await self.ask("select true"))
        except Exception as error:
            if not is_transient(error):
                raise
            return False

    async def connections(self, doing: str = "%", application_name: str = APPLICATION_NAME) -> int:
        """How many the workers have, or only those whose last statement is like `doing`."""
        count: int = await self.ask(f"select count(*) from {_CONNECTIONS}", application_name, doing)
        return count

    async def drop_connections(self, doing: str = "%", application_name: str = APPLICATION_NAME) -> int:
        """Ends them, as a server does that is taken down. Answers how many."""
        dropped: int = await self.ask(
            f"select count(*) filter (where pg_terminate_backend(pid)) from {_CONNECTIONS}", application_name, doing
        )
        return dropped

    async def each_applied_once(self, but: Iterable[int] = ()) -> None:
        """Nothing lost, nothing doubled, nothing parked; `but` these rows were not touched."""
        untouched = list(but)
        wrong = await self.ask(
            """
            select array_agg((r.id, r.value, lines.count)::text order by r.id)
            from books.rows r, lateral (select count(*) from books.lines where row_id = r.id) lines,
                lateral (select case when r.id = any($1::bigint[]) then 0 else 1 end as times) wanted
            where r.value <> wanted.times or lines.count <> wanted.times
            """,
            untouched,
        )
        assert wrong is None, f"rows with (id, value, lines) other than once: {wrong}"
        parked = await self.ask("select array_agg((payload->>'row')::bigint) from payonce.messages")
        assert sorted(parked or []) == sorted(untouched)

    async def endings(self, row: int | None = None) -> list[str]:
        """The statuses in the job log, of the message of one row or of all, in order."""
        found: list[str] = await self.ask(
            """
            select coalesce(array_agg(status order by id), '{}') from payonce.job_logs
            where $1::bigint is null or message_id in (
                select message_id from books.lines where row_id = $1
                union select id from payonce.messages where (payload->>'row')::bigint = $1)
            """,
            row,
        )
        return found

    async def taken_over(self, pid: int | None = None) -> int:
        """Runs whose lease ended before they did, of all workers or of one."""
        count: int = await self.ask(
            """
            select count(*) from payonce.job_logs
            where last_error like '%its lease ended%' and ($1::text is null or worker like $1)
            """,
            None if pid is None else f"worker-{pid}-%",
        )
        return count


@asynccontextmanager
async def open_testbed(scratch: ScratchDatabase, folder: Path) -> AsyncIterator[ProcessTestbed]:
    await make_books(scratch)
    with Processes(folder) as processes:
        async with Database.open(scratch.service_url) as database, Notifier.open(database, listen=False) as notifier:
            yield ProcessTestbed(scratch, PostgresFeed(database, notifier), processes, Journal(folder), database)


async def make_books(scratch: ScratchDatabase) -> None:
    connection = await asyncpg.connect(scratch.owner_url)
    try:
        # No unique constraint: a doubling must be seen, not prevented.
        await connection.execute(
            f"""
            create schema books;
            create table books.rows (id bigint primary key, value integer not null default 0);
            create table books.lines (
                number bigint generated always as identity, row_id bigint not null, message_id uuid not null,
                pid integer not null
            );
            create index on books.lines (row_id);
            grant usage on schema books to {SERVICE_ROLE};
            grant select, insert, update on all tables in schema books to {SERVICE_ROLE};
            """
        )
    finally:
        await connection.close()
