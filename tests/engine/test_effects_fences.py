"""What keeps an effect from being sent, and what no fence may keep from being recorded."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from payonce.engine.effects import (
    TRANSITIONS,
    Answer,
    Blind,
    Harmless,
    IntentCheck,
    Keyed,
    Rebroadcast,
    Safety,
    Sending,
    State,
    answer_review,
    reviews,
    send,
    store,
)
from payonce.engine.effects import run as run_module
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid, Refused, Retry, Stale, Unknown
from payonce.testing import OpenStage
from tests.engine.effects_stage import HORIZON_S, PAY, TIMEOUT_S, Order, Pay, Receipt, open_context
from tests.engine.test_effects import FENCED, KEYED, PAID


async def test_a_stale_run_records_and_sends_nothing(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        stale = await context.claim()
        await context.take_over()
        with pytest.raises(Stale):
            await context.pay(stale)
        assert context.vendor.calls == []
        assert await context.state() == []
        assert await context.business() == 0


async def test_a_run_whose_lease_ended_sends_nothing_even_if_nobody_took_over(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        await context.s.clock.advance_leases(PAY.lease_s)
        with pytest.raises(Stale):
            await context.pay(work)
        assert context.vendor.calls == []


async def test_take_over_waits_for_an_intent_that_is_being_committed(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()

        async def move_slowly(tx: Tx) -> None:
            await context.s.clock.advance_leases(PAY.lease_s + 1)
            assert await context.queue.reap() == 0

        assert await work.effect(Pay(context.vendor, KEYED), key="p-1", intent=move_slowly) == PAID


async def test_an_intent_that_fails_leaves_nothing(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        work = await context.claim()

        async def fail(tx: Tx) -> None:
            await tx.execute("insert into business values ('half')")
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await work.effect(Pay(context.vendor, KEYED), key="p-1", intent=fail)
        assert context.vendor.calls == []
        assert (await context.state(), await context.events(), await context.business()) == ([], [], 0)


@pytest.mark.parametrize("no", [Retry("frozen"), Refused("over the limit")])
async def test_a_check_in_the_intent_transaction_keeps_it_from_being_sent(stage: OpenStage, no: Exception) -> None:
    seen: list[Sending] = []

    async def frozen(tx: Tx, sending: Sending) -> None:
        seen.append(sending)
        raise no

    check: IntentCheck = frozen
    async with open_context(stage, KEYED) as context:
        work = await context.claim((check,))
        with pytest.raises(type(no)):
            await context.pay(work, scope="payout 1")
        order = Order("p-1:1", 100, b"\x00signed")
        assert seen == [Sending("test.pay", "test", "p-1", "payout 1", order, None, "", None, False)]
        assert context.vendor.calls == []
        assert await context.state() == []


async def test_a_replay_is_checked_too(stage: OpenStage) -> None:
    again: list[bool] = []

    async def note(tx: Tx, sending: Sending) -> None:
        again.append(sending.again)

    async with open_context(stage, KEYED, "lost after", honours_keys=True) as context:
        work = await context.claim((note,))
        with pytest.raises(Unknown):
            await context.pay(work)
        assert await context.pay(work) == PAID
        assert again == [False, True]


async def test_a_run_that_was_held_up_before_sending_does_not_send(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped after its intent and wakes up later checks its own clock first."""
    async with open_context(stage, Blind()) as context:
        work = await context.claim()
        with monkeypatch.context() as patch:
            patch.setattr(send, "time", Ahead(TIMEOUT_S))
            with pytest.raises(Retry, match="the run was delayed"):
                await context.pay(work)
        assert context.vendor.calls == []
        assert await context.events() == ["started", "not_sent"]
        assert await context.pay(work) == PAID, "proven unsent, it may be sent, blind or not"


@pytest.mark.parametrize("safety", [KEYED, FENCED, Rebroadcast()], ids=["keyed", "findable", "rebroadcast"])
async def test_a_process_stopped_before_its_send_that_wakes_after_another_finished_sends_nothing(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, safety: Safety
) -> None:
    committed, woken = asyncio.Event(), asyncio.Event()

    async def stand_still_once(*arguments: Any) -> Any:
        monkeypatch.setattr(run_module, "send", send.send)
        committed.set()
        await woken.wait()
        with monkeypatch.context() as patch:
            patch.setattr(send, "time", Ahead(TIMEOUT_S + HORIZON_S))
            return await send.send(*arguments)

    async with open_context(stage, safety) as context:
        monkeypatch.setattr(run_module, "send", stand_still_once)
        stale = asyncio.create_task(context.pay(await context.claim()))
        await committed.wait()
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S + 1)
        assert await context.pay(successor) == PAID
        woken.set()
        with pytest.raises(Retry, match="the run was delayed"):
            await stale
        assert len(context.vendor.calls) == 1
        assert await context.state() == [(1, "performed")]
        assert (await context.events())[-1] == "not_sent"


