"""Seeing that somebody waits, and making everybody wait at one place: races are forced, not hoped for."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Literal, TypeVar

from payonce.testing import Stage, eventually

Result = TypeVar("Result")

GATE = 7_105_210
"""The advisory lock that a gate is made of: whoever comes shares it, and the gate's keeper does not."""


def apart(coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    """As another process would do it: outside the transaction in which the test stands."""
    return asyncio.create_task(coroutine, context=Context())


async def waiting_for_locks(s: Stage) -> int:
    """How many of the stage's sessions wait for a lock that another one has. Other databases of the server have waits
    of their own; pg_stat_activity would know whose they are, and shows no news inside a transaction."""
    waiting: int = await s.owner.fetchval(
        """
        select count(distinct pid) from pg_locks where not granted and pid in (
            select l.pid from pg_locks l join pg_database d on d.oid = l.database where d.datname = current_database())
        """
    )
    return waiting


async def waits_for_a_lock(s: Stage) -> bool:
    return await waiting_for_locks(s) > 0


async def waits_or_ended(s: Stage, task: asyncio.Task[Any]) -> bool:
    """For what waits with its safeguard and goes on without: answers soon in either case. Whether it waits."""

    async def either() -> bool:
        return task.done() or await waits_for_a_lock(s)

    await eventually(either)
    return not task.done()


async def all_wait(s: Stage, count: int) -> None:
    async def so_many() -> bool:
        return await waiting_for_locks(s) >= count

    await eventually(so_many, what=f"{count} that wait")


@asynccontextmanager
async def stopped_at(s: Stage, event: Literal["insert", "update"], table: str) -> AsyncIterator[None]:
    """While entered, whoever writes a row of the table stands still inside its statement, and holds what it locked."""
    await s.owner.execute(
        f"""
        create function payonce.stand_still() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock_shared({GATE});
            return new;
        end $$;
        create trigger stand_still before {event} on {table} for each row execute function payonce.stand_still();
        select pg_advisory_lock({GATE});
        """
    )
    try:
        yield
    finally:
        await s.owner.execute(f"select pg_advisory_unlock({GATE})")
