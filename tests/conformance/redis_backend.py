"""The Redis queue as a conformance backend: messages put straight into Redis."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from payonce.embedded.redis import RedisServer
from payonce.engine.database.connections import Connection
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.idempotency import expire_keys, forget_keys
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import declare_relays, relay_step
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
from payonce.testing import RedisClock, ScratchDatabase, Stage, open_stage
from tests.conformance.backend import PLAIN, QUEUE, Logged, Moment
from tests.conformance.postgres_backend import kill_a_worker, refuse_to_log

Flavour = Literal["direct", "transactional"]
FLAVOURS: Final[tuple[Flavour, ...]] = ("direct", "transactional")


class TransactionalFeed(RedisFeed):
    """Every put is a transaction of its own, and its messages are brought into Redis at once."""

    def __init__(self, store: RedisStore, notifier: Notifier) -> None:
        super().__init__(store, notifier)
        self._relay = RedisRelay(store)

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        if within is not None:
            return await super().put(messages, within)
        async with self._store.database.transaction() as connection:
            ids = await super().put(messages, connection)
        await self.relay()
        return ids

    async def relay(self) -> None:
        while await relay_step(self._store.database, self._relay):
            pass


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
        return RedisQueue(self.store, self.stage.notifier, policy, worker)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.stage.database.transaction() as connection:
            yield connection
        await self.relay()

    async def relay(self) -> None:
        while await relay_step(self.stage.database, RedisRelay(self.store)):
            pass

    async def log_of(self, message_id: UUID) -> list[Logged]:
        """Redis logs every run, PostgreSQL those that did not succeed: both must agree."""
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
        """PostgreSQL refuses the row of the log, or the record of its claim was overwritten."""
        if isinstance(self.feed, TransactionalFeed):
            await refuse_to_log(self.stage, message_id)
            return
        await self.store.command("HSET", f"q:{QUEUE}:claims", str(message_id), "?")

    async def forget_expired_keys(self) -> None:
        """The expiry of a key in Redis is known when that of its message is."""
        await expire_keys(self.stage.database)
        await forget_keys(self.stage.database)

    async def kill_a_worker(self, policy: Policy, at: Moment) -> None:
        await kill_a_worker(self.stage, policy, at, self.server.url)

    @asynccontextmanager
    async def locked(self, message_ids: Sequence[UUID]) -> AsyncIterator[None]:
        """Another worker holds these messages, as far as they are available."""
        other = RedisQueue(self.store, self.stage.notifier, PLAIN, "somebody-else")
        claims = (await other.exchange([], 1_000)).claims
        await other.give_back([claim for claim in claims if claim.message.id in message_ids])
        yield
        await other.give_back([])

    async def waits(self, task: asyncio.Task[Any]) -> bool:
        """No statement there waits for another."""
        await asyncio.wait([task])
        return False


@asynccontextmanager
async def open_redis_backend(
    scratch: ScratchDatabase, server: RedisServer, flavour: Flavour = "direct"
) -> AsyncIterator[RedisBackend]:
    async with open_stage(scratch) as stage, RedisStore.open(server.url, stage.database) as store:
        clock = RedisClock(stage.clock, server.url)
        await clock.freeze()
        await declare_relays(stage.database, [RedisRelay(store)])
        feed = RedisFeed(store, stage.notifier) if flavour == "direct" else TransactionalFeed(store, stage.notifier)
        yield RedisBackend(stage, server, store, feed, RedisAdmin(store, stage.notifier), clock)
