"""The example on one database with both banks in this process, worked through step by step on a clock moved by hand."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from payonce.engine.ledger import Account, balance
from payonce.engine.messages.process import Worker
from payonce.engine.reconcile import StatementSource
from payonce.examples.transfers import ROLES, model, statements, store
from payonce.examples.transfers.demo.verdict import Verdict, judge
from payonce.examples.transfers.model import Order, State
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, well_known
from payonce.testing import OpenStage, Stage
from payonce.testing.faults import Script
from payonce.testing.faulty import Draws, Faulty
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.client import SouthbankClient
from payonce.vendors.southbank.simulator import SouthbankSimulator

EUR, JPY = well_known("EUR"), well_known("JPY")
OPENING = (Amount(10_000_000, EUR), Amount(10_000_000, JPY))
PATIENCE_S = 3_600.0
"""By the store's clock: a transfer unfinished after that time is stuck."""


@dataclass
class BanksClock:
    """The banks' clock goes with the store's."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Office:
    s: Stage
    clock: BanksClock
    northbank: NorthbankSimulator
    southbank: SouthbankSimulator
    doors: Sequence[Faulty]
    worker: Worker
    statements: Sequence[StatementSource]
    orders: list[Order] = field(default_factory=list)

    async def ask_for(self, *orders: Order) -> None:
        async with self.s.begin() as tx:
            for order in orders:
                await store.request(tx, order)
        self.orders += orders

    async def run(self, patience_s: float = PATIENCE_S) -> None:
        """Advances from one due time to the next until nothing is left to do; late requests arrive one hop later."""
        await self.s.clock.run_to(await self.s.clock.now() + timedelta(seconds=patience_s), self.drain)

    async def drain(self) -> None:
        self.clock.now = await self.s.clock.now()
        for door in self.doors:
            await door.deliver()
        await self.s.drain(self.worker)

    async def state(self, transfer_id: str = "t-1") -> State:
        return (await store.transfer(self.s.read, transfer_id)).state

    async def verdict(self) -> Verdict:
        for door in self.doors:
            await door.close()
        return await judge(self.s.read, self.northbank, self.southbank, self.orders)

    async def in_transit(self) -> Amount:
        return await balance(self.s.read, Account(model.IN_TRANSIT, EUR))


def order(number: int = 1, amount: str = "12.50", source: str = "ann", target: str = "bob") -> Order:
    return Order(id=f"t-{number}", source=source, target=target, amount=amount, currency="EUR")


def sound(verdict: Verdict) -> None:
    """Nothing lost, nothing twice, nothing unexplained, every invariant holds."""
    assert not verdict.lost, f"lost: {verdict.lost}"
    assert not verdict.doubled, f"doubled: {verdict.doubled}"
    assert not any(verdict.unexplained.values()), f"unexplained: {verdict.unexplained}"
    assert not verdict.broken, verdict.broken
    assert not verdict.in_review


@asynccontextmanager
async def open_office(
    stage: OpenStage, at_northbank: Draws | None = None, at_southbank: Draws | None = None
) -> AsyncIterator[Office]:
    async with stage() as s:
        clock = BanksClock(await s.clock.freeze())
        northbank, southbank = NorthbankSimulator(clock=clock), SouthbankSimulator(clock=clock)
        northbank.open_account("house")
        northbank.open_account("ann", *OPENING)
        southbank.open_account("house", *OPENING)
        southbank.open_account("bob")
        southbank.open_account("shut")
        southbank.close_account("shut")
        doors = [Faulty(northbank, at_northbank or Script([])), Faulty(southbank, at_southbank or Script([]))]
        async with s.begin() as tx:
            await store.post_opening(tx.post, OPENING)
        async with (
            HttpClient("northbank", "https://northbank.example", transport=doors[0]) as north,
            HttpClient("southbank", "https://southbank.example", transport=doors[1]) as south,
        ):
            clients = [NorthbankClient(north), SouthbankClient(south)]
            worker = await s.worker(*ROLES["worker"], resources=clients)
            yield Office(s, clock, northbank, southbank, doors, worker, statements(clients))
