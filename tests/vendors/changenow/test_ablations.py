"""With a safeguard of ChangeNOW's client taken out, named tests fail. A check that cannot fail is none."""

from decimal import Decimal
from typing import Any

import pytest

from payonce.engine.database.rate_limits import SharedBudget
from payonce.kit.http import budgeted
from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing import OpenStage
from payonce.testing.faults import Fault
from payonce.vendors.changenow import client, port, wire
from tests.ablations import Ablations, cases, given, missed, patched
from tests.vendors.changenow import test_answers, test_rate
from tests.vendors.changenow.at import at_changenow, order

TRIES = 5


async def test_a_create_in_doubt_is_never_sent_again_by_who_obeys_the_outcome(stage: OpenStage) -> None:
    """As the engine does: what was provably not sent is sent again, what may have happened is not."""
    for fault in Fault:
        if fault is Fault.DUPLICATE:
            continue
        async with at_changenow(False, fault) as at:
            for _ in range(TRIES):
                try:
                    await at.client.create(order())
                    break
                except NotSent:
                    continue
                except Unknown:
                    break
            assert len(at.simulator.books.entries) <= 1, f"{fault} made two"


async def go_at_once(*_: Any) -> None:
    return None


def nothing(*_: Any) -> None:
    return None


def in_other_words(answer: Any) -> tuple[str | None, str]:
    return None, ""


def never(_: Any) -> bool:
    return False


def as_it_stands(text: str) -> str:
    return text


ABLATIONS: Ablations = {
    "the budget": (
        patched(SharedBudget, "wait_turn", go_at_once),
        [test_rate.test_the_limit_is_never_exceeded_by_two_clients],
    ),
    "the rest that the vendor asks for": (
        patched(budgeted, "RESTING", ()),
        [test_rate.test_a_rest_that_the_vendor_asks_for_holds_every_process_back],
    ),
    "doubt about a create that was answered with an error": (
        patched(client, "Unknown", NotSent),
        [test_a_create_in_doubt_is_never_sent_again_by_who_obeys_the_outcome],
    ),
    "the look at the amount that is said back": (
        patched(wire, "_same_amount", nothing),
        [
            given(
                lambda _: test_answers.test_an_answer_about_something_else_is_never_paid_to(
                    test_answers.OTHERS["another amount"]
                )
            )
        ],
    ),
    "the look at the pair that is said back": (
        patched(wire, "_same_pair", nothing),
        [
            given(
                lambda _: test_answers.test_an_answer_about_something_else_is_never_paid_to(
                    test_answers.OTHERS["another pair"]
                )
            )
        ],
    ),
    "room for a double": (
        patched(port, "DOUBLE_STEP", Decimal(0)),
        [given(lambda _: test_answers.test_a_number_that_went_through_a_double_is_the_one_that_was_ordered())],
    ),
    "the bound on digits": (
        patched(wire, "DIGITS_MAX", 10**9),
        [
            given(
                lambda _: test_answers.test_an_answer_about_something_else_is_never_paid_to(
                    test_answers.OTHERS["endless digits"]
                )
            )
        ],
    ),
    "the vendor's own word for a refusal": (
        patched(client, "_error", in_other_words),
        [
            given(lambda _: test_answers.test_a_definite_no_has_the_vendors_word_for_it("create", "deposit_too_small")),
            given(lambda _: test_answers.test_an_exchange_is_unknown_only_by_the_vendors_word()),
        ],
    ),
    "the look whether a no came whole": (
        patched(client, "_is_broken", never),
        [
            given(lambda _: test_answers.test_a_no_that_was_cut_on_its_way_decides_nothing("create", 400)),
            given(lambda _: test_answers.test_a_no_that_was_cut_on_its_way_decides_nothing("estimate", 400)),
        ],
    ),
    "taking secrets out of what the vendor says": (
        patched(client, "redact", as_it_stands),
        [given(lambda _: test_answers.test_a_long_message_with_a_secret_is_cut_and_redacted())],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, Unknown, NotSent)
