"""Queries for operators: effects, controls, leases, seals and statements, page by page."""

import pytest

from payonce.engine.audit import notes, seal_state
from payonce.engine.controls import (
    Approval,
    ReviewAnswer,
    answer_review_action,
    approval_of,
    deny,
    freeze,
    freeze_of,
    lift,
    set_threshold,
    submit,
    unknown_targets,
    waiting_approval,
)
from payonce.engine.database.leases import acquire, lease_statuses, release
from payonce.engine.effects import Answer, State
from payonce.engine.effects.meter import asset_flows
from payonce.engine.effects.queries import effects, open_counts
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import coverages, explain, suspense_totals, unmatched
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.audit_notes import leading, noted, sealed
from tests.engine.bank import eur, open_branch
from tests.engine.controls_stage import Till, euros, open_till


async def test_open_effects_are_counted_by_state_with_amount_and_age(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.s.clock.freeze()
        await till.in_review("p-1", 300)
        await till.s.clock.advance(60)
        await till.in_review("p-2", 50)
        [work] = await till.claim()
        await till.pay(work, "p-3", 7)
        counts = await open_counts(till.read)
        assert counts[State.REVIEW].count == 2
        assert counts[State.REVIEW].amounts == [euros("3.50")]
        assert counts[State.REVIEW].oldest_s == pytest.approx(60.0)
        assert (counts[State.UNKNOWN].count, counts[State.UNKNOWN].amounts) == (0, [])
        assert State.PERFORMED not in counts


async def test_effects_page_in_both_directions(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        for number in range(5):
            [work] = await till.claim()
            await till.pay(work, f"p-{number}")
        for newest_first in (False, True):
            seen: list[str] = []
            after = None
            while page := await effects(till.read, [State.PERFORMED], limit=2, after=after, newest_first=newest_first):
                seen += [each.effect.key for each in page]
                after = page[-1].effect.id
            assert sorted(seen, reverse=newest_first) == seen
            assert len(seen) == 5


async def asked(till: Till) -> Approval:
    review = await till.in_review("p-1", 300)
    action = answer_review_action(till.s.admin)
    async with till.begin() as tx:
        await set_threshold(tx, euros("1.00"), "root")
    async with till.begin() as tx:
        given = ReviewAnswer(review.effect.id, review.effect.revision, Answer.DID_NOT, "not in the statement")
        waiting = await submit(tx, action, given, "ada", "not in the statement")
    assert isinstance(waiting, Approval)
    return waiting


async def test_an_approval_is_found_by_its_number_and_while_it_waits_by_its_subject(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        waiting = await asked(till)
        assert await approval_of(till.read, waiting.id) == waiting
        assert await waiting_approval(till.read, waiting.action, waiting.subject) == waiting
        assert await waiting_approval(till.read, waiting.action, "something else") is None
        async with till.begin() as tx:
            await deny(tx, waiting.id, "bob", "it is booked")
        assert await waiting_approval(till.read, waiting.action, waiting.subject) is None
        assert (await approval_of(till.read, waiting.id)).decided_by == "bob"
        with pytest.raises(Invalid, match="there is no approval 99"):
            await approval_of(till.read, 99)


async def test_an_approval_that_expired_waits_no_more(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        waiting = await asked(till)
        await till.s.clock.advance(2 * 86_400)
        assert await waiting_approval(till.read, waiting.action, waiting.subject) is None


async def test_a_freeze_is_found_by_its_number_also_after_its_end(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        async with till.begin() as tx:
            made = await freeze(tx, by="ada", reason="strange", vendor="bank")
        assert (await freeze_of(till.read, made.id)).in_force
        async with till.begin() as tx:
            await lift(tx, made.id, "bob", "mended")
        assert not (await freeze_of(till.read, made.id)).in_force
        with pytest.raises(Invalid, match="there is no freeze 99"):
            await freeze_of(till.read, 99)


async def test_a_vendor_or_asset_that_nothing_was_sent_with_is_told(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        [work] = await till.claim()
        await till.pay(work, "p-1")
        assert await unknown_targets(till.read, "bank", "EUR") == []
        assert await unknown_targets(till.read, None, None) == []
        assert [doubt.split("has the ")[1] for doubt in await unknown_targets(till.read, "bnak", "EURO")] == [
            "vendor 'bnak' so far; is it spelled correctly?",
            "asset 'EURO' so far; is it spelled correctly?",
        ]


async def test_leases_are_shown_with_what_is_left_of_them(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        for name in ("a", "b", "c"):
            assert await acquire(s.database, name, "here", 30.0)
        await s.clock.advance_leases(31)
        kept = await acquire(s.database, "b", "there", 30.0)
        let_go = await acquire(s.database, "c", "there", 30.0)
        assert kept
        assert let_go
        await release(s.database, let_go)
        found = await lease_statuses(s.read)
        assert [(each.name, each.holder, each.epoch, each.held) for each in found] == [
            ("a", "here", 1, False),
            ("b", "there", 2, True),
            ("c", "there", 2, False),
        ]
        assert 0 < found[1].rest_s <= 30
        assert found[0].rest_s == found[2].rest_s == 0
        assert [each.name for each in await lease_statuses(s.read, limit=1, after="a")] == ["b"]


async def test_the_seal_state_counts_what_is_behind_the_last_seal(stage: OpenStage) -> None:
    async with stage() as s:
        before = await seal_state(s.read)
        assert (before.head.number, before.sealed_at, before.unsealed) == (0, None, 0)
        await noted(s, "a", "b")
        await sealed(s, await leading(s), 2)
        await noted(s, "c")
        now = await seal_state(s.read)
        assert now.head.number >= 1
        assert now.sealed_at is not None
        assert (now.unsealed, now.oldest_unsealed_at is not None) == (1, True)


async def test_notes_are_found_by_their_place_and_all_that_lies_in_it(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await asked(till)
        await noted(till.s, "elsewhere")
        found = await notes(till.read, location="brakes")
        assert {note.location for note in found} == {"brakes.threshold", "brakes.answer review"}
        assert [note.location for note in await notes(till.read, location="brakes.threshold")] == ["brakes.threshold"]
        assert await notes(till.read, location="brake") == []


async def test_what_is_in_suspense_is_summed_by_vendor_and_asset(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        b.bank.book("bank.fee", None, -5, await b.s.clock.now())
        await b.after_the_lag()
        [first, _] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await explain(tx, first.id, "ann", "a fee")
        [total] = await suspense_totals(b.read)
        assert (total.vendor, total.count, total.unexplained, total.amount) == ("bank", 2, 1, eur(-12))
        [covered] = await coverages(b.read)
        assert (covered.vendor, covered.covered_until is not None) == ("bank", True)


async def test_the_meter_counts_what_moved_today_and_what_is_open_however_old_it_is(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.s.clock.freeze()
        await till.in_review("p-1", 42_000)
        [work] = await till.claim()
        await till.pay(work, "p-2", 500)
        await till.s.clock.advance(2 * 86_400)
        [meter] = await asset_flows(till.read)
        assert (meter.open, meter.open_count, meter.last_day_count) == (euros("420.00"), 1, 0)
        [work] = await till.claim()
        await till.pay(work, "p-3", 700)
        [meter] = await asset_flows(till.read)
        assert (meter.last_hour, meter.last_day, meter.open_count) == (euros("7.00"), euros("7.00"), 1)
        await till.s.clock.advance(7_200)
        [meter] = await asset_flows(till.read)
        assert (meter.last_hour.minor, meter.last_day_count) == (0, 1)
