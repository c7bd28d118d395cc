"""A vendor with books of its own and faults on demand, and runs of a message against it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from payonce.engine.effects import CannotTell, DidNot, Effect, Findable, Happened, IntentCheck, Safety
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import NotSent, Refused
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage

PAY = Policy("pay", lease_s=30, max_attempts=None)
TIMEOUT_S = 20.0
HORIZON_S = 60.0
VALID_FOR_S = 3_600.0


class Order(msgspec.Struct, frozen=True):
    reference: str
    minor_units: int
    signed: bytes = b""


class Receipt(msgspec.Struct, frozen=True):
    number: str
    reference: str


@dataclass
class Vendor:
    """Its books are the oracle: whatever is in `booked` happened, as often as it is there."""

    honours_keys: bool = False
    faults: list[str] = field(default_factory=list)
    booked: list[Order] = field(default_factory=list)
    calls: list[Order] = field(default_factory=list)
    fences: int = 0
    """A send that arrived before a fence takes no effect after it."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    blind_for_questions: bool = False
    shows_nothing: bool = False
    landing_in_fence: Order | None = None
    fence_fails: bool = False

    async def pay(self, order: Order) -> Receipt:
        self.calls.append(order)
        fault = self.faults.pop(0) if self.faults else ""
        fences_at_arrival = self.fences
        match fault:
            case "refuse":
                raise Refused("card declined, api_key=abcdef123456")
            case "not sent":
                raise NotSent("429 too many requests")
            case "lost before":
                raise ConnectionResetError("reset by peer, password=hunter22")
            case "stop before" | "stop before, lost after":
                await self._stop()
            case "refuse late":
                await self._stop()
                raise Refused("declined after all")
            case "lost late":
                await self._stop()
                raise ConnectionResetError("reset by peer")
        if self.fences > fences_at_arrival:
            raise Refused("the cart is gone")
        receipt = self._book(order)
        match fault:
            case "lost after" | "stop before, lost after":
                raise ConnectionResetError("reset by peer")
            case "stop after":
                await self._stop()
            case "other receipt":
                return Receipt("n-other", order.reference)
            case "garbage":
                return object()  # type: ignore[return-value]
        return receipt

    async def find(self, order: Order) -> Happened[Receipt] | DidNot | CannotTell:
        if self.blind_for_questions:
            return CannotTell("503, token=abcdefghijkl")
        found = [] if self.shows_nothing else [each for each in self.booked if each.reference == order.reference]
        return Happened(_receipt(found[0])) if found else DidNot()

    async def forget(self, order: Order) -> None:
        if self.fence_fails:
            raise ConnectionResetError("reset by peer")
        if self.landing_in_fence is not None:
            self.booked.append(self.landing_in_fence)
        self.fences += 1

    def times(self) -> Counter[str]:
        return Counter(order.reference for order in self.booked)

    def _book(self, order: Order) -> Receipt:
        if not (self.honours_keys and order in self.booked):
            self.booked.append(order)
        return _receipt(order)

    async def _stop(self) -> None:
        self.arrived.set()
        await self.resume.wait()


def _receipt(order: Order) -> Receipt:
    return Receipt(f"n-{order.reference}", order.reference)


class Pay(Effect[Order, Receipt]):
    kind, version, timeout_s = "test.pay", 1, TIMEOUT_S

    def __init__(self, vendor: Vendor, safety: Safety) -> None:
        self.vendor = vendor
        self.safety = safety
        self.prepared = 0

    async def prepare(self) -> Order:
        self.prepared += 1
        return Order(self.reference, 100, b"\x00signed")

    async def perform(self, request: Order) -> Receipt:
        return await self.vendor.pay(request)

    async def resolve(self, request: Order) -> Happened[Receipt] | DidNot | CannotTell:
        return await self.vendor.find(request)

    def vendor_ref(self, outcome: Receipt) -> str | None:
        return outcome.number


class Unasked(Effect[Order, Receipt]):
    """Of a vendor that cannot be queried."""

    kind, version, timeout_s = "test.unasked", 1, TIMEOUT_S

    def __init__(self, vendor: Vendor, safety: Safety) -> None:
        self.vendor = vendor
        self.safety = safety

    async def prepare(self) -> Order:
        return Order(self.reference, 100)

    async def perform(self, request: Order) -> Receipt:
        return await self.vendor.pay(request)


@dataclass
class AppContext:
    """One message, the vendor, and any number of runs."""

    s: Stage
    queue: PostgresQueue
    vendor: Vendor
    safety: Safety
    effect_type: type[Any] = Pay
    stopped: list[asyncio.Task[Receipt]] = field(default_factory=list)

    async def claim(self, checks: tuple[IntentCheck, ...] = ()) -> Work:
        [claim] = (await self.queue.exchange([], 1)).claims
        return Work(claim, self.queue, self.s.database, self.s.feed, Reader(self.s.database), checks=checks)

    async def pay(self, work: Work, key: str = "p-1", scope: str | None = None) -> Receipt:
        paid: Receipt = await work.effect(
            self.effect_type(self.vendor, self.safety),
            key=key,
            scope=scope,
            intent=lambda tx: tx.execute("insert into business values ($1)", key),
        )
        return paid

    async def stop_in_the_vendor(self, work: Work, fault: str) -> asyncio.Task[Receipt]:
        """A run whose process stops inside the call; nothing of it is recorded until it wakes up."""
        self.vendor.faults.insert(0, fault)
        self.vendor.arrived.clear()
        run = asyncio.create_task(self.pay(work))
        self.stopped.append(run)
        await self.vendor.arrived.wait()
        return run

    async def take_over(self) -> Work:
        """The next run, on another worker, after the lease of the first one ended."""
        await self.s.clock.advance_leases(PAY.lease_s + 1)
        assert await self.queue.reap() == 1
        return await self.claim()

    async def state(self) -> list[tuple[int, str]]:
        rows = await self.s.owner.fetch("select generation, state from payonce.effects order by generation")
        return [(row["generation"], row["state"]) for row in rows]

    async def events(self) -> list[str]:
        rows = await self.s.owner.fetch("select event from payonce.effect_attempts order by id")
        return [row["event"] for row in rows]

    async def business(self) -> int:
        count: int = await self.s.owner.fetchval("select count(*) from business")
        return count


@asynccontextmanager
async def open_context(
    stage: OpenStage, safety: Safety, *faults: str, honours_keys: bool = False
) -> AsyncIterator[AppContext]:
    async with stage() as s:
        await s.owner.execute("create table if not exists business (id text); grant all on business to payonce_service")
        queue = await s.queue(PAY)
        await s.feed.put([Message(queue="pay", trace_id="t-1")])
        vendor = Vendor(honours_keys, list(faults))
        if isinstance(safety, Findable) and safety.fence is not None:
            safety = Findable(safety.horizon_s, vendor.forget)
        context = AppContext(s, queue, vendor, safety)
        try:
            yield context
        finally:
            for run in context.stopped:
                run.cancel()
            await asyncio.gather(*context.stopped, return_exceptions=True)
