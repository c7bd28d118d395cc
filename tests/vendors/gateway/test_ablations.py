"""With a safeguard of the gateway's client taken out, named tests fail. A check that cannot fail is none."""

from typing import Any

import pytest

from payonce.kit import redact
from payonce.kit.http import budgeted
from payonce.kit.outcomes import NotSent, Refused, Retry, Unknown
from payonce.testing import OpenStage
from payonce.testing.faults import Fault
from payonce.vendors.gateway import client, port, wire
from tests.ablations import Ablations, cases, given, missed, patched
from tests.vendors.gateway import test_answers, test_opening
from tests.vendors.gateway.at import at_gateway, order

TRIES = 5
BELIEVED = ("another amount", "another reference", "another card", "a failure called created")


async def test_who_sends_again_only_what_was_not_sent_charges_once_at_a_gateway_without_keys(stage: OpenStage) -> None:
    """As an engine does that trusts no key: what was provably not sent is sent again, what may have happened is not."""
    for fault in Fault:
        if fault is Fault.DUPLICATE:
            continue
        async with at_gateway(False, fault) as at:
            for number in range(TRIES):
                try:
                    await at.client.charge(order(at.token, key=f"k-{number}"))
                    break
                except NotSent:
                    continue
                except Unknown:
                    break
            assert len(at.simulator.books.charges) <= 1, f"{fault} charged twice"


def as_it_stands(text: str) -> str:
    return text


def believed(document: Any, order: Any) -> port.Charge:
    return wire.charge(document)


def taken_for_a_no(*arguments: Any) -> Refused:
    return Refused("refused")


def fits_anything(_: str) -> bool:
    return True


class Anything:
    fullmatch = staticmethod(fits_anything)


async def about(_: OpenStage, case: str) -> None:
    await test_answers.test_an_order_is_believed_only_when_the_answer_is_about_it(case)


ABLATIONS: Ablations = {
    "doubt about an order that was answered with an error": (
        patched(client, "_unknown", lambda answer: NotSent("not sent")),
        [test_who_sends_again_only_what_was_not_sent_charges_once_at_a_gateway_without_keys],
    ),
    "the look whether the answer is about this charge": (
        patched(wire, "charged", believed),
        [given(about, case) for case in BELIEVED],
    ),
    "the look whether a 402 is about this charge": (
        patched(client, "_declined", lambda answer, order: port.Declined("card_declined", "no")),
        [
            given(
                lambda _: test_answers.test_a_402_that_is_no_word_about_this_charge_leaves_it_open(
                    test_answers.no("card_declined", reference="inv-2:1")
                )
            )
        ],
    ),
    "the key that is not taken as no refusal": (
        patched(client, "NotAllowed", taken_for_a_no),
        [given(lambda _: test_answers.test_a_key_that_is_not_taken_says_nothing_of_the_charge("charge", 401, b""))],
    ),
    "the gateway's own word for a refusal": (
        patched(client, "DEFINITE", ()),
        [
            given(
                lambda _: test_answers.test_a_definite_no_has_the_gateways_word_for_it(
                    "refund", 422, "amount_too_large"
                )
            )
        ],
    ),
    "the look at what is handed in as a token": (
        patched(client, "_TOKEN", Anything),
        [given(lambda _: test_answers.test_nothing_that_looks_like_a_card_number_is_ever_sent())],
    ),
    "the one order of metadata": (
        patched(wire, "metadata", lambda order: order.metadata),
        [
            given(
                lambda _: (
                    test_answers.test_a_charge_goes_out_with_the_key_and_the_same_body_whatever_the_order_of_its_metadata()
                )
            )
        ],
    ),
    "taking secrets out of what the gateway says": (
        patched(client, "redact", as_it_stands),
        [given(lambda _: test_answers.test_a_card_number_and_a_key_that_are_said_back_reach_no_error("charge", 402))],
    ),
    "taking card numbers out of texts": (
        patched(redact, "_without_cards", as_it_stands),
        [given(lambda _: test_answers.test_a_card_number_and_a_key_that_are_said_back_reach_no_error("charge", 503))],
    ),
    "the rest that the gateway asks for": (
        patched(budgeted, "RESTING", ()),
        [test_opening.test_a_rest_that_the_gateway_asks_for_holds_every_process_back],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, Unknown, NotSent, Retry, TypeError)
