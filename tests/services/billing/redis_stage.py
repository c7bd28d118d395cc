"""The stage of a test with its queues in Redis: what was written for PostgreSQL runs on it unchanged."""

from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Handler
from payonce.engine.outbox import declare_relays, relay_step
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore
from payonce.testing import OpenStage, RedisClock, Stage


class RelayingWorker(Worker):
    """Brings into Redis what was sent with a transaction before it looks there, as the pump of a process does."""

    store: RedisStore

    async def step(self, among: Container[str] | None = None) -> bool:
        while await relay_step(self.store.database, RedisRelay(self.store)):
            pass
        return await super().step(among)


@dataclass(frozen=True)
class RedisStage(Stage):
    store: RedisStore

    async def worker(self, *handlers: Handler, resources: Sequence[object] = ()) -> Worker:
        await self.feed.declare(list({handler.policy.queue: handler.policy for handler in handlers}.values()))
        worker = RelayingWorker(handlers, self.database, self.feed, self._redis_queue, resources)
        worker.store = self.store
        return worker

    async def drain(self, worker: Worker) -> int:
        steps = 0
        while await worker.step():
            steps += 1
        return steps

    def _redis_queue(self, policy: Policy) -> RedisQueue:
        return RedisQueue(self.store, self.notifier, policy, "worker-1")


def on_redis(stage: OpenStage, server: RedisServer) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        async with stage() as s, RedisStore.open(server.url, s.database) as store:
            await declare_relays(s.database, [RedisRelay(store)])
            yield RedisStage(
                s.scratch,
                s.database,
                s.notifier,
                RedisFeed(store, s.notifier),  # type: ignore[arg-type]
                RedisAdmin(store, s.notifier),  # type: ignore[arg-type]
                RedisClock(s.clock, server.url),
                s.owner,
                store,
            )

    return opened
