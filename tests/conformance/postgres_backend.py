"""The PostgreSQL queue as a conformance backend."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from payonce.engine.database.connections import Connection
from payonce.engine.messages.idempotency import expire_keys, forget_keys
from payonce.engine.messages.policy import Policy
from payonce.queues.postgres import PostgresAdmin, PostgresFeed, PostgresQueue
from payonce.testing import Clock, ScratchDatabase, Stage, eventually, open_stage
from tests.conformance.backend import Logged, Moment
from tests.locks import waits_or_ended

VICTIM_LIMIT_S = 45.0


@dataclass(frozen=True)
class PostgresBackend:
    stage: Stage

    @property
    def feed(self) -> PostgresFeed:
        return self.stage.feed

    @property
    def admin(self) -> PostgresAdmin:
        return self.stage.admin

    @property
    def time(self) -> Clock:
        return self.stage.clock

    async def queue(self, policy: Policy, worker: str = "worker-1") -> PostgresQueue:
        return await self.stage.queue(policy, worker)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        return self.stage.database.transaction()

    async def log_of(self, message_id: UUID) -> list[Logged]:
        rows = await self.stage.owner.fetch(
            """
            select status, attempts, last_error, next_retry_at from payonce.job_logs
            where message_id = $1 order by id
            """,
            message_id,
        )
        return [Logged(*row) for row in rows]

    async def refuse_to_log(self, message_id: UUID) -> None:
        await refuse_to_log(self.stage, message_id)

    async def forget_expired_keys(self) -> None:
        await expire_keys(self.stage.database)
        await forget_keys(self.stage.database)

    async def kill_a_worker(self, policy: Policy, at: Moment) -> None:
        await kill_a_worker(self.stage, policy, at)

    @asynccontextmanager
    async def locked(self, message_ids: Sequence[UUID]) -> AsyncIterator[None]:
        async with self.stage.owner.transaction():
            await self.stage.owner.fetch(
                "select from payonce.messages where id = any($1) for update", list(message_ids)
            )
            yield

    async def waits(self, task: asyncio.Task[Any]) -> bool:
        return await waits_or_ended(self.stage, task)


@asynccontextmanager
async def open_postgres_backend(scratch: ScratchDatabase) -> AsyncIterator[PostgresBackend]:
    async with open_stage(scratch) as stage:
        await stage.clock.freeze()
        yield PostgresBackend(stage)


async def kill_a_worker(stage: Stage, policy: Policy, at: Moment, *elsewhere: str) -> None:
    """`elsewhere` is the queue's address, if it is another database."""
    victim = await asyncio.create_subprocess_exec(
        *(sys.executable, str(Path(__file__).with_name("victim.py")), stage.scratch.service_url),
        *(msgspec.json.encode(policy.described()).decode(), at, *elsewhere),
        stdout=asyncio.subprocess.PIPE,
    )
    assert victim.stdout is not None
    try:
        async with asyncio.timeout(VICTIM_LIMIT_S):
            assert await victim.stdout.readline() == b"there\n", "the victim did not get to where it was to die"
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        await victim.wait()

    async def is_gone() -> bool:
        left = await stage.owner.fetchval("select count(*) from pg_stat_activity where application_name = 'victim'")
        return bool(left == 0)

    # The server notices a moment later; until then the transactions of the dead process are open.
    await eventually(is_gone)


async def refuse_to_log(stage: Stage, message_id: UUID) -> None:
    await stage.owner.execute(
        f"""
        create function payonce.refuse() returns trigger language plpgsql as $$
        begin
            if new.message_id = '{message_id}' then raise exception 'this row is refused'; end if;
            return new;
        end $$;
        create trigger refuse before insert on payonce.job_logs for each row execute function payonce.refuse();
        """
    )
