"""The primary dies under load and its standby is promoted: nothing is lost, charged twice or sent in quarantine."""

import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import pytest
from aiohttp import web

from payonce.app.registry import all_migrations
from payonce.engine.controls.quarantine import open_quarantine
from payonce.engine.controls.quarantine.check import LOOK_AGAIN_S
from payonce.engine.database.sessions import connect
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.effects.model import REVIEW_LOOK_S
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Reader
from payonce.engine.reconcile import Entry, Flow, StatementSource, reconcile
from payonce.testing import Clock, eventually
from payonce.testing.cluster import Cluster, replicating_installations
from tests.processes.payer import KINDS, PAYMENTS, PRICE, TIMEOUT_S, Order, Receipt
from tests.processes.test_effect_stops import Bank, open_bank, order_of, start_payer
from tests.processes.testbed import ROOT, ProcessTestbed, open_testbed

NONE_FOUND = "needs a PostgreSQL with pg_basebackup: install the distribution's postgresql"
MOVING = [kind for kind in KINDS if kind != "harmless"]
"""A duplicate of a harmless one moves no money."""
CREW = 3
log = logging.getLogger("failover")
"""Shows its times with: ./dev test tests/processes/test_failovers.py -n 0 --log-cli-level=info"""
LIMIT_S = 60.0
UNSET = datetime.max.replace(tzinfo=UTC)
HELD = """
    select count(*) from payonce.messages m
    where m.state = 'ready' and m.last_error like '%is not sent: the database%' and m.ready_at > payonce.due_now()
"""
WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and query ~* 'commit;?$'"
BURN_TRANSACTIONS = "do $$ begin for n in 1..2000 loop perform pg_current_xact_id(); commit; end loop; end $$"
CLAIMED_SINCE = "select exists (select from payonce.messages where claimed_at > $1)"
STARTED_SINCE = "select count(*) from payonce.effect_attempts where event = 'started' and created_at > $1"
UNFINISHED = """
    select count(*) from payonce.messages m
    where not exists (select from payonce.effects e where e.message_id = m.id and e.state = 'review')
"""


@dataclass(frozen=True)
class Payment:
    order: Order
    at: datetime
    seconds: float
    """On this process's clock."""


@dataclass
class LedgerBank(Bank):
    """Also knows when it booked each payment."""

    payments: list[Payment] = field(default_factory=list)

    async def pay(self, request: web.Request) -> web.Response:
        before = len(self.booked)
        answer = await super().pay(request)
        if len(self.booked) > before:
            self.payments.append(Payment(await order_of(request), datetime.now(UTC), time.monotonic()))
        return answer


class BankStatement(StatementSource):
    vendor, mirror, lag_s = "bank", "bank/account", 0.0
    kinds = MappingProxyType({f"bank.{kind}": Flow.OUT for kind in MOVING})

    def __init__(self, bank: LedgerBank) -> None:
        self._bank = bank

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        for place, paid in enumerate(self._bank.payments, 1):
            number = f"{paid.order.reference}-{place}"
            if since <= paid.at < until:
                yield Entry(number, paid.order.reference, f"bank.{paid.order.kind}", -PRICE, paid.at, Receipt(number))

    async def expects(self, read: Reads, entry: Entry) -> bool:
        return True


