"""A broker with books of its own and faults on demand, and a consumer behind it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from payonce.engine.messages.inbox import accept
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Fixed
from payonce.engine.messages.transaction import begin
from payonce.engine.outbox import Answer, Delivered, Entry, RelayConfig, declare_relays, put_out, relay_step
from payonce.testing import OpenStage, Stage

NAME = "broker"
BACKOFF_S = 10.0
LEASE_S = 30.0
CONFIG = RelayConfig(batch=10, timeout_s=20.0, lease_s=LEASE_S, refusals_max=3, backoff=Fixed(BACKOFF_S))


@dataclass
class Broker:
    """Its books are the oracle: whatever is in `received` was delivered, as often as it is there."""

    name: str = NAME
    config: RelayConfig = CONFIG
    received: list[Entry] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    faults: dict[UUID, Answer | Exception] = field(default_factory=dict)
    """The answers for entries, or errors for the batches that contain them."""
    away: Exception | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event | None = None
    """When set, a delivery blocks, with everything received and nothing answered, until it is released."""

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        self.calls.append(len(entries))
        if self.away is not None:
            raise self.away
        answers: list[Answer] = []
        for entry in entries:
            fault = self.faults.get(entry.message.id, Delivered())
            if isinstance(fault, Exception):
                raise fault
            if isinstance(fault, Delivered):
                self.received.append(entry)
            answers.append(fault)
        if self.resume is not None:
            self.arrived.set()
            await self.resume.wait()
        return answers

    def times(self) -> Counter[UUID]:
        return Counter(entry.message.id for entry in self.received)


@dataclass
class AppContext:
    s: Stage
    broker: Broker
    running: list[asyncio.Task[Any]] = field(default_factory=list)

    async def put(self, count: int = 1, **fields: Any) -> list[UUID]:
        async with begin(self.s.database, self.s.feed) as tx:
            messages = [Message(queue="payments", **fields) for _ in range(count)]
            return await put_out(tx.connection, self.broker.name, messages)

    async def step(self) -> int:
        return await relay_step(self.s.database, self.broker)

    async def stand_still(self) -> asyncio.Task[int]:
        """A step whose process stops with everything delivered and nothing recorded."""
        self.broker.resume = asyncio.Event()
        self.broker.arrived.clear()
        step = asyncio.create_task(self.step())
        self.running.append(step)
        await self.broker.arrived.wait()
        return step

    async def die(self) -> None:
        """A step whose process dies at that point; only the lease remains."""
        step = await self.stand_still()
        # In-process cancellation stands for the kill: it takes effect while the process waits, and nothing is recorded
        # after it.
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        self.broker.resume = None

    async def let_lease_end(self) -> None:
        await self.s.clock.advance_leases(LEASE_S)

    async def states(self) -> dict[str, int]:
        rows = await self.s.owner.fetch("select state, count(*) from payonce.outbox group by state")
        return {row["state"]: row["count"] for row in rows}

    async def row(self, entry_id: UUID) -> Any:
        return await self.s.owner.fetchrow("select * from payonce.outbox where id = $1", entry_id)

    async def consume(self, entry: Entry, consumer: str = "books") -> bool:
        """A receiver: its business and the id in one transaction."""
        async with begin(self.s.database, self.s.feed) as tx:
            if not await accept(tx, consumer, entry.message.id):
                return False
            await tx.execute("insert into business values ($1)", str(entry.message.id))
            return True

    async def business(self) -> Counter[str]:
        return Counter(row["id"] for row in await self.s.owner.fetch("select id from business"))


@asynccontextmanager
async def open_context(stage: OpenStage, config: RelayConfig = CONFIG) -> AsyncIterator[AppContext]:
    async with stage() as s:
        await s.clock.freeze()
        await s.owner.execute("create table if not exists business (id text); grant all on business to payonce_service")
        context = AppContext(s, Broker(config=config))
        await declare_relays(s.database, [context.broker])
        try:
            yield context
        finally:
            for step in context.running:
                step.cancel()
            await asyncio.gather(*context.running, return_exceptions=True)
