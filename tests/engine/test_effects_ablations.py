"""With a safeguard of the effects removed, named tests fail. A check that cannot fail is none."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from payonce.engine.effects import Answer, identity, send, store
from payonce.engine.effects import run as run_module
from payonce.engine.effects.model import OPEN, EffectRecord, Result, State, next_action, state_after
from payonce.engine.effects.open_effects import hold_effects, left_open
from payonce.engine.effects.send import Run
from payonce.engine.messages import work as work_module
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Stale
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import (
    test_effects,
    test_effects_fences,
    test_effects_generations,
    test_effects_giving_up,
    test_effects_identity,
    test_effects_late_answers,
    test_effects_reviews,
    test_effects_unstorable_outcomes,
)


@asynccontextmanager
async def intent_that_is_not_kept(run: Run) -> AsyncIterator[Tx]:
    """The intent's statements run, but nothing of them remains when the process dies."""
    async with run.database.work.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            yield Tx(connection, run.feed)
        finally:
            await transaction.rollback()


@contextmanager
def no_intent_on_record() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "intent", intent_that_is_not_kept)
        patch.setattr(Run, "record", record_nowhere)
        yield


async def record_nowhere(run: Run, stored: EffectRecord, result: Result) -> EffectRecord:
    return msgspec.structs.replace(stored, state=State.PERFORMED)


async def fenced_record(run: Run, stored: EffectRecord, result: Result) -> EffectRecord:
    """The common mistake: the outcome of a run that lost its lease is ignored."""
    try:
        async with run.database.transaction() as connection:
            if not await run.queue.hold_within(connection, run.claim):
                raise Stale("not ours")
            return await store.record(connection, stored.id, stored.attempt, result, run.claim)
    except Stale:
        return await record_nowhere(run, stored, result)


def state_without_contradictions(stored: EffectRecord, attempt: int, result: Result) -> State:
    return state_after(stored, attempt, result) if stored.state in OPEN else stored.state


def move_without_deadline(stored: EffectRecord, *arguments: Any) -> Any:
    return next_action(msgspec.structs.replace(stored, busy_until=None), *arguments)


async def nothing_is_open(*arguments: Any) -> None:
    return None


async def only_what_is_on_record(work: Work, read: Reader | Tx | None = None) -> str | None:
    found = await left_open(read or work.read, work.message.id)
    return None if found is None else found.label


async def no_news(tx: Tx, message_id: UUID, since: datetime, known: object) -> tuple[EffectRecord | None, bool]:
    still_open, _ = await hold_effects(tx, message_id, since, ())
    return still_open, False