async def test_two_runs_that_find_it_unknown_at_once_replay_it_once(stage: OpenStage) -> None:
    both_have_looked, looking = asyncio.Barrier(2), [True, True]

    async def replay_together(*arguments: Any) -> Any:
        if looking:
            looking.pop()
            await both_have_looked.wait()
        return await send.send_again(*arguments)

    async with open_context(stage, KEYED, "lost after", honours_keys=True) as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_module, "send_again", replay_together)
            results = await asyncio.gather(context.pay(work), context.pay(work), return_exceptions=True)
        assert all(result == PAID or isinstance(result, Retry) for result in results)
        assert len(context.vendor.calls) == 2


async def test_a_cancelled_run_leaves_it_unknown(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        run = await context.stop_in_the_vendor(await context.claim(), "stop before")
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await context.state() == [(1, "unknown")]
        assert await context.events() == ["started", "unknown"]


async def test_a_late_answer_is_appended_and_the_same_answer_changes_nothing(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, honours_keys=True) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "stop after")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(successor) == PAID
        context.vendor.resume.set()
        assert await stale == PAID
        assert await context.events() == ["started", "started", "performed", "performed"]
        assert await context.state() == [(1, "performed")]


async def test_a_late_answer_alone_is_enough(stage: OpenStage) -> None:
    """Nobody resolved it meanwhile: the stale run's outcome is the truth."""
    async with open_context(stage, Blind()) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "stop before")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        with pytest.raises(Retry, match="person"):
            await context.pay(successor)
        context.vendor.resume.set()
        assert await stale == PAID
        assert await context.pay(successor) == PAID
        assert await context.state() == [(1, "performed")]


@pytest.mark.parametrize("late", ["refuse late", "stop after"])
async def test_a_late_answer_that_contradicts_the_record_opens_a_review(stage: OpenStage, late: str) -> None:
    async with open_context(stage, KEYED, honours_keys=True) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), late)
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        context.vendor.faults.append("other receipt")
        assert (await context.pay(successor)).number == "n-other"
        context.vendor.resume.set()
        with pytest.raises((Retry, Unknown)):
            await stale
        assert await context.state() == [(1, "review")]
        assert await context.s.owner.fetchval("select review_cause from payonce.effects") == "contradiction"
        assert await context.s.owner.fetchval("select outcome->>'number' from payonce.effects") == "n-other"


async def test_a_late_charge_after_a_recorded_refusal_opens_a_review(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, honours_keys=True) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "stop after")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        context.vendor.faults.append("refuse")
        with pytest.raises(Refused):
            await context.pay(successor)
        context.vendor.resume.set()
        with pytest.raises(Retry, match="contradiction"):
            await stale
        assert await context.state() == [(1, "review")]


async def test_a_late_outcome_of_an_abandoned_harmless_generation_is_only_noted(stage: OpenStage) -> None:
    async with open_context(stage, Harmless()) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), "stop before")
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        assert await context.pay(successor) == Receipt("n-p-1:2", "p-1:2")
        context.vendor.resume.set()
        with pytest.raises(Retry):
            await stale
        assert await context.state() == [(1, "abandoned"), (2, "performed")]
        assert context.vendor.times() == {"p-1:1": 1, "p-1:2": 1}


@pytest.mark.parametrize("late", ["stop before", "stop before, lost after"])
async def test_a_try_that_ends_after_a_person_ruled_it_out_opens_the_question_again(
    stage: OpenStage, late: str
) -> None:
    async with open_context(stage, Blind()) as context:
        stale = await context.stop_in_the_vendor(await context.claim(), late)
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        with pytest.raises(Retry, match="person"):
            await context.pay(successor)
        async with context.s.database.transaction() as connection:
            tx = Tx(connection, context.s.feed)
            [review] = await reviews(tx)
            await answer_review(tx, review.effect.id, Answer.DID_NOT, "ann", "gone", revision=review.effect.revision)
        with pytest.raises(Refused):
            await context.pay(successor)
        context.vendor.resume.set()
        with pytest.raises((Retry, Unknown)):
            await stale
        assert await context.state() == [(1, "review")]
        assert context.vendor.times() == {"p-1:1": 1}


async def test_a_vendor_reference_that_another_effect_has_opens_a_review(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "other receipt", "other receipt") as context:
        work = await context.claim()
        assert (await context.pay(work, "p-1")).number == "n-other"
        with pytest.raises(Retry, match="same_reference"):
            await context.pay(work, "p-2")
        states = await context.s.owner.fetch("select key, state from payonce.effects order by key")
        assert list(map(tuple, states)) == [("p-1", "performed"), ("p-2", "review")]


