"""With a safeguard of usage taken out of the store or of a statement, named tests fail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest

from payonce.services.billing.subscriptions.store.usage import UsageRefused
from payonce.testing import OpenStage, Stage
from tests.ablations import Ablations, Check, cases, missed
from tests.conformance.wire import without
from tests.services.billing.usage import test_usage, test_usage_sync, test_usage_together

NOTICED: Final = (
    AssertionError,
    pytest.fail.Exception,
    UsageRefused,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.DeadlockDetectedError,
)
SAME_PERIOD: Final = "c.period_start = excluded.period_start"
IN_THE_FUNCTION: Final[dict[str, tuple[str, str, Check]]] = {
    "the look for the event": (
        "e.event_id = event;",
        "e.event_id = event and false;",
        test_usage.test_a_repetition_gets_the_first_answer_and_counts_nothing,
    ),
    "the wait for whoever has the same event": (
        "perform pg_advisory_xact_lock(hash",
        "perform hashint8(hash",
        test_usage.test_one_event_that_comes_at_once_from_many_sides_is_counted_once,
    ),
    "the comparison with the first event": (
        "known.feature = feature_asked and known.delta = delta_asked",
        "true",
        test_usage.test_an_event_that_was_another_one_is_refused,
    ),
    "the limit in the update": (
        f"or case when {SAME_PERIOD} then c.used else 0 end + answer.counted\n                <= answer.allowed",
        "or true",
        test_usage.test_at_once_on_many_connections_the_limit_is_kept_exactly,
    ),
    "the limit for the first event": (
        "answer.allowed is null or answer.counted <= answer.allowed",
        "true",
        test_usage.test_no_limit_is_null_and_zero_is_none_at_all,
    ),
    "the beginning at zero": (
        f"used = case when {SAME_PERIOD} then c.used else 0 end",
        "used = c.used",
        test_usage.test_a_new_period_begins_at_zero_without_anybody_resetting_it,
    ),
    "the order of periods": (
        "where c.period_start <= excluded.period_start and",
        "where",
        test_usage.test_whoever_read_the_period_before_a_renewal_does_not_set_the_counter_back,
    ),
    "the bound of what is given back": (
        "greatest(delta_asked, -coalesce(counter.used, 0))",
        "least(delta_asked, 0)",
        test_usage.test_given_back_is_at_most_what_was_used,
    ),
    "the question of the state": (
        "mine.state not in ('trialing', 'active', 'past_due')",
        "false",
        test_usage.test_what_may_be_used_by_the_subscriptions_state,
    ),
    "the end by the customer's clock": (
        "mine.cancel_at_period_end and",
        "false and",
        test_usage.test_one_that_ends_with_its_period_ends_by_the_customers_clock,
    ),
    "the order of locks": (
        "perform pg_advisory_xact_lock(k.key)",
        "perform k.key",
        test_usage_together.test_two_calls_with_the_same_events_do_not_wait_in_a_circle,
    ),
}

IN_STATEMENTS: Ablations = {
    "the mark of what is rolled": (
        lambda: without("set rolled = true", "set rolled = false"),
        [test_usage_sync.test_what_comes_later_is_added],
    ),
    "the sum of what was rolled before": (
        lambda: without(r"total = t.total \+ excluded.total", "total = excluded.total"),
        [test_usage_sync.test_what_comes_later_is_added],
    ),
    "the wait until it is in its total": (
        lambda: without("where rolled and created_at", "where created_at"),
        [test_usage_sync.test_old_events_are_removed_when_they_are_in_their_total],
    ),
    "the account of a reset": (
        lambda: without(r"s.account_id = \$1 and", r"$1::text <> '' and", within="forgiven"),
        [test_usage.test_a_reset_makes_the_allowance_whole_and_touches_nothing_else],
    ),
    "what a reset forgives": (
        lambda: without(r"forgiven = c.forgiven \+ standing.used", "forgiven = c.forgiven"),
        [test_usage.test_a_reset_makes_the_allowance_whole_and_touches_nothing_else],
    ),
}


def altered(stage: OpenStage, text: str, instead: str) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        async with stage() as s:
            definition = await s.owner.fetchval(
                "select pg_get_functiondef(oid) from pg_proc where strpos(prosrc, $1) > 0 and proname like 'use%'", text
            )
            if definition is None:
                raise LookupError(f"the function holds {text!r} no more: the ablation takes nothing out")
            await s.owner.execute(definition.replace(text, instead))
            yield s

    return opened


@pytest.mark.parametrize("name", IN_THE_FUNCTION)
async def test_without_it_in_the_function_the_named_test_fails(stage: OpenStage, name: str) -> None:
    text, instead, check = IN_THE_FUNCTION[name]
    with pytest.raises(NOTICED):
        await check(altered(stage, text, instead))


@pytest.mark.parametrize(("name", "number"), cases(IN_STATEMENTS))
async def test_without_it_in_a_statement_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(IN_STATEMENTS, name, number, stage, asyncpg.IntegrityConstraintViolationError)