async def surely_once(writing: Coroutine[Any, Any, Any]) -> Any:
    """Survives one cancellation only."""
    task = asyncio.create_task(writing)
    send._writing.add(task)
    task.add_done_callback(send._writing.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


ENDS = ("return", "commit")
ending_on_what_was_left = test_effects_giving_up.test_a_later_run_cannot_end_the_message_on_what_an_earlier_one_left
unseen_answer = test_effects_late_answers.test_an_object_does_not_come_to_its_end_on_an_answer_that_nobody_has_seen
ending_on_an_unknown_effect = (
    test_effects_giving_up.test_a_handler_cannot_end_its_message_on_an_effect_whose_end_is_unknown
)

turning_up_before_the_intent = (
    test_effects_generations.test_a_generation_that_turns_up_before_the_intent_keeps_the_next_one_back
)

LIVE_CLAIM = r"token = \$2 and lease_until > payonce\.lease_now\(\)"

ABLATIONS: Ablations = {
    "the intent on record": (
        no_intent_on_record,
        [
            given(test_effects.test_a_blind_effect_is_tried_once_and_then_a_persons, "stop after"),
            given(test_effects.test_a_harmless_effect_is_abandoned_and_done_in_the_next_generation, "stop after"),
        ],
    ),
    "the fence of the intent": (
        lambda: without(LIVE_CLAIM, "$2::bigint is not null", within="$3::float8"),
        [
            test_effects_fences.test_a_stale_run_records_and_sends_nothing,
            test_effects_fences.test_a_run_whose_lease_ended_sends_nothing_even_if_nobody_took_over,
        ],
    ),
    "the end of the lease in the fence": (
        lambda: without(r"and lease_until > payonce\.lease_now\(\)$", "", within="$3::float8"),
        [test_effects_fences.test_a_run_whose_lease_ended_sends_nothing_even_if_nobody_took_over],
    ),
    "the horizon": (
        patched(store, "did_not_counts", lambda stored, horizon_s: 0.0),
        [test_effects.test_a_vendors_silence_proves_nothing_before_the_horizon],
    ),
    "the deadline of an attempt": (
        patched(run_module, "next_action", move_without_deadline),
        [given(test_effects.test_nobody_touches_a_live_attempt, test_effects.KEYED, "stop before")],
    ),
    "the compare-and-set of a further try": (
        lambda: without(r"revision = \$2 returning", "$2::bigint > 0 returning", within="attempt = attempt + 1"),
        [test_effects_fences.test_two_runs_that_find_it_unknown_at_once_replay_it_once],
    ),
    "outcomes that no fence keeps out": (
        patched(Run, "record", fenced_record),
        [
            test_effects_fences.test_a_late_answer_is_appended_and_the_same_answer_changes_nothing,
            given(test_effects_fences.test_a_late_answer_that_contradicts_the_record_opens_a_review, "refuse late"),
        ],
    ),
    "contradictions": (
        patched(store, "state_after", state_without_contradictions),
        [given(test_effects_fences.test_a_late_answer_that_contradicts_the_record_opens_a_review, "stop after")],
    ),
    "the look at earlier generations": (
        patched(store, "check_earlier", nothing_is_open),
        [
            given(turning_up_before_the_intent, test_effects_generations.first_of_all),
            given(turning_up_before_the_intent, test_effects_generations.once_unsent),
        ],
    ),
    "the comparison with what is on record": (
        patched(run_module, "check_same", nothing_is_open),
        [
            test_effects_identity.test_what_an_effect_declares_is_compared_without_preparing_again,
            test_effects_identity.test_the_same_key_of_another_service_is_an_error_that_names_both,
            test_effects_identity.test_a_message_that_reuses_a_key_is_parked_at_once_and_its_business_object_not_given_up,
        ],
    ),
    "the look at how a request is prepared": (
        patched(identity, "_check_repeatable", lambda *_: None),
        [test_effects_identity.test_a_request_that_would_differ_in_the_next_run_is_refused_in_the_first],
    ),
    "a person's word that ends with what they did not know": (
        lambda: without(
            r"ruled_out and not \$10", "ruled_out and $10::boolean is not null", within="ruled_out and not"
        ),
        [test_effects_reviews.test_a_send_again_is_void_once_a_try_ends_that_the_person_did_not_know_of],
    ),
    "giving up that becomes a review": (
        patched(Work, "give_up", nothing_is_open),
        [test_effects_giving_up.test_giving_up_on_an_unknown_effect_parks_the_message_and_asks_a_person],
    ),
    "no end on an open effect": (
        patched(Work, "open_effect", nothing_is_open),
        [
            given(ending_on_an_unknown_effect, "return"),
            given(ending_on_an_unknown_effect, "commit"),
            test_effects_giving_up.test_a_second_effect_that_ends_does_not_hide_the_first,
            given(test_effects_giving_up.test_a_refusal_does_not_hide_an_effect_that_is_under_way, "stop before"),
        ],
    ),
    "the look at what earlier runs left": (
        patched(work_module, "FIRST_TOKEN", 1_000),
        [given(ending_on_what_was_left, way, end) for way in ("retried", "held", "redriven") for end in ENDS],
    ),
    "the effects that are not on record yet": (
        patched(Work, "open_effect", only_what_is_on_record),
        [test_effects_giving_up.test_a_run_does_not_end_while_an_effect_of_it_is_still_being_prepared],
    ),
    "the waking of what waits for the answer": (
        patched(store, "wake_message", nothing_is_open),
        [
            test_effects_late_answers.test_what_a_statement_finds_wakes_the_message_that_was_parked_with_it,
            test_effects_late_answers.test_a_late_answer_of_the_vendor_wakes_the_message_that_was_parked_with_it,
        ],
    ),
    "the look for news before giving up": (
        patched(work_module, "hold_effects", no_news),
        [
            given(
                test_effects_late_answers.test_an_answer_that_comes_after_the_runs_last_look_is_acted_on,
                Answer.LOOK_AGAIN,
            ),
            given(
                test_effects_late_answers.test_an_answer_that_comes_after_the_runs_last_look_is_acted_on,
                Answer.HAPPENED,
            ),
            given(unseen_answer, Answer.HAPPENED),
            given(unseen_answer, Answer.LOOK_AGAIN),
        ],
    ),
    "the lock on effects that are given up": (
        lambda: without(r"order by e\.id for update of e", "order by e.id", within="as unheeded"),
        [test_effects_late_answers.test_an_answer_given_while_the_message_is_being_parked_wakes_it],
    ),
    "the bound of a vendor's name": (
        patched(store, "stored_reference", lambda vendor_ref: vendor_ref),
        [
            given(test_effects_unstorable_outcomes.test_an_outcome_is_kept_whatever_the_vendor_names_it, kind)
            for kind in (test_effects_unstorable_outcomes.NamedWithNul, test_effects_unstorable_outcomes.NamedAtLength)
        ],
    ),
    "the patience with cancellations": (
        patched(send, "_shielded", surely_once),
        [
            given(
                test_effects_unstorable_outcomes.test_a_run_ends_after_its_outcome_is_written_however_often_it_is_cancelled,
                2,
            )
        ],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
