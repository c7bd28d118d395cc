"""The server crashes and restarts under load, time and again: nothing is charged twice, lost, or not on record.

Workers pay through effects of every kind at a bank that keeps books of its own, and other clients write as soon as the
server is back, so that it hands the ids of lost transactions out again.
"""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from aiohttp import web

from payonce.app.registry import all_migrations
from payonce.engine.audit.run import checks_of, run_audit
from payonce.engine.controls.quarantine import open_quarantine
from payonce.engine.effects import Answer, answer_review, next_generation, reviews
from payonce.engine.effects.review import Review
from payonce.engine.ledger import Account, balance, trial_balance
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Reader, begin
from payonce.testing import ScratchDatabase, ScratchServer, Servers, eventually
from payonce.testing.crash.server_crash import SETTINGS, Session, crash_server
from payonce.testing.processes import Child
from tests.processes import crash_writers
from tests.processes.crash_aim import Aim, Moment
from tests.processes.crash_payer import PAID, PAYMENTS, SLOTS, Charge, Duty
from tests.processes.payer import KINDS, PRICE, Order, Receipt
from tests.processes.test_effect_stops import Bank, open_bank
from tests.processes.testbed import ROOT, ProcessTestbed, open_testbed

CREW = 3
WRITERS = 30
MIX = ("blind",) * len(KINDS[:-1]) + KINDS[:-1]
"""Of every kind, and half of them blind."""
DUPLICABLE = "harmless"
"""A duplicate of such an effect moves no money."""
MOMENTS = (Moment.ANY, Moment.BEFORE_COMMIT, Moment.AFTER_COMMIT, Moment.ANY, Moment.BEFORE_COMMIT)
FOR_A_PERSON = {("blind", "blind"), ("unfenced", "no_fence")}
"""Kinds of effects that a person may have to decide, and why. A contradiction is not among the reasons."""
STOCK = 100
"""Messages that wait or run whenever the server crashes."""
PAID_BETWEEN = 25
WAITING = 3
"""COMMITs that wait for a crash that is aimed at them."""
SETTLE_LIMIT_S = 3.0
"""Until every run waits; a session that waits for longer than half a lease is ended by its server."""
BANK_TAKES_S = 0.1
ANSWERS_LOST = 0.02
"""Share of the payments that the bank books without the client hearing of it."""
LIMIT_S = 120.0
ABLATED_CRASHES_MAX = 20
RETRY_LIMIT_S = 5.0
"""Until a payment whose effect is not on record is made again, unless the bank knows it by its key."""
pytestmark = pytest.mark.timeout(240)
AT_WORK = """
    select count(*) from payonce.messages m
    where m.state <> 'parked' and not exists (
        select from payonce.effects e where e.message_id = m.id and e.state = 'review')
"""
log = logging.getLogger("server crashes")
"""Shows the figures with: ./dev test tests/processes/test_server_crashes.py -n 0 --log-cli-level=info"""


@dataclass(frozen=True)
class Payments:
    """To the audit: each posting belongs to an effect that was performed."""

    name: str = "payments"
    invariants: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(
        default_factory=lambda: {
            "payment": "select key from payonce.effects where key = any($1::text[]) and state = 'performed'"
        }
    )


@dataclass
class SlowBank(Bank):
    """Takes its time, so that payments are under way when the server crashes, and loses some of its answers."""

    chance: random.Random = field(default_factory=random.Random)
    paused: bool = False
    """While it is, it books nothing and answers nobody."""
    in_flight: int = 0

    async def pay(self, request: web.Request) -> web.Response:
        self.in_flight += 1
        await asyncio.sleep(self.chance.random() * BANK_TAKES_S)
        await eventually(lambda: not self.paused, LIMIT_S, "the bank goes on")
        self.in_flight -= 1
        answer = await super().pay(request)
        if self.chance.random() < ANSWERS_LOST and request.transport is not None:
            request.transport.abort()
        return answer

    def receipt(self, order: Order) -> Receipt | None:
        """What a person finds in the bank's books."""
        body = self._first(order).body
        assert isinstance(body, bytes)
        return msgspec.json.decode(body, type=Receipt | None)


@dataclass(frozen=True)
class Violations:
    """What the bank's books say against payonce's, by payment or by order."""

    charged_twice: list[str]
    without_record: list[str]
    lost: list[str]

    def any(self) -> bool:
        return bool(self.charged_twice or self.without_record or self.lost)


class Reviewed(NamedTuple):
    kind: str
    cause: str
    answer: str


