"""The Redis queue as a conformance backend: messages put straight into Redis."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

import msgspec

from payonce.embedded.redis import RedisServer
from payonce.engine.database import Connection
from payonce.engine.policy import Policy
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisStore
from payonce.testing import RedisClock, ScratchDatabase, Stage, open_stage
from tests.conformance.backend import PLAIN, QUEUE, Logged, Moment
from tests.conformance.postgres_backend import kill_a_worker

Flavour = Literal["direct"]
FLAVOURS: Final[tuple[Flavour, ...]] = ("direct",)


@dataclass(frozen=True)
class RedisBackend:
    stage: Stage
    server: RedisServer
    store: RedisStore
    feed: RedisFeed
    admin: RedisAdmin
    time: RedisClock

    async def queue(self, policy: Policy, worker: str = "worker-1") -> RedisQueue:
        await self.feed.declare([policy])
        return RedisQueue(self.store, self.stage.bell, policy, worker)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        return self.stage.database.transaction()

    async def log_of(self, message_id: UUID) -> list[Logged]:
        """What Redis tells of every run, and PostgreSQL of those that did not succeed: both must tell the same."""
        lines = [msgspec.json.decode(line) for line in await self.store.command("LRANGE", "q:log:jobs", 0, -1)]
        lines = [line for line in reversed(lines) if line["message_id"] == str(message_id)]
        rows = await self.stage.owner.fetch(
            """
            select status, attempts, last_error, next_retry_at from payonce.job_logs
            where message_id = $1 order by id
            """,
            message_id,
        )
        failures = iter([Logged(*row) for row in rows])
        told = [
            Logged("success", line["attempts"], None, None) if line["status"] == "success" else next(failures)
            for line in lines
        ]
        assert [(run.status, run.attempts, run.last_error) for run in told] == [
            (line["status"], line["attempts"], line["info"]) for line in lines
        ]
        return told

    async def refuse_to_log(self, message_id: UUID) -> None:
        """Somebody wrote over the record of its claim."""
        await self.store.command("HSET", f"q:{QUEUE}:claims", str(message_id), "?")

    async def forget_expired_keys(self) -> None:
        """Keys get their end when their message does, and go by themselves."""

    async def kill_a_worker(self, policy: Policy, at: Moment) -> None:
        await kill_a_worker(self.stage, policy, at, self.server.url)

    @asynccontextmanager
    async def locked(self, message_ids: Sequence[UUID]) -> AsyncIterator[None]:
        """Somebody else works on these messages, as far as they are to be had."""
        other = RedisQueue(self.store, self.stage.bell, PLAIN, "somebody-else")
        claims = (await other.exchange([], 1_000)).claims
        await other.give_back([claim for claim in claims if claim.message.id in message_ids])
        yield
        await other.give_back([])


@asynccontextmanager
async def open_redis_backend(
    scratch: ScratchDatabase, server: RedisServer, flavour: Flavour = "direct"
) -> AsyncIterator[RedisBackend]:
    async with open_stage(scratch) as stage, RedisStore.open(server.url, stage.database) as store:
        clock = RedisClock(stage.clock, server.url)
        await clock.freeze()
        yield RedisBackend(stage, server, store, RedisFeed(store, stage.bell), RedisAdmin(store, stage.bell), clock)
