"""One process of the engine with its queues in Redis, as far as the tests of the worker loop need it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import msgspec

from payonce.embedded.redis import RedisServer
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import declare_relays
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
from payonce.testing import RedisClock, ScratchDatabase, open_stage


@dataclass(frozen=True)
class RedisStage:
    database: Database
    notifier: Notifier
    feed: RedisFeed
    admin: RedisAdmin
    clock: RedisClock
    owner: asyncpg.Connection
    store: RedisStore

    async def queue(self, policy: Policy, worker: str = "worker-1") -> RedisQueue:
        await self.feed.declare([policy])
        return RedisQueue(self.store, self.notifier, policy, worker)

    async def drained(self) -> bool:
        return await self.clock.idle()

    async def statuses(self, message_id: UUID | None = None) -> list[str]:
        """Ended runs, oldest first."""
        lines = [msgspec.json.decode(line) for line in await self.store.command("LRANGE", "q:log:jobs", 0, -1)]
        return [
            line["status"] for line in reversed(lines) if message_id is None or line["message_id"] == str(message_id)
        ]


@asynccontextmanager
async def open_redis_stage(scratch: ScratchDatabase, server: RedisServer) -> AsyncIterator[RedisStage]:
    async with open_stage(scratch) as stage, RedisStore.open(server.url, stage.database) as store:
        clock = RedisClock(stage.clock, server.url)
        await declare_relays(stage.database, [RedisRelay(store)])
        feed, admin = RedisFeed(store, stage.notifier), RedisAdmin(store, stage.notifier)
        yield RedisStage(stage.database, stage.notifier, feed, admin, clock, stage.owner, store)