async def test_of_one_scope_only_one_effect_is_open(stage: OpenStage) -> None:
    async with open_context(stage, KEYED, "lost after", honours_keys=True) as context:
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work, "p-1", "cart 7")
        with pytest.raises(Retry, match="of cart 7 is open"):
            await context.pay(work, "p-2", "cart 7")
        await context.pay(work, "p-1", "cart 7")
        await context.pay(work, "p-2", "cart 7")
        assert context.vendor.times() == {"p-1:1": 1, "p-2:1": 1}


async def test_an_answer_that_cannot_be_stored_is_unknown_and_not_lost(stage: OpenStage) -> None:
    async with open_context(stage, FENCED, "garbage") as context:
        work = await context.claim()
        with pytest.raises(Unknown, match="cannot be stored"):
            await context.pay(work)
        await context.s.clock.advance(TIMEOUT_S + HORIZON_S)
        assert await context.pay(work) == PAID
        assert context.vendor.times() == {"p-1:1": 1}


async def test_an_outcome_whose_record_was_not_confirmed_is_on_record_once(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, failures = store.record_performed, [ConnectionResetError("the server restarts")]

    async def unconfirmed(*arguments: Any) -> Any:
        recorded = await record(*arguments)
        if failures:
            raise failures.pop()
        return recorded

    monkeypatch.setattr(store, "record_performed", unconfirmed)
    monkeypatch.setattr(send, "RECORD_WAIT_S", 0.0)
    async with open_context(stage, Blind()) as context:
        assert await context.pay(await context.claim()) == PAID
        rows = await context.s.owner.fetch("select event from payonce.effect_attempts order by id")
        assert [row["event"] for row in rows] == ["started", "performed"]


async def test_an_outcome_waits_for_a_store_that_is_away(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    record, failures = store.record_performed, [ConnectionResetError("the server restarts")]

    async def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await record(*arguments)

    monkeypatch.setattr(store, "record_performed", fail_once)
    monkeypatch.setattr(send, "RECORD_WAIT_S", 0.0)
    async with open_context(stage, Blind()) as context:
        assert await context.pay(await context.claim()) == PAID
        assert not failures
        assert await context.state() == [(1, "performed")]


async def test_an_outcome_that_the_store_refuses_is_left_to_the_next_run(stage: OpenStage) -> None:
    async with open_context(stage, Blind()) as context:
        run = await context.stop_in_the_vendor(await context.claim(), "stop before")
        await context.s.owner.execute(
            "alter table payonce.effect_attempts add constraint away check (event <> 'performed') not valid"
        )
        context.vendor.resume.set()
        with pytest.raises(asyncpg.CheckViolationError):
            await run
        assert await context.state() == [(1, "intended")]
        successor = await context.take_over()
        await context.s.clock.advance(TIMEOUT_S + 1)
        with pytest.raises(Retry, match="person: blind"):
            await context.pay(successor)


async def test_attempts_are_append_only(stage: OpenStage) -> None:
    async with open_context(stage, KEYED) as context:
        await context.pay(await context.claim())
        for statement in ("update payonce.effect_attempts set detail = ''", "delete from payonce.effect_attempts"):
            for session in (context.s.owner, context.s.database.work):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.execute(statement)


@pytest.mark.parametrize(
    ("lease_s", "why"), [(TIMEOUT_S, "below the queue's lease"), (2 * SEND_MAX_S, "a quarantine waits")]
)
async def test_a_timeout_that_the_lease_or_a_quarantine_does_not_cover_is_refused(
    stage: OpenStage, lease_s: float, why: str
) -> None:
    class Slow(Pay):
        timeout_s = min(lease_s, SEND_MAX_S + 1)

    async with open_context(stage, KEYED) as context:
        work = await context.claim()
        context.queue.policy = replace(PAY, lease_s=lease_s)
        with pytest.raises(Invalid, match=why):
            await work.effect(Slow(context.vendor, KEYED), key="p-1")


async def test_a_request_of_a_newer_version_is_left_to_a_newer_worker(stage: OpenStage) -> None:
    class Newer(Pay):
        version = 2

    async with open_context(stage, Keyed(10), "not sent") as context:
        work = await context.claim()
        with pytest.raises(Retry):
            await work.effect(Newer(context.vendor, context.safety), key="p-1")
        with pytest.raises(Retry, match="has version 2, but this worker knows 1"):
            await context.pay(work)


async def test_the_states_of_the_model_are_those_of_the_table(stage: OpenStage) -> None:
    async with stage() as s:
        constraint = await s.owner.fetchval(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = 'effects_state_check'"
        )
        assert {state for state in State if f"'{state}'" in constraint} == set(State) == set(TRANSITIONS)
        assert constraint.count("'") == 2 * len(State)


class Ahead:
    """The time module of a process that has just slept; the event loop keeps its own."""

    def __init__(self, by_s: float) -> None:
        self._by_s = by_s

    def monotonic(self) -> float:
        return time.monotonic() + self._by_s
