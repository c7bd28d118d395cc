"""With a safeguard of reconciliation or quarantine removed, named tests fail. A check that cannot fail is none."""

from typing import Any

import asyncpg
import pytest

from payonce.engine.controls.quarantine import check
from payonce.engine.effects import adopt
from payonce.engine.reconcile import Flow, match, source, suspense
from payonce.kit.outcomes import Invalid, Retry
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.engine import test_quarantine, test_reconcile


async def does_nothing(*arguments: Any, **named: Any) -> None:
    """In place of a safeguard."""


async def says_no(*arguments: Any, **named: Any) -> bool:
    return False


NOBODY_LOOKS = """
    from (select null::timestamptz as began_at, null as reason, null as served, null as serving) nobody
"""
WITHOUT_A_LOCK = """
    grant select, insert, update on payments to payonce_service;
    do $$ begin
        execute replace(pg_get_functiondef('payonce.begin_quarantine'::regproc), 'perform pg_advisory_xact_lock(',
            'perform abs(');
    end $$
"""
WHATEVER_IT_IS = "(select revision from payonce.quarantines where id = $1 and $2::bigint > 0)"

ABLATIONS: Ablations = {
    "the look before every send": (
        lambda: without(r"from payonce\.sending_state\(\)", NOBODY_LOOKS),
        [
            test_quarantine.test_nothing_is_sent_in_quarantine_and_no_attempt_is_used_up,
            test_quarantine.test_nothing_is_sent_again_in_quarantine_but_questions_are_asked,
            test_quarantine.test_nothing_is_sent_on_a_server_that_nobody_noticed_yet,
        ],
    ),
    "the wait for intents that did not see the quarantine": (
        lambda: without(r"grant select, insert, update on payments to payonce_service", WITHOUT_A_LOCK),
        [
            test_quarantine.test_a_quarantine_waits_for_intents_that_did_not_see_it,
            test_quarantine.test_an_intent_that_comes_while_a_quarantine_begins_waits_and_sees_it,
        ],
    ),
    "attempts that a brake does not use up": (
        patched(check, "Held", Retry),
        [test_quarantine.test_nothing_is_sent_in_quarantine_and_no_attempt_is_used_up],
    ),
    "the statement of after the lag": (
        lambda: without(r"and r\.until >= \$1::timestamptz \+ make_interval\(secs => s\.lag_s \+ \$3\)", ""),
        [test_quarantine.test_release_needs_every_statement_after_the_lag_and_every_item_explained],
    ),
    "the time that a send of before may take": (
        lambda: without(r"make_interval\(secs => s\.lag_s \+ \$3\)", "make_interval(secs => s.lag_s + 0 * $3)"),
        [given(test_quarantine.test_a_release_waits_until_what_was_sent_before_has_landed_and_is_shown, 0.0)],
    ),
    "the kinds that a statement shows": (
        lambda: without(r"not k\.kind = any\(s\.kinds\)", "false"),
        [test_quarantine.test_a_kind_that_moves_money_and_is_not_on_its_vendors_statement_must_be_accepted],
    ),
    "the statement of everything that may be lost": (
        lambda: without(r"and r\.since <= \$2", ""),
        [test_quarantine.test_a_run_over_too_little_does_not_count],
    ),
    "the explanation of every item": (
        lambda: without(r"and u\.state = 'open' and u\.explanation is null", "and u.state = 'closed'"),
        [test_quarantine.test_release_needs_every_statement_after_the_lag_and_every_item_explained],
    ),
    "the runs of before the quarantine": (
        lambda: without(r"and begun_at >= coalesce\(.*'-infinity'\)", ""),
        [test_quarantine.test_a_run_that_was_broken_off_before_the_quarantine_does_not_go_on],
    ),
    "the compare-and-set of a release": (
        lambda: without(r"release_quarantine\(\$1, \$2,", f"release_quarantine($1, {WHATEVER_IT_IS},"),
        [test_quarantine.test_a_release_of_what_has_changed_since_is_stale],
    ),
    "adoption of what we forgot": (
        patched(match, "_adopt", does_nothing),
        [test_reconcile.test_what_we_forgot_and_a_payment_expects_is_adopted_and_not_sent_again],
    ),
    "the end of earlier generations": (
        patched(adopt, "_abandon_earlier", does_nothing),
        [test_reconcile.test_an_adopted_later_generation_ends_the_earlier_ones],
    ),
    "the direction of the money": (
        patched(Flow, "fits", lambda flow, amount: True),
        [test_reconcile.test_money_that_comes_in_is_never_taken_for_a_payment_of_ours],
    ),
    "the vendor's name as it is kept": (
        patched(source, "stored_reference", lambda vendor_ref: vendor_ref),
        [test_reconcile.test_a_payment_that_the_bank_gave_a_very_long_name_is_known_by_it],
    ),
    "one line for one effect": (
        patched(match, "_is_taken", says_no),
        [test_reconcile.test_a_second_line_for_a_payment_is_no_match_even_if_neither_has_a_name],
    ),
    "the vendor's lag": (
        lambda: without(r"- make_interval\(secs => \$4::float8\)", "- make_interval(secs => 0 * $4::float8)"),
        [test_reconcile.test_a_payment_that_the_bank_does_not_show_is_missing_after_the_lag_only],
    ),
    "the beginning of what is covered": (
        lambda: without(r"e\.created_at >= \$5::timestamptz", "e.created_at >= $5::timestamptz - interval '1 day'"),
        [test_reconcile.test_what_may_stand_on_a_page_that_nobody_asked_for_is_not_missing],
    ),
    "one item for one line": (
        patched(suspense, "_open_item", does_nothing),
        [
            test_reconcile.test_running_again_changes_nothing_more,
            test_reconcile.test_a_line_in_suspense_that_is_expected_later_is_adopted_and_posted_back,
        ],
    ),
    "posting back what matched": (
        patched(suspense, "settle", does_nothing),
        [test_reconcile.test_a_payment_that_the_bank_does_not_show_is_missing_after_the_lag_only],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, asyncpg.UniqueViolationError, Invalid)
