"""A bank with books of its own and a statement, our payments through it, and the reconciliation of the two."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from payonce.engine.audit.run import checks_of, run_audit
from payonce.engine.controls.quarantine import refuse_in_quarantine
from payonce.engine.effects import DidNot, Effect, Findable, Happened, IntentCheck, Keyed
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.ledger import Account, Posting, Reference, balance, moved
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.reconcile import Direction, Entry, Flow, Run, StatementSource, reconcile, unmatched
from payonce.kit.money import Amount, well_known
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage

EUR = well_known("EUR")
MIRROR, PAID, SUSPENSE, LOSSES = "bank/account", "payments/paid", "suspense/bank", "losses/bank"
OPENING = 1_000_000
PAY = Policy("bank-payments", lease_s=30, max_attempts=3, backoff=Fixed(10))
KEYS_LIVE_S = 3_600.0
LAG_S = 60.0
SETTLED_S = LAG_S + SEND_MAX_S
"""This long after a quarantine began, the statement shows everything sent before it."""


def eur(minor: int) -> Amount:
    return Amount(minor, EUR)


class Order(msgspec.Struct, frozen=True):
    reference: str
    minor: int


class Receipt(msgspec.Struct, frozen=True):
    number: str


@dataclass(frozen=True)
class Transfer:
    number: str
    kind: str
    reference: str | None
    minor: int
    """The change of our account there: our payments are negative."""
    at: datetime


@dataclass
class Bank:
    """Its books are the oracle. It forgets keys after an hour, as banks do."""

    clock: Callable[[], Awaitable[datetime]]
    booked: list[Transfer] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)
    """Numbers that it has not booked yet, by its statement and balance."""
    tells_outcomes: bool = True
    faults: list[str] = field(default_factory=list)
    asked: list[tuple[datetime, datetime]] = field(default_factory=list)
    breaks_at: str | None = None
    """The number at which its statement breaks off, once."""
    slow_for: list[asyncio.Event] = field(default_factory=list)
    """Statements that wait for their events to be set, one each."""
    fences: int = 0
    names: str = "n"
    """The prefix of its numbers."""

    async def pay(self, kind: str, order: Order) -> Receipt:
        now = await self.clock()
        if kind == "bank.pay":
            for known in self._of(kind, order.reference):
                if now < known.at + timedelta(seconds=KEYS_LIVE_S):
                    return Receipt(known.number)
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost before":
            raise ConnectionResetError("reset by peer")
        number = self.book(kind, order.reference, -order.minor, now).number
        if fault == "lost after":
            raise ConnectionResetError("reset by peer")
        return Receipt(number)

    def book(self, kind: str, reference: str | None, minor: int, at: datetime) -> Transfer:
        transfer = Transfer(f"{self.names}-{len(self.booked) + 1}", kind, reference, minor, at)
        self.booked.append(transfer)
        return transfer

    async def find(self, kind: str, order: Order) -> Happened[Receipt] | DidNot:
        found = self._of(kind, order.reference)
        return Happened(Receipt(found[0].number)) if found else DidNot()

    def times(self) -> Counter[str | None]:
        return Counter(transfer.reference for transfer in self.booked)

    @property
    def balance(self) -> int:
        return OPENING + sum(each.minor for each in self.booked if each.number not in self.hidden)

    def _of(self, kind: str, reference: str) -> list[Transfer]:
        return [each for each in self.booked if (each.kind, each.reference) == (kind, reference)]


class BankStatement(StatementSource):
    vendor, mirror, lag_s = "bank", MIRROR, LAG_S
    kinds: Mapping[str, Flow] = MappingProxyType({"bank.pay": Flow.OUT, "bank.wire": Flow.OUT})

    def __init__(self, bank: Bank, **changes: Any) -> None:
        self.bank = bank
        for name, value in changes.items():
            setattr(self, name, value)

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        self.bank.asked.append((since, until))
        if self.bank.slow_for:
            await self.bank.slow_for.pop(0).wait()
        for each in list(self.bank.booked):
            if each.number in self.bank.hidden or not since <= each.at < until:
                continue
            if each.number == self.bank.breaks_at:
                self.bank.breaks_at = None
                raise ConnectionResetError("reset by peer")
            outcome = Receipt(each.number) if self.bank.tells_outcomes else None
            yield Entry(each.number, each.reference, each.kind, eur(each.minor), each.at, outcome)

    async def expects(self, read: Reads, entry: Entry) -> bool:
        assert entry.key_and_generation is not None
        key, _ = entry.key_and_generation
        minor = await read.fetchval("select minor from payments where id = $1 and 'bank.' || way = $2", key, entry.kind)
        return bool(minor == -entry.amount.minor)

    async def balance(self) -> Sequence[Amount]:
        return [eur(self.bank.balance)]


class Pay(Effect[Order, Receipt]):
    kind, version, timeout_s = "bank.pay", 1, 20.0

    def __init__(self, bank: Bank, way: str, minor: int) -> None:
        self.bank, self.minor, self.kind = bank, minor, f"bank.{way}"
        self.safety = Keyed(KEYS_LIVE_S) if way == "pay" else Findable(30.0, self.wait_for_nothing)

    async def wait_for_nothing(self, request: Order) -> None:
        """This bank books at once, so that nothing arrives late."""
        self.bank.fences += 1

    async def prepare(self) -> Order:
        return Order(self.reference, self.minor)

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.pay(self.kind, request)

    async def resolve(self, request: Order) -> Happened[Receipt] | DidNot:
        return await self.bank.find(self.kind, request)

    def amount(self, request: Order) -> Amount:
        return eur(request.minor)

    def vendor_ref(self, outcome: Receipt) -> str:
        return outcome.number


@handles(PAY)
async def make_payment(work: Work, bank: Bank) -> None:
    payment = await work.read.fetchrow("select * from payments where id = $1", work.message.payload["id"])
    if payment["state"] == "paid":
        return
    receipt = await work.effect(Pay(bank, payment["way"], payment["minor"]), key=payment["id"])
    async with work.commit() as tx:
        moved_on = await tx.fetchval(
            "update payments set state = 'paid', number = $2 where id = $1 and state = 'new' returning true",
            payment["id"],
            receipt.number,
        )
        assert moved_on
        lines = moved(eur(payment["minor"]), MIRROR, PAID)
        await tx.post(Posting(f"payment:{payment['id']}", Reference("payment", payment["id"]), lines))


@dataclass(frozen=True)
class Shop:
    """Our side as far as its audit goes."""

    name: str = "shop"
    invariants: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(
        default_factory=lambda: {
            "payment": "select id from payments where id = any($1::text[])",
            "bank": "select unnest($1::text[])",
        }
    )


@dataclass
class Branch:
    """One process of our side: payments, a stepped worker, and the statement."""

    s: Stage
    bank: Bank
    worker: Worker
    statement: BankStatement

    @property
    def read(self) -> Reader:
        return Reader(self.s.database)

    async def order(self, *ids: str, way: str = "pay", minor: int = 100) -> None:
        async with begin(self.s.database, self.s.feed) as tx:
            for each in ids:
                await tx.execute("insert into payments (id, way, minor) values ($1, $2, $3)", each, way, minor)
                await tx.send(PAY, {"id": each}, key=f"pay:{each}")

    async def work(self) -> int:
        """Runs what is due, until nothing is."""
        return await self.s.drain(self.worker)

    async def reconcile(self, holder: str = "branch", **window: datetime) -> Run:
        return await reconcile(self.s.database, self.s.feed, self.statement, by="test", holder=holder, **window)

    async def after_the_lag(self) -> Run:
        await self.s.clock.advance(LAG_S + 1)
        return await self.reconcile()

    async def held(self, path: str) -> int:
        return (await balance(self.read, Account(path, EUR))).minor

    async def open_items(self) -> list[tuple[Direction, int]]:
        return [(item.direction, item.amount.minor) for item in await unmatched(self.read)]

    async def states(self) -> Counter[str]:
        rows = await self.s.owner.fetch("select state, review_cause from payonce.effects")
        return Counter(row["review_cause"] or row["state"] for row in rows)

    async def paid(self) -> int:
        count: int = await self.s.owner.fetchval("select count(*) from payments where state = 'paid'")
        return count

    async def assert_books_equal(self) -> None:
        """Our ledger equals the bank's to the last unit, and is sound in itself."""
        assert await self.held(MIRROR) == self.bank.balance
        report = await run_audit(self.s.database, checks_of([Shop()]))
        assert not report.findings, report.findings


@asynccontextmanager
async def open_branch(
    stage: OpenStage,
    bank: Bank | None = None,
    *,
    checks: Sequence[IntentCheck] = (refuse_in_quarantine,),
    handlers: Sequence[Handler] = (make_payment,),
    **changes: Any,
) -> AsyncIterator[Branch]:
    async with stage() as s:
        bank = bank or Bank(s.clock.now)
        bank.clock = s.clock.now
        await s.queue(PAY)
        await _prepare(s)

        def open_queue(policy: Policy) -> PostgresQueue:
            return PostgresQueue(s.database, s.notifier, policy, "worker-1")

        worker = Worker(handlers, s.database, s.feed, open_queue, [bank], checks=checks)
        yield Branch(s, bank, worker, BankStatement(bank, **changes))


async def _prepare(s: Stage) -> None:
    await s.owner.execute(
        """
        create table if not exists payments (
            id text primary key, way text not null, minor bigint not null, state text not null default 'new',
            number text);
        grant select, insert, update on payments to payonce_service
        """
    )
    async with begin(s.database, s.feed) as tx:
        lines = moved(eur(OPENING), "equity/opening", MIRROR)
        await tx.post(Posting("opening", Reference("bank", "opening"), lines))
