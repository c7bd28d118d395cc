"""Billing with its queues in Redis, worked through step by step, and an operator's terminal beside it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.outbox import relay_step
from payonce.queues.redis import RedisQueue, RedisRelay, RedisStore
from payonce.services.billing import ROLES
from payonce.services.billing.subscriptions.model import Subscription
from payonce.testing import Clock, OpenStage
from payonce.testing.faulty import Draws
from tests.redis.terminal import Terminal
from tests.services.billing.billing_stage import House, open_house
from tests.services.billing.redis_stage import RedisStage, on_redis

STEPS_MAX: Final = 1_000
A_MINUTE_S: Final = 60.0


@dataclass
class RedisHouse:
    house: House
    store: RedisStore
    clock: Clock
    terminal: Terminal

    async def subscribe(self, count: int = 1) -> list[Subscription]:
        """New customers, whose cards are on record everywhere, ask for subscriptions; nothing of it is done yet."""
        customers = [await self.house.customer() for _ in range(count)]
        await self.run(A_MINUTE_S)
        return [await self.house.subscribe(customer, run=False) for customer in customers]

    def worker(self, name: str = "worker-1") -> Worker:
        def open_queue(policy: Policy) -> RedisQueue:
            return RedisQueue(self.store, self.house.s.notifier, policy, name)

        s = self.house.s
        handlers = [handler for role in ROLES.values() for handler in role]
        return Worker(handlers, s.database, s.feed, open_queue, [self.house.client, self.house.notifier])

    async def relay(self) -> None:
        """What was sent with a transaction comes into Redis."""
        while await relay_step(self.house.s.database, RedisRelay(self.store)):
            pass

    async def drain(self, worker: Worker | None = None, most: int | None = None) -> None:
        """What is due, until nothing is; at most so many messages of each queue."""
        working = worker or self.worker()
        for _ in range(STEPS_MAX if most is None else most):
            await self.relay()
            self.house.time.now = await self.clock.now()
            if not await working.step():
                return
        assert most is not None, f"there is still something due after {STEPS_MAX} steps"

    async def run(self, for_s: float, worker: Worker | None = None) -> None:
        """All that falls due within that time, from one due time to the next."""
        await self.clock.run_to(await self.clock.now() + timedelta(seconds=for_s), lambda: self.drain(worker))

    async def look(self, queue: str) -> tuple[int, int, int, int]:
        """Main, processing, delayed, failed."""
        return (
            await self.terminal.type(f"LLEN {queue}"),
            await self.terminal.type(f"LLEN {queue}:processing"),
            await self.terminal.type(f"ZCARD {queue}:delayed"),
            await self.terminal.type(f"LLEN {queue}:failed"),
        )

    async def log(self) -> list[dict[str, Any]]:
        """The newest first."""
        return [json.loads(line) for line in await self.terminal.type("LRANGE q:log:jobs 0 50")]


@asynccontextmanager
async def open_redis_house(
    stage: OpenStage, server: RedisServer, draws: Draws | None = None
) -> AsyncIterator[RedisHouse]:
    async with open_house(on_redis(stage, server), draws) as house, Terminal.open(server.port) as terminal:
        assert isinstance(house.s, RedisStage)
        yield RedisHouse(house, house.s.store, house.s.clock, terminal)
