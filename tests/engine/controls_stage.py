"""A vendor that is paid in euros, with any number of messages and runs, for the tests of controls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from payonce.engine.controls import CHECKS
from payonce.engine.effects import Blind, IntentCheck, Review, Safety, give_up_effects, reviews
from payonce.engine.messages.model import Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Work
from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Retry, Unknown
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage
from tests.engine.effects_stage import Order, Pay, Receipt, Vendor

PAY = Policy("pay", lease_s=30, max_attempts=3, give_up_after_s=600)
EUR = well_known("EUR")


def euros(text: str) -> Amount:
    return Amount.from_decimal(text, EUR)


class PayEuros(Pay):
    kind = "bank.pay"

    def __init__(self, vendor: Vendor, safety: Safety, minor: int = 100) -> None:
        super().__init__(vendor, safety)
        self.minor = minor

    async def prepare(self) -> Order:
        return Order(self.reference, self.minor)

    def amount(self, request: Order) -> Amount | None:
        return Amount(request.minor_units, EUR)


class PayCoins(PayEuros):
    """The same vendor and kind of call in another asset."""

    kind = "exchange.swap"

    def amount(self, request: Order) -> Amount | None:
        return Amount(request.minor_units, well_known("TON"))


@dataclass
class Till:
    """Runs of messages that each pay once, and the controls on them."""

    s: Stage
    queue: PostgresQueue
    vendor: Vendor
    safety: Safety

    @property
    def read(self) -> Reader:
        return Reader(self.s.database)

    def begin(self) -> Any:
        return begin(self.s.database, self.s.feed)

    async def claim(self, count: int = 1, *, lane: str | None = None) -> list[Work]:
        """Messages put and claimed, each with its run."""
        await self.s.feed.put([Message(queue=PAY.queue, lane=lane) for _ in range(count)])
        claims = (await self.queue.exchange([], count)).claims
        assert len(claims) == count
        return [self.run(claim) for claim in claims]

    def run(self, claim: Any, checks: tuple[IntentCheck, ...] = CHECKS) -> Work:
        return Work(claim, self.queue, self.s.database, self.s.feed, self.read, "payouts", checks)

    async def pay(self, work: Work, key: str, minor: int = 100, kind: type[PayEuros] = PayEuros) -> Receipt:
        paid: Receipt = await work.effect(kind(self.vendor, self.safety, minor), key=key)
        return paid

    async def pay_all(self, works: list[Work], minor: int = 100) -> list[Any]:
        """Runs all of them concurrently, each under a key of its own; raised errors take the place of receipts."""
        paying = (self.pay(work, f"p-{number}", minor) for number, work in enumerate(works))
        return await asyncio.gather(*paying, return_exceptions=True)

    async def in_review(self, key: str = "p-1", minor: int = 100) -> Review:
        """An effect with a lost answer, and its parked message."""
        [work] = await self.claim()
        self.vendor.faults.insert(0, "lost after")
        with suppress(Unknown, Retry):
            await self.pay(work, key, minor)
        async with self.begin() as tx:
            await give_up_effects(tx, work.message.id, "no answer")
        await self.park(work, "no answer")
        return (await reviews(self.read))[-1]

    async def park(self, work: Work, reason: str) -> None:
        await self.queue.exchange([Settlement(work._claim, Ending.PARKED, reason)], 0)

    async def states(self) -> dict[str, str]:
        rows = await self.s.owner.fetch("select key, state from payonce.effects")
        return {row["key"]: row["state"] for row in rows}

    async def notes(self) -> list[tuple[str, str]]:
        """The audit log: actors and texts."""
        rows = await self.s.owner.fetch("select actor, text from payonce.audit_log order by id")
        return [(row["actor"], row["text"]) for row in rows]


@asynccontextmanager
async def open_till(stage: OpenStage, safety: Safety | None = None, *faults: str) -> AsyncIterator[Till]:
    async with stage() as s:
        queue = await s.queue(PAY)
        yield Till(s, queue, Vendor(faults=list(faults)), Blind() if safety is None else safety)