@dataclass
class Failover:
    """A testbed on a cluster, a bank, and workers that pay under load."""

    cluster: Cluster
    testbed: ProcessTestbed
    bank: LedgerBank
    payments: int
    killed_at: float = 0.0
    released_at: float = 0.0
    advanced_s: float = 0.0
    """The store's clock is ahead of ours by so much."""
    dead_since: datetime = UNSET
    """What the store has recorded later than this, by its clock, the new primary has."""

    async def intents_wait(self) -> bool:
        """Whether COMMITs of more runs than there are processes wait; each process has one claim under way at most."""
        return bool(await self.testbed.ask(WAITING) > 2 * CREW)

    async def fail_over(self, then: str = "select 1") -> None:
        self.killed_at = time.monotonic()
        await asyncio.to_thread(self.cluster.crash_primary)
        self.dead_since = datetime.now(UTC) + timedelta(seconds=self.advanced_s)
        await asyncio.to_thread(self.cluster.promote)
        await self.as_superuser(then)
        log.info("promoted_after_s %.2f", time.monotonic() - self.killed_at)
        await eventually(self.testbed.answers, LIMIT_S, "the new primary answers")

        async def claimed() -> bool:
            return bool(await self.testbed.ask(CLAIMED_SINCE, self.dead_since))

        await eventually(claimed, LIMIT_S, "a message is claimed on the new primary")
        log.info("first_claim_after_s %.2f", time.monotonic() - self.killed_at)

    async def as_superuser(self, statement: str) -> None:
        connection = await connect(self.testbed.scratch.superuser_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def quarantined(self) -> str:
        """Waits until a process has begun the quarantine, and answers its reason."""

        async def begun() -> str | None:
            found = await open_quarantine(Reader(self.testbed.database))
            return None if found is None else found.reason

        reason: str | None = await eventually(begun, LIMIT_S, "a quarantine begins")
        log.info("quarantine_after_s %.2f", time.monotonic() - self.killed_at)
        assert reason is not None
        return reason

    async def all_held(self) -> int:
        """Waits until every message that may still send is held; answers how many that are."""

        async def none_left() -> bool:
            open_ones = await self.testbed.ask(UNFINISHED)
            return bool(open_ones == await self.testbed.ask(HELD))

        await eventually(none_left, LIMIT_S, "every message is held")
        held: int = await self.testbed.ask(HELD)
        return held

    async def nothing_is_sent_for_long(self, for_s: float = LOOK_AGAIN_S) -> None:
        """Held messages look again when their time has come, and are held again."""
        await self.all_held()
        await self.nothing_was_sent()
        await self.advance(for_s)
        held = await self.all_held()
        await self.nothing_was_sent()
        assert held > 0, "the load was over before the primary died"

    async def advance(self, due_s: float) -> None:
        """Its own connection each time: a failover ends them all."""
        async with Clock.open(self.testbed.scratch.owner_url) as clock:
            await clock.advance(due_s + 1)
        self.advanced_s += due_s + 1

    async def release(self, *accept: str) -> None:
        """By the command, as an operator would, with the address that names both servers."""
        command = (sys.executable, "-m", "payonce", "db", "quarantine", "release", "--by", "ann", *accept)
        child = self.testbed.processes.start(
            *command, name="release", cwd=ROOT, environment={"DATABASE_URL": self.testbed.scratch.service_url}
        )
        assert await child.ended(LIMIT_S) == 0, child.output
        self.released_at = time.monotonic()

    async def paid(self, count: int) -> None:
        await eventually(lambda: len(self.bank.payments) >= count, LIMIT_S, f"{count} payments are made")

    async def drained_by(self, due_s: float) -> None:
        """When so much time has passed."""
        await self.advance(due_s)
        await self.drained()

    async def drained(self) -> None:
        async def nothing_left() -> bool:
            return bool(await self.testbed.ask(UNFINISHED) == 0)

        await eventually(nothing_left, LIMIT_S, "every payment is made or before a person")
        log.info("drained_after_s %.2f since the release", time.monotonic() - self.released_at)

    async def nothing_was_sent(self) -> None:
        """Neither intended on the new primary nor, once the time-outs of the old one's intents have ended, paid."""
        assert await self.testbed.ask(STARTED_SINCE, self.dead_since) == 0, "intended in quarantine"
        late = [paid for paid in self.bank.payments if paid.seconds > self.killed_at + TIMEOUT_S]
        assert late == [], "paid in quarantine"

    async def each_paid_once(self) -> None:
        """Nothing twice, nothing lost, nothing unrecorded at the bank; unknown results are in review."""
        recorded = await self.each_on_record()
        booked = set(self.bank.booked)
        performed = {order for order, state in recorded.items() if state == "performed"}
        assert performed - booked == set(), "on record as charged, and not charged"
        undecided = {order for order, state in recorded.items() if state == "review"}
        log.info("before_a_person %s", len(undecided))
        assert {order.kind for order in undecided} <= {"blind", "unfenced"}
        assert booked - performed <= undecided
        assert len(performed | undecided) == self.payments, "lost"

    async def each_on_record(self) -> dict[Order, str]:
        """Checks that charges happened once and are recorded; returns the states."""
        twice = {order: times for order, times in Counter(self.bank.booked).items() if times > 1}
        assert twice == {}, "charged twice"
        rows = await self.testbed.database.work.fetch("select kind, key, generation, state from payonce.effects")
        recorded = {
            Order(row["kind"].partition(".")[2], f"{row['key']}:{row['generation']}"): row["state"] for row in rows
        }
        assert set(self.bank.booked) - set(recorded) == set(), "charged, and not on record"
        return recorded


@contextmanager
def made_cluster(*, synchronous: bool) -> Iterator[Cluster]:
    if not replicating_installations():
        pytest.skip(NONE_FOUND)
    with Cluster.make(all_migrations(), synchronous=synchronous) as cluster:
        yield cluster


@asynccontextmanager
async def under_load(
    cluster: Cluster, folder: Path, *, payments: int, paid: int, looks: bool = True
) -> AsyncIterator[Failover]:
    """Yields when so many are `paid`."""
    async with (
        open_testbed(await asyncio.to_thread(cluster.database), folder) as testbed,
        open_bank(LedgerBank()) as bank,
    ):
        await testbed.ask("select payonce.notice_identity('test')")
        for _ in range(CREW):
            await start_payer(testbed, bank, looks=looks)
        await testbed.feed.declare([PAYMENTS])
        payloads = [{"row": row, "kind": MOVING[row % len(MOVING)]} for row in range(payments)]
        await testbed.feed.put([Message(queue=PAYMENTS.queue, payload=payload) for payload in payloads])
        failover = Failover(cluster, testbed, bank, payments)
        await failover.paid(paid)
        yield failover


async def test_a_promoted_synchronous_standby_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with made_cluster(synchronous=True) as cluster:
        async with under_load(cluster, tmp_path, payments=400, paid=100) as failover:
            await failover.fail_over()
            assert "timeline 00000002" in await failover.quarantined()
            await failover.nothing_is_sent_for_long()
            await failover.release("--accept-unreconciled", "the standby was synchronous")
            await failover.drained_by(LOOK_AGAIN_S)
            await failover.each_paid_once()


async def test_workers_that_nobody_told_send_nothing_through_a_promoted_standby(tmp_path: Path) -> None:
    """Guards the look at the server in every intent transaction: connections move to the new primary by themselves,
    and no process has begun a quarantine yet."""
    with made_cluster(synchronous=True) as cluster:
        async with under_load(cluster, tmp_path, payments=200, paid=50, looks=False) as failover:
            await failover.fail_over()
            await failover.nothing_is_sent_for_long()
            assert await open_quarantine(Reader(failover.testbed.database)) is None
            await failover.each_on_record()


async def test_intents_whose_commit_the_standby_never_had_are_not_sent(tmp_path: Path) -> None:
    """The answers to these COMMITs are lost. The new primary gives their transaction ids to others, who commit: whoever
    asks it by the id is told that the intent is on record."""
    with made_cluster(synchronous=True) as cluster:
        async with under_load(cluster, tmp_path, payments=400, paid=50) as failover:
            await asyncio.to_thread(cluster.hold_replication)
            await eventually(failover.intents_wait, what="intents wait for the standby")
            await failover.fail_over(then=BURN_TRANSACTIONS)
            await failover.quarantined()
            await failover.nothing_is_sent_for_long()
            await failover.each_on_record()


async def test_what_an_asynchronous_standby_lost_is_found_on_the_statement_and_not_sent_again(tmp_path: Path) -> None:
    with made_cluster(synchronous=False) as cluster:
        async with under_load(cluster, tmp_path, payments=400, paid=100) as failover:
            await asyncio.to_thread(cluster.hold_replication)
            await failover.paid(len(failover.bank.payments) + 50)
            await failover.fail_over()
            await failover.quarantined()
            await failover.nothing_is_sent_for_long(SEND_MAX_S)
            statement = BankStatement(failover.bank)
            run = await reconcile(failover.testbed.database, failover.testbed.feed, statement, by="ann", holder="test")
            # Of the fifty, the standby had the intents of those that were under way when replication was held.
            assert run.adopted > 0, "nothing was lost, so the test shows nothing"
            await failover.release()
            # Reviews were resolved by the statement meanwhile; their messages wait for the answer.
            await failover.drained_by(REVIEW_LOOK_S)
            await failover.each_paid_once()


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
async def test_failover_after_failover_in_a_long_load_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with made_cluster(synchronous=True) as cluster:
        async with under_load(cluster, tmp_path, payments=1_500, paid=chance.randrange(100)) as failover:
            for turn in range(2, 8):
                await failover.fail_over()
                assert f"timeline {turn:08X}" in await failover.quarantined()
                await failover.nothing_is_sent_for_long()
                await asyncio.to_thread(cluster.rejoin)
                await failover.release("--accept-unreconciled", "the standby was synchronous")
                await failover.advance(LOOK_AGAIN_S)
                await failover.paid(len(failover.bank.payments) + chance.randrange(1, 200))
            await failover.drained_by(LOOK_AGAIN_S)
            await failover.each_paid_once()


@pytest.mark.full
async def test_a_release_is_followed_within_the_time_that_held_messages_wait(tmp_path: Path) -> None:
    """With the clocks as they are: for the times in docs/failover.md."""
    with made_cluster(synchronous=True) as cluster:
        async with under_load(cluster, tmp_path, payments=400, paid=100) as failover:
            await failover.fail_over()
            await failover.quarantined()
            await failover.all_held()
            await failover.release("--accept-unreconciled", "the standby was synchronous")
            await failover.drained()
            await failover.each_paid_once()
