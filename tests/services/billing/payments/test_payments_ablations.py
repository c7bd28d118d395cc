"""With a safeguard of payments taken out, named tests fail. A check that cannot fail is none."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

import asyncpg
import pytest

from payonce.engine.effects import Happened
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.kit.webhooks import Secret, signed_headers
from payonce.services.billing.api import card_numbers
from payonce.services.billing.payments import effects
from payonce.services.billing.payments.effects import GatewayResult
from payonce.services.billing.payments.handlers import charges, notifications, refunds
from payonce.services.billing.payments.handlers.notifications import DueNotification, NotificationSender
from payonce.services.billing.payments.ledger import captured
from payonce.services.billing.payments.model import State, Transaction
from payonce.services.billing.payments.store import notifications as telling
from payonce.services.billing.payments.store import payment_methods, transactions
from payonce.services.billing.wire import Charge
from payonce.testing import OpenStage
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.services.billing.payments import (
    test_card_numbers,
    test_charging,
    test_gateway_events,
    test_methods,
    test_notifying,
    test_refunding,
)
from tests.services.billing.payments.counter import open_counter


async def told_before_the_commit(
    work: Work, notifier: NotificationSender, transaction: Transaction, made: GatewayResult, now: datetime
) -> None:
    notice = telling.of_charge(transaction, None, now)
    assert notice is not None
    async with work.commit() as tx:
        await transactions.end(tx, transaction.id, State.SUCCEEDED, notice, gateway_id=made.id)
        await tx.post(captured(transaction))
        await telling.send(tx, notice)
        await notifier.post(DueNotification(notice.event_id, notice.body, now, now, False, False), "immediate", 0.5)


@asynccontextmanager
async def no_pause(_: Work) -> AsyncIterator[None]:
    yield


def signed_by_the_last(secrets: Sequence[Secret], event_id: str, at: datetime, body: bytes) -> dict[str, str]:
    return signed_headers(secrets[::-1], event_id, at, body)


async def no_lock(tx: Tx, account_id: str) -> None:
    return None


async def nothing_is_told_early(stage: OpenStage) -> None:
    with pytest.MonkeyPatch.context() as patch:
        await test_notifying.test_nothing_is_told_before_the_commit(stage, patch)


async def refused_at_the_door(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        for body in test_card_numbers.bodies(test_card_numbers.NUMBER)[:2]:
            said = await counter.as_customer()("POST", "/v1/payment-methods/", body)
            assert "never taken here" in said.body.decode()


ABLATIONS: Ablations = {
    "the lock of a transaction": (
        lambda: without(r"where id = \$1 for update", "where id = $1", within="payments.transactions"),
        [test_refunding.test_two_at_once_never_give_back_more_than_was_captured],
    ),
    "the try in the key": (
        patched(Charge, "key", property(lambda charge: f"{charge.invoice_id}:1")),
        [test_charging.test_the_next_try_of_an_invoice_is_a_new_charge],
    ),
    "the state of a transaction": (
        lambda: without("and state = 'pending' returning id, trace_id", "returning id, trace_id"),
        [test_charging.test_a_transaction_that_ended_is_not_ended_again_by_a_stale_run],
    ),
    "one charge of an invoice at a time": (
        patched(charges, "_scope", lambda _: None),
        [test_charging.test_while_a_try_is_in_doubt_no_other_try_of_its_invoice_goes_out],
    ),
    "the look for what paid it": (
        lambda: without("o.state in \\('succeeded', 'partially_refunded'\\)", "false"),
        [test_charging.test_an_invoice_that_is_paid_is_not_charged_by_a_further_try],
    ),
    "the same order under a key": (
        patched(charges, "_order", lambda _: ()),
        [given(test_charging.test_another_body_under_the_same_key_is_parked, {"amount_minor": 1})],
    ),
    "the amount of what is found": (
        patched(effects, "_matching_result", lambda found, _: Happened(GatewayResult(found.id))),
        [test_charging.test_what_is_found_with_another_amount_is_neither_booked_nor_told],
    ),
    "the pause": (
        patched(charges, "or_pause", no_pause),
        [test_charging.test_a_key_that_the_gateway_does_not_accept_pauses_the_queue_and_loses_nothing],
    ),
    "telling after the commit": (patched(charges, "_succeed", told_before_the_commit), [nothing_is_told_early]),
    "not telling what was told": (
        lambda: without("n.delivered_at is not null as delivered", "false as delivered"),
        [test_notifying.test_it_arrives_at_once_and_the_queue_finds_it_delivered],
    ),
    "the order of notifications": (
        lambda: without(r"\(e.created_at, e.event_id\) < \(n.created_at, n.event_id\)", "false"),
        [test_notifying.test_a_refund_is_told_after_the_charge_that_it_gives_back],
    ),
    "the queue behind the immediate attempt": (
        patched(telling, "send", no_lock),
        [given(test_notifying.test_whatever_is_no_2xx_is_tried_again_by_the_queue, 503)],
    ),
    "the first secret that signs": (
        patched(notifications, "signed_headers", signed_by_the_last),
        [test_notifying.test_the_first_secret_signs_and_every_one_verifies_while_they_are_exchanged],
    ),
    "the lock of an account's cards": (
        patched(payment_methods, "_lock", no_lock),
        [test_methods.test_two_first_cards_in_one_moment_leave_one_default],
    ),
    "the hold on the card": (
        lambda: without("and m.removed_at is null for share", "and m.removed_at is null"),
        [test_methods.test_a_charge_that_meets_the_removal_of_its_card_begins_anew],
    ),
    "the look for charges under way": (
        lambda: without("payment_method_id = \\$1 and state = 'pending'", "payment_method_id = $1 and false"),
        [test_methods.test_a_card_is_not_removed_while_a_charge_is_under_way_on_it],
    ),
    "the refund of a trial": (
        patched(refunds, "request", lambda *_: no_lock(*_[:2])),
        [test_charging.test_a_trial_is_given_back_and_subscriptions_hear_of_both_in_order],
    ),
    "the door to card numbers": (patched(card_numbers, "_is_suspect", lambda _: False), [refused_at_the_door]),
    "the inbox of the gateway's events": (
        lambda: without("conflict do nothing", "conflict (consumer, id) do update set id = $2", "payonce.inbox"),
        [test_gateway_events.test_the_same_event_is_taken_in_once],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_a_test_fails(name: str, number: int, stage: OpenStage) -> None:
    await missed(ABLATIONS, name, number, stage, asyncpg.PostgresError, ValueError)