@dataclass
class Run:
    testbed: ProcessTestbed
    bank: SlowBank
    superuser: Session
    aim: Aim
    workers: list[Child]
    chance: random.Random
    put: int = 0
    began_at: float = field(default_factory=time.monotonic)
    crashes: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    """Crashes that hit a COMMIT of a worker."""

    async def crash(self, moment: Moment) -> None:
        """Under load, when some more payments have been made since the last time."""
        await self.keep_busy()
        wanted = len(self.bank.booked) + self.chance.randrange(PAID_BETWEEN)
        await eventually(lambda: len(self.bank.booked) >= wanted, LIMIT_S, f"{wanted} payments are made")
        if moment is not Moment.ANY:
            self.aim.take(moment)
            # Recording the bank's response flushes the log, and with it the ids that are to be lost.
            self.bank.paused = moment is Moment.BEFORE_COMMIT
            await eventually(lambda: self.aim.waiting() >= WAITING, LIMIT_S, f"{WAITING} COMMITs wait")
            with suppress(AssertionError):
                await eventually(self.all_wait, SETTLE_LIMIT_S)
        lost_before = len(self.testbed.journal.notes("lost"))
        await crash_server(self.superuser)
        self.aim.drop()
        self.bank.paused = False
        await eventually(self.testbed.answers, LIMIT_S, "the server answers")
        self.crashes[moment.value] += 1
        self.hits += len(self.testbed.journal.notes("lost")) > lost_before

    def all_wait(self) -> bool:
        return self.aim.waiting() + self.bank.in_flight >= CREW * SLOTS

    async def keep_busy(self) -> None:
        missing = STOCK - await self.testbed.ask(AT_WORK)
        rows = range(self.put, self.put + max(missing, 0))
        payloads = [{"row": row, "kind": MIX[row % len(MIX)]} for row in rows]
        await self.testbed.feed.put([Message(queue=PAYMENTS.queue, payload=payload) for payload in payloads])
        self.put = rows.stop

    async def drained(self) -> None:
        async def nothing_left() -> bool:
            return bool(await self.testbed.ask(AT_WORK) == 0)

        await eventually(nothing_left, LIMIT_S, "every message has ended, is parked or waits for a person")

    async def violations(self, *, drained: bool) -> Violations:
        # Read first: later bookings may be recorded later, too.
        booked = list(self.bank.booked)
        rows = await self.testbed.database.work.fetch("select kind, key, generation, state from payonce.effects")
        recorded = {(row["kind"], f"{row['key']}:{row['generation']}") for row in rows}
        known = {row["key"] for row in rows if row["state"] in ("performed", "review")}
        parked = await self.testbed.ask(
            "select array_agg('p-' || (payload->>'row')) from payonce.messages where state = 'parked'"
        )
        times = Counter(payment_of(order) for order in booked if order.kind != DUPLICABLE)
        return Violations(
            charged_twice=[payment for payment, count in times.items() if count > 1],
            without_record=[each.reference for each in booked if (f"bank.{each.kind}", each.reference) not in recorded],
            lost=sorted({f"p-{row}" for row in range(self.put)} - known - set(parked or ())) if drained else [],
        )

    async def charged_twice(self) -> bool:
        return bool((await self.violations(drained=False)).charged_twice)

    async def answer_reviews(self) -> Counter[Reviewed]:
        """As a person does who looks into the bank's books. Repeats it: the bank may lose the answer to what is then
        sent for the first time."""
        answered: Counter[Reviewed] = Counter()
        while found := await reviews(Reader(self.testbed.database)):
            answered.update([await self._answer(review) for review in found])
            await self.testbed.ask("update payonce.messages set ready_at = payonce.due_now() where state = 'ready'")
            await self.drained()
        return answered

    async def _answer(self, review: Review) -> Reviewed:
        effect, kind = review.effect, review.effect.kind.partition(".")[2]
        receipt = self.bank.receipt(Order(kind, f"{effect.key}:{effect.generation}"))
        answer = Answer.DID_NOT if receipt is None else Answer.HAPPENED
        async with begin(self.testbed.database, self.testbed.feed) as tx:
            await answer_review(
                tx,
                effect.id,
                answer,
                "ann",
                "by the bank's books",
                revision=effect.revision,
                outcome=receipt,
                vendor_ref=None if receipt is None else receipt.number,
                effect=Charge,
            )
            if receipt is None:
                await next_generation(tx, effect.kind, effect.key, effect.generation)
        return Reviewed(kind, str(effect.review_cause), answer.value)

    async def ledger_agrees(self) -> None:
        """Each payment that moved money is posted once, the ledger adds up, and the audit finds nothing."""
        read = Reader(self.testbed.database)
        paid = [order for order in self.bank.booked if order.kind != DUPLICABLE]
        assert await balance(read, Account(PAID, PRICE.asset)) == PRICE * len(paid)
        assert all(not total.minor for total in (await trial_balance(read)).values())
        report = await run_audit(self.testbed.database, checks_of([Payments()]))
        assert report.ok, report.findings

    def commit_answers_lost(self) -> dict[str, int]:
        """By what the workers found out."""
        lines = [line for worker in self.workers for line in worker.output.splitlines() if "commit_answer_lost" in line]
        fates = Counter(msgspec.json.decode(line)["committed"] for line in lines)
        return {"committed": fates[True], "not committed": fates[False]}

    async def ids_reused(self) -> tuple[int, int]:
        """How many ids of lost COMMITs there were, and how many of them another writer was given."""
        lost = sorted({note.row for note in self.testbed.journal.notes("lost")})
        reused: int = await self.superuser.fetchval(
            "select count(*) from public.written_by_others where transaction_id = any($1::bigint[])", lost
        )
        return len(lost), reused


