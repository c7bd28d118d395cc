"""With a safeguard of the controls removed, named tests fail. A check that cannot fail is none."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from payonce.engine.controls import actions, freeze_rules, texts
from payonce.engine.effects import Findable, Keyed
from payonce.engine.effects.send import Run
from payonce.engine.messages import worker
from payonce.kit.outcomes import Retry
from payonce.testing import OpenStage, Stage
from tests.ablations import Ablations, Check, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import test_approvals, test_freezes, test_purge, test_velocity_limits
from tests.engine.effects_stage import HORIZON_S

LOCK = "perform pg_advisory_xact_lock_shared(112641513454181);"


def altered(change: Callable[[Stage], Awaitable[None]], check: Check) -> Check:
    """The check on databases from which the owner has removed something."""

    def on(stage: OpenStage) -> Awaitable[None]:
        @asynccontextmanager
        async def open_altered() -> AsyncIterator[Stage]:
            async with stage() as s:
                await change(s)
                yield s

        return check(open_altered)

    return on


@contextmanager
def nothing() -> Iterator[None]:
    yield


async def intents_that_take_no_lock(s: Stage) -> None:
    definition = await s.owner.fetchval("select pg_get_functiondef('payonce.freeze_on'::regproc)")
    assert LOCK in definition
    await s.owner.execute(definition.replace(LOCK, ""))


async def intents_that_look_before_they_lock(s: Stage) -> None:
    """One statement has one snapshot: it does not see commits made while it waited for the lock."""
    definition = await s.owner.fetchval("select pg_get_functiondef('payonce.freeze_on'::regproc)")
    looking = definition.replace(LOCK, "").replace("freeze_on(", "look_for_freeze(").replace("VOLATILE", "")
    await s.owner.execute(looking.replace("LANGUAGE plpgsql", "LANGUAGE plpgsql STABLE"))
    await s.owner.execute(
        definition.replace(LOCK, "").replace(
            definition[definition.index("return query") : definition.index("end\n")].replace(LOCK, ""),
            "return query select f.* from (select pg_advisory_xact_lock_shared(112641513454181) offset 0) locked,"
            " lateral payonce.look_for_freeze(of_vendor, of_asset, of_tenant, of_service) f;\n",
        )
    )


async def approvals_without_the_constraint(s: Stage) -> None:
    await s.owner.execute("alter table payonce.approvals drop constraint a_second_person_decides")


async def no_lock_for_the_freezer(tx: Any) -> None:
    pass


async def check_first_tries_alone(run: Run, tx: Any, *arguments: Any, again: bool, **more: Any) -> None:
    if not again:
        await checked(run, tx, *arguments, again=again, **more)


checked = Run.check


class NeverHeld(Retry):
    """Nothing raises it, so a hold is a retry like any other."""


OPEN_EFFECTS = r"not exists \( select from payonce\.effects e where e\.message_id = messages\.id [^)]*\)\)"

ABLATIONS: Ablations = {
    "the lock of the intents": (
        nothing,
        [altered(intents_that_take_no_lock, test_freezes.test_an_intent_that_commits_after_the_freeze_has_seen_it)],
    ),
    "the look after the lock": (
        nothing,
        [
            altered(
                intents_that_look_before_they_lock,
                test_freezes.test_an_intent_that_commits_after_the_freeze_has_seen_it,
            )
        ],
    ),
    "the lock of the freezer": (
        patched(freeze_rules, "_take_lock", no_lock_for_the_freezer),
        [test_freezes.test_an_intent_that_commits_after_the_freeze_has_seen_it],
    ),
    "the look at what had begun before": (
        lambda: without(r"busy_until > payonce\.due_now\(\)", "false", within="max(busy_until)"),
        [test_freezes.test_a_freeze_tells_of_the_sends_that_had_begun_and_waits_for_their_end],
    ),
    "the check of further tries": (
        patched(Run, "check", check_first_tries_alone),
        [
            test_freezes.test_a_further_try_is_frozen_too,
            test_freezes.test_a_frozen_vendor_is_not_even_fenced,
            test_velocity_limits.test_what_never_left_counts_when_it_is_sent_at_last,
            test_velocity_limits.test_a_next_generation_counts_anew_and_the_abandoned_one_no_more,
        ],
    ),
    "holding without using up attempts": (
        patched(worker, "Held", NeverHeld),
        [test_freezes.test_a_worker_with_claimed_messages_sends_none_and_gives_none_up],
    ),
    "the lock of the limits": (
        lambda: without(r"order by id for update", "order by id", within="payonce.velocity_limits"),
        [test_velocity_limits.test_a_second_intent_waits_until_the_first_one_counts],
    ),
    "counting from the send": (
        lambda: without(r"first_attempt_at > payonce", "created_at > payonce"),
        [test_velocity_limits.test_what_never_left_counts_when_it_is_sent_at_last],
    ),
    "not counting oneself": (
        lambda: without(r"\$5::uuid is null or id <> \$5", "$5::uuid is null or true"),
        [test_velocity_limits.test_a_send_afresh_within_the_window_is_not_counted_twice],
    ),
    "the second person": (
        patched(texts, "same_person", lambda one, other: False),
        [
            altered(
                approvals_without_the_constraint,
                lambda stage: test_approvals.test_nobody_agrees_with_themselves(stage, "ada"),
            )
        ],
    ),
    "the constraint for a second person": (
        nothing,
        [altered(approvals_without_the_constraint, test_approvals.test_the_table_itself_wants_a_second_person)],
    ),
    "the amount of what may be sent after another look": (
        lambda: without(r"safety = 'keyed' and key_valid_until <= payonce\.due_now\(\)", "true"),
        [
            given(test_approvals.test_to_look_again_needs_a_second_person_where_a_send_may_follow, Keyed(3_600.0)),
            given(
                test_approvals.test_to_look_again_needs_a_second_person_where_a_send_may_follow,
                Findable(HORIZON_S, test_approvals.forgets),
            ),
        ],
    ),
    "the look at the messages when it is granted": (
        patched(actions, "fingerprint", lambda ids: "the same"),
        [test_approvals.test_a_redrive_whose_messages_changed_is_denied_and_none_is_redriven],
    ),
    "keeping messages with open effects": (
        lambda: without(OPEN_EFFECTS, "true"),
        [test_purge.test_a_purge_leaves_messages_with_open_effects],
    ),
    "shares that unknown effects keep": (
        lambda: without(r"'intended', 'unknown', 'review', 'performed'", "'performed'"),
        [given(test_velocity_limits.test_only_what_definitely_did_not_happen_frees_its_share, "lost after", "1.00")],
    ),
}


WAITS_IN_VAIN = "the look at what had begun before"
"""Without it the test waits until its time-out, which is a minute."""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(*each.values, marks=pytest.mark.full if each.values[0] == WAITS_IN_VAIN else each.marks)
        for each in cases(ABLATIONS)
    ],
)
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
