"""Reconciliation runs: where they begin, continue and end, who does them, and which sources can be read at all."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from payonce.engine.ledger import Account, guard
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import Direction, Flow, compare_balances, last_runs
from payonce.engine.reconcile import run as run_module
from payonce.engine.reconcile.runs import OVERLAP_S
from payonce.kit.outcomes import Invalid, Stale, Unavailable
from payonce.testing import OpenStage, eventually
from tests.engine.bank import EUR, LAG_S, open_branch


async def test_a_run_that_breaks_off_goes_on_with_its_slice(stage: OpenStage) -> None:
    async with open_branch(stage, slice_s=3_600.0) as b:
        now = await b.s.clock.now()
        for hours in (5, 3, 1):
            b.bank.book("bank.fee", None, -hours, now - timedelta(hours=hours))
        await b.s.clock.advance(LAG_S + 1)
        since = now - timedelta(hours=6)
        b.bank.breaks_at = "n-2"
        with pytest.raises(Unavailable, match="broke off"):
            await b.reconcile(since=since)
        [broken] = await last_runs(b.read, "bank")
        assert (broken.state, broken.reached) == ("running", since + timedelta(hours=3))
        b.bank.asked = []
        done = await b.reconcile(since=since)
        assert (done.id, done.state) == (broken.id, "finished")
        assert b.bank.asked[0][0] == broken.reached
        assert (done.lines, done.unmatched) == (3, 3)


async def test_a_run_that_goes_on_late_leaves_out_nothing_that_the_bank_showed_late(stage: OpenStage) -> None:
    """Its first slices were read before the lag had passed, so it keeps its end; another run follows."""
    async with open_branch(stage, lag_s=7_200.0, slice_s=600.0) as b:
        now = await b.s.clock.now()
        late = b.bank.book("bank.fee", None, -1, now - timedelta(minutes=30))
        last = b.bank.book("bank.fee", None, -2, now - timedelta(minutes=2))
        b.bank.hidden = {late.number}
        b.bank.breaks_at = last.number
        since = now - timedelta(hours=1)
        with pytest.raises(Unavailable):
            await b.reconcile(since=since)
        await b.s.clock.advance(7_260)
        b.bank.hidden = set()
        await b.reconcile(since=since)
        second, first = await last_runs(b.read, "bank")
        assert (first.state, second.state) == ("finished", "finished")
        assert first.until <= first.begun_at < second.until <= second.begun_at
        assert len(await b.open_items()) == 2


async def test_a_run_that_is_slow_and_breaks_off_leaves_out_nothing_either(stage: OpenStage) -> None:
    """The time of its last slice says nothing about the first ones."""
    async with open_branch(stage, lag_s=3_600.0, slice_s=86_400.0) as b:
        now = await b.s.clock.now()
        late = b.bank.book("bank.fee", None, -1, now - timedelta(minutes=50))
        b.bank.hidden = {late.number}
        since = now - timedelta(days=1, minutes=30)
        b.bank.slow_for = [asyncio.Event(), asyncio.Event()]
        read_first, breaks_off = b.bank.slow_for
        broken = asyncio.create_task(b.reconcile(since=since))
        await eventually(lambda: len(b.bank.slow_for) == 1)
        read_first.set()
        await eventually(lambda: not b.bank.slow_for)
        await b.s.clock.advance(10 * 3_600)
        last = b.bank.book("bank.fee", None, -2, now - timedelta(minutes=1))
        b.bank.breaks_at = last.number
        breaks_off.set()
        with pytest.raises(Unavailable):
            await broken
        b.bank.hidden = set()
        await b.reconcile(since=since)
        assert len(await b.open_items()) == 2


async def test_a_first_run_that_breaks_off_goes_on(stage: OpenStage) -> None:
    async with open_branch(stage, slice_s=3_600.0) as b:
        now = await b.s.clock.now()
        fee = b.bank.book("bank.fee", None, -1, now - timedelta(hours=1))
        for _ in range(3):
            b.bank.breaks_at = fee.number
            with pytest.raises(Unavailable):
                await b.reconcile()
            await b.s.clock.advance(10)
        [broken] = await last_runs(b.read, "bank")
        b.bank.asked = []
        assert (await b.reconcile()).id == broken.id
        assert b.bank.asked[0][0] == broken.reached > broken.since


async def test_a_broken_run_over_another_stretch_does_not_stand_for_what_is_due(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        covered = await b.after_the_lag()
        fee = b.bank.book("bank.fee", None, -1, covered.since - timedelta(days=8, hours=1))
        b.bank.breaks_at = fee.number
        with pytest.raises(Unavailable):
            await b.reconcile(since=fee.at - timedelta(days=1), until=fee.at + timedelta(hours=1))
        assert (await b.after_the_lag()).until > covered.until
        assert [run.state for run in await last_runs(b.read, "bank")] == ["finished", "abandoned", "finished"]


async def test_a_run_whose_lease_passed_on_writes_nothing(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -7, await b.s.clock.now() - timedelta(hours=1))
        stopped, late = asyncio.Event(), asyncio.Event()
        b.bank.slow_for = [stopped, late]
        since = await b.s.clock.now() - timedelta(hours=2)
        first = asyncio.create_task(b.reconcile("first", since=since))
        await eventually(lambda: len(b.bank.slow_for) == 1)
        await b.s.clock.advance_leases(60)
        second = asyncio.create_task(b.reconcile("second", since=since))
        await eventually(lambda: not b.bank.slow_for)
        stopped.set()
        with pytest.raises(Stale):
            await first
        assert await b.open_items() == []
        late.set()
        assert (await second).unmatched == 1


async def test_only_one_process_reconciles_a_vendor(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "LEAD_LOOKS", 3)
    async with open_branch(stage) as b:
        stopped = asyncio.Event()
        b.bank.slow_for = [stopped]
        first = asyncio.create_task(b.reconcile("first"))
        await eventually(lambda: not b.bank.slow_for)
        with pytest.raises(Stale, match="another process is reconciling bank"):
            await b.reconcile("second")
        stopped.set()
        await first


async def test_a_statement_that_hangs_is_broken_off(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "ENTRY_LIMIT_S", 0.05)
    async with open_branch(stage) as b:
        b.bank.slow_for = [asyncio.Event()]
        with pytest.raises(Unavailable, match="returned no further line"):
            await b.reconcile()


async def test_the_next_run_begins_before_the_end_of_the_last_one(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        first = await b.after_the_lag()
        b.bank.book("bank.fee", None, -1, first.until - timedelta(seconds=30))
        second = await b.after_the_lag()
        assert second.since < first.until - timedelta(seconds=LAG_S)
        assert second.unmatched == 1
        earlier = await b.reconcile(since=first.since - timedelta(days=9), until=first.since - timedelta(days=8))
        assert (await b.reconcile()).since > earlier.until


@pytest.mark.parametrize("gap", [timedelta(days=4), timedelta(seconds=-LAG_S / 2)])
async def test_a_run_that_leaves_a_gap_does_not_keep_the_next_from_reading_it(stage: OpenStage, gap: timedelta) -> None:
    """Whatever the last run read before the lag had passed is a gap too."""
    async with open_branch(stage) as b:
        covered = await b.after_the_lag()
        await b.s.clock.advance(5 * 86_400)
        b.bank.book("bank.fee", None, -7, covered.until + gap - timedelta(seconds=1))
        await b.reconcile(since=covered.until + gap)
        assert await b.open_items() == []
        await b.after_the_lag()
        assert await b.open_items() == [(Direction.THEIRS, -7)]


async def test_a_run_that_leaves_no_gap_moves_on_what_is_covered(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        covered = await b.after_the_lag()
        await b.s.clock.advance(5 * 86_400)
        explicit = await b.reconcile(since=covered.until - timedelta(seconds=LAG_S))
        assert (await b.after_the_lag()).since == explicit.until - timedelta(seconds=LAG_S + OVERLAP_S)


@pytest.mark.parametrize("hours", [1, -1])
async def test_an_impossible_stretch_is_refused(stage: OpenStage, hours: int) -> None:
    async with open_branch(stage) as b:
        now = await b.s.clock.now()
        with pytest.raises(Invalid, match="in the future" if hours > 0 else "not before"):
            await b.reconcile(since=now, until=now + timedelta(hours=hours))


BAD_SOURCES: list[tuple[dict[str, Any], str]] = [
    ({"kinds": {}}, "covers no kind"),
    ({"kinds": {"card.charge": Flow.IN}}, "begins with its vendor"),
    ({"mirror": "bank account"}, "not an account path"),
    ({"lag_s": -1.0}, "must not be negative"),
    ({"every_s": 0.0}, "must be positive"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD_SOURCES)
async def test_a_source_that_cannot_work_is_refused_at_the_start(
    stage: OpenStage, changes: dict[str, Any], reason: str
) -> None:
    async with open_branch(stage, **changes) as b:
        with pytest.raises(Invalid, match=reason):
            await b.reconcile()


async def test_a_mirror_account_must_not_be_guarded(stage: OpenStage) -> None:
    """Our own limits must not keep the ledger from recording what the vendor shows."""
    async with open_branch(stage, mirror="bank/guarded") as b:
        async with begin(b.s.database, b.s.feed) as tx:
            await guard(tx, Account("bank/guarded", EUR))
        with pytest.raises(Invalid, match="is guarded"):
            await b.reconcile()


async def test_the_books_of_both_sides_are_compared(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        [books] = await compare_balances(b.read, b.statement)
        assert (books.ours, books.theirs, books.equal) == (books.theirs, books.ours, True)
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        [books] = await compare_balances(b.read, b.statement)
        assert not books.equal
        await b.after_the_lag()
        [books] = await compare_balances(b.read, b.statement)
        assert (books.equal, books.suspense.minor) == (True, 7)