def payment_of(order: Order) -> str:
    """Whatever the generation."""
    return order.reference.partition(":")[0]


@pytest.fixture(scope="module")
def crashing_server() -> Iterator[ScratchServer]:
    servers = Servers(all_migrations(), SETTINGS)
    yield servers.of()
    servers.close()


@asynccontextmanager
async def under_load(scratch: ScratchDatabase, folder: Path, *, ablated: bool = False) -> AsyncIterator[Run]:
    chance = random.Random(1)
    superuser = await Session(scratch.superuser_url).open()
    try:
        await superuser.execute(crash_writers.TABLE)
        async with open_testbed(scratch, folder) as testbed, open_bank(SlowBank(chance=chance)) as bank:
            run = Run(testbed, bank, superuser, Aim(folder), [], chance)
            await testbed.feed.declare([PAYMENTS])
            duty = Duty(url=scratch.service_url, folder=str(folder), bank_url=bank.url, ablated=ablated)
            run.workers += [start(testbed, "crash_payer", duty) for _ in range(CREW)]
            others = crash_writers.Duty(url=scratch.superuser_url, folder=str(folder), writers=WRITERS)
            start(testbed, "crash_writers", others)
            await testbed.serving(*run.workers)
            yield run
    finally:
        await superuser.close()


def start(testbed: ProcessTestbed, module: str, duty: msgspec.Struct) -> Child:
    command = (sys.executable, "-m", f"tests.processes.{module}", msgspec.json.encode(duty).decode())
    return testbed.processes.start(*command, name=module, cwd=ROOT)


async def crash_and_settle(scratch: ScratchDatabase, folder: Path, crashes: int) -> None:
    async with under_load(scratch, folder) as run:
        for moment in islice(cycle(MOMENTS), crashes):
            await run.crash(moment)
        await run.drained()
        violations = await run.violations(drained=True)
        assert not violations.any(), violations
        answered = await run.answer_reviews()
        violations = await run.violations(drained=True)
        await run.ledger_agrees()
        lost_ids, reused_ids = await run.ids_reused()
        fates = run.commit_answers_lost()
        figures = {
            "crashes": dict(run.crashes),
            "crashes that hit COMMITs": run.hits,
            "writers": WRITERS,
            "commits of writers": await run.superuser.fetchval("select count(*) from public.written_by_others"),
            "effects": dict(Counter(MIX[row % len(MIX)] for row in range(run.put))),
            "charged": len(run.bank.booked),
            **{name: len(found) for name, found in asdict(violations).items()},
            "reviews": {" ".join(reviewed): count for reviewed, count in answered.items()},
            "COMMIT answers lost": fates,
            "ids of lost COMMITs": lost_ids,
            "reused": reused_ids,
            "seconds": round(time.monotonic() - run.began_at),
        }
        log.info("%s", figures)
        assert not violations.any(), violations
        paid = {payment_of(order) for order in run.bank.booked}
        assert paid == {f"p-{row}" for row in range(run.put)}, "neither paid nor before a person"
        assert await run.testbed.ask("select count(*) from payonce.messages") == 0, "parked"
        assert {(reviewed.kind, reviewed.cause) for reviewed in answered} <= FOR_A_PERSON
        assert await open_quarantine(Reader(run.testbed.database)) is None
        assert all(worker.running for worker in run.workers), "recovered, and not by being replaced"
        # Without these the run shows nothing: each fate was met, and ids were handed out again.
        assert all(fates.values()), fates
        assert reused_ids > 0


async def test_a_server_that_crashes_under_load_loses_and_doubles_nothing(
    crashing_server: ScratchServer, tmp_path: Path
) -> None:
    with crashing_server.lent() as scratch:
        await crash_and_settle(scratch, tmp_path, crashes=8)


@pytest.mark.full
@pytest.mark.timeout(1_500)
async def test_two_hundred_crashes_under_load_lose_and_double_nothing(
    crashing_server: ScratchServer, tmp_path: Path
) -> None:
    with crashing_server.lent() as scratch:
        await crash_and_settle(scratch, tmp_path, crashes=200)


async def test_commits_that_are_looked_up_by_their_ids_are_found_out(
    crashing_server: ScratchServer, tmp_path: Path
) -> None:
    """Proves that the run can fail: without the token, somebody else's COMMIT passes for the lost one's."""
    with crashing_server.lent() as scratch:
        async with under_load(scratch, tmp_path, ablated=True) as run:
            for _ in range(ABLATED_CRASHES_MAX):
                await run.crash(Moment.BEFORE_COMMIT)
                violations = await run.violations(drained=False)
                if violations.without_record:
                    with suppress(AssertionError):
                        await eventually(run.charged_twice, RETRY_LIMIT_S)
                    violations = await run.violations(drained=False)
                if violations.charged_twice:
                    break
            log.info("after %s crashes: %s", run.crashes.total(), violations)
            assert violations.charged_twice
