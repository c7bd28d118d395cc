"""A charge: once per invoice and try, whatever the gateway, the queue and the wire do."""

from typing import Any

import msgspec
import pytest

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.payments.ledger import CAPTURED, CLEARING
from payonce.services.billing.payments.model import State
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.policies import CHARGE_INITIATION
from payonce.services.billing.wire import Action
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from tests.services.billing.payments.till import DECLINES, EXPIRED, PRICE, open_till


async def test_a_charge_succeeds_once_and_subscriptions_are_told(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        transaction = await till.charged()
        assert (transaction.state, transaction.payment_method_id) == (State.SUCCEEDED, card.id)
        assert till.captures() == 1
        assert transaction.gateway_id in till.gateway.books.charges
        method, told = till.subscriptions.told
        assert method["action"] == "payment_method"
        assert method["metadata"]["account_id"] == "acc-1"
        assert told == {
            "event_id": f"charge-{transaction.id}",
            "transaction_id": transaction.id,
            "subscription_id": "sub-1",
            "status": "success",
            "amount": "29.00",
            "currency": "AED",
            "occurred_at": told["occurred_at"],
            "action": "renewal",
            "metadata": {
                "account_id": "acc-1",
                "invoice_id": "inv-1",
                "generation": 1,
                "card_brand": "visa",
                "card_last4": "4242",
            },
        }
        assert await till.balance(CLEARING) == PRICE.minor
        assert await till.balance(CAPTURED) == 0
        assert await till.broken() == {}


async def test_the_same_message_at_every_state_changes_nothing(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        for _ in range(3):
            await till.ask()
        await till.run()
        await till.ask()
        await till.run()
        assert till.captures() == 1
        assert len(till.subscriptions.told) == 2
        assert await till.balance(CLEARING) == PRICE.minor


@pytest.mark.parametrize(
    "other", [{"amount_minor": 1}, {"account_id": "acc-2"}, {"subscription_id": "sub-2"}, {"action": Action.UPGRADE}]
)
async def test_another_body_under_the_same_key_is_parked(stage: OpenStage, other: dict[str, Any]) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.charged()
        await till.ask(**other)
        await till.run()
        assert till.captures() == 1
        assert await till.parked() == ["charge inv-1:1 is recorded with another amount, account or purpose"]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "a Charge: Object missing"),
        ({"transaction_id": "nobody"}, "there is no transaction 'nobody'"),
        ({"amount_minor": 0}, "amount_minor 0"),
        ({"generation": 0}, "generation 0"),
        ({"exponent": 3}, "AED has 2 decimals, not 3"),
        ({"currency": "ABC"}, "'ABC'"),
        ({"action": "refund"}, "action refund is not a charge"),
        ({"invoice_id": "a:b"}, "no colon"),
        ({"account_id": ""}, "account_id ''"),
    ],
)
async def test_what_cannot_be_a_charge_is_parked_with_the_reason(
    stage: OpenStage, payload: dict[str, Any], why: str
) -> None:
    async with open_till(stage) as till:
        await till.card()
        sent = payload
        if payload and "transaction_id" not in payload:
            sent = {
                "invoice_id": "inv-1",
                "generation": 1,
                "account_id": "acc-1",
                "subscription_id": "sub-1",
                "action": "renewal",
                "amount_minor": 2_900,
                "currency": "AED",
                "exponent": 2,
                **payload,
            }
        async with till.s.begin() as tx:
            await tx.send(CHARGE_INITIATION, sent, action=Action.RENEWAL)
        await till.run()
        [said] = await till.parked()
        assert why in said
        assert not till.gateway.books.charges


@pytest.mark.parametrize(
    ("number", "code", "hard"), [(DECLINES, "card_declined", False), (EXPIRED, "expired_card", True)]
)
async def test_a_declined_card_fails_the_transaction_with_its_code(
    stage: OpenStage, number: str, code: str, hard: bool
) -> None:
    async with open_till(stage) as till:
        await till.card(number)
        transaction = await till.charged()
        assert (transaction.state, transaction.decline_code, transaction.hard) == (State.FAILED, code, hard)
        told = till.subscriptions.told[-1]
        assert (told["status"], told["metadata"]["decline_code"], told["metadata"]["hard"]) == ("failed", code, hard)
        assert till.captures() == 0
        assert await till.balance(CLEARING) == 0
        assert await till.broken() == {}


async def test_the_next_try_of_an_invoice_is_a_new_charge(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        till.gateway.script(card.token, "insufficient_funds")
        assert (await till.charged()).state is State.FAILED
        await till.ask(generation=2)
        await till.run()
        assert (await till.transaction(generation=2)).state is State.SUCCEEDED
        assert till.captures() == 1
        assert await till.broken() == {}


async def test_without_a_card_the_gateway_is_not_asked(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        transaction = await till.charged()
        assert (transaction.state, transaction.decline_code, transaction.hard) == (
            State.FAILED,
            "no_payment_method",
            True,
        )
        assert not till.gateway.books.charges
        assert till.gateway.meter.requests == 0
        assert till.subscriptions.told[-1]["status"] == "failed"
        assert await till.broken() == {}


async def test_an_invoice_that_is_paid_is_not_charged_by_a_further_try(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        await till.charged()
        await till.ask(generation=2)
        await till.run()
        again = await till.transaction(generation=2)
        assert (again.state, again.decline_code) == (State.FAILED, "already_paid")
        assert till.captures() == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault.REFUSED_CONNECTION,
        Fault.TOO_MANY_REQUESTS,
        Fault.ERROR_BEFORE,
        Fault.ERROR_AFTER,
        Fault.TIMEOUT_BEFORE,
        Fault.TIMEOUT_AFTER,
        Fault.ANSWER_LOST,
        Fault.LATE,
        Fault.DUPLICATE,
        Fault.MALFORMED_ANSWER,
        Fault.WRONG_ANSWER,
    ],
)
async def test_whatever_happens_on_the_wire_it_is_charged_once(stage: OpenStage, fault: Fault) -> None:
    async with open_till(stage, Script([None, fault])) as till:
        await till.card()
        transaction = await till.charged()
        assert till.door.enacted[fault] == 1
        assert transaction.state is State.SUCCEEDED
        assert till.captures() == 1
        assert await till.broken() == {}


async def test_a_charge_in_doubt_beyond_the_time_of_its_key_is_looked_for(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        await till.s.clock.advance(25 * 3_600)
        till.gateway.advance(0)
        await till.drain()
        transaction = await till.transaction()
        assert transaction.state is State.SUCCEEDED
        assert till.captures() == 1


async def test_what_is_found_with_another_amount_is_neither_booked_nor_told(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        [entry] = till.gateway.books.charges.values()
        object.__setattr__(entry, "amount", entry.amount - 1)
        await till.s.clock.advance(25 * 3_600)
        await till.drain()
        assert (await till.transaction()).state is State.PENDING
        assert await till.balance(CLEARING) == 0
        assert [each["action"] for each in till.subscriptions.told] == ["payment_method"]
        said = await till.s.owner.fetchval(
            "select last_error from payonce.live_messages where queue = $1", CHARGE_INITIATION.queue
        )
        assert "is 2899 AED in minor units, but 2900 AED was requested" in said


async def test_while_a_try_is_in_doubt_no_other_try_of_its_invoice_goes_out(stage: OpenStage) -> None:
    async with open_till(stage, Script([None, Fault.TIMEOUT_AFTER])) as till:
        await till.card()
        await till.ask()
        await till.drain()
        await till.ask(generation=2)
        await till.drain()
        assert len(till.gateway.books.charges) == 1
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED
        assert till.captures() == 1


async def test_a_key_that_the_gateway_does_not_accept_pauses_the_queue_and_loses_nothing(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        till.gateway._api_key = "another"
        await till.ask()
        await till.run()
        [said] = await till.loud()
        assert "the gateway does not accept our key" in said
        assert "queues resume q:pay:charge_initiation" in said
        assert await till.queued(CHARGE_INITIATION.queue) == 1
        till.gateway._api_key = None
        await till.s.admin.resume(CHARGE_INITIATION.queue, "a person")
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED


async def test_a_trial_is_given_back_and_subscriptions_hear_of_both_in_order(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged(action=Action.TRIAL, amount_minor=100)
        assert (transaction.state, transaction.refunded.minor) == (State.REFUNDED, 100)
        assert [told["action"] for told in till.subscriptions.told] == ["payment_method", "trial", "refund"]
        refund = till.subscriptions.told[-1]
        assert (refund["amount"], refund["transaction_id"]) == ("1.00", transaction.id)
        assert till.gateway.books.refunded_total("AED").minor == 100
        assert await till.balance(CLEARING) == await till.balance(CAPTURED) == 0
        assert await till.broken() == {}


async def test_a_transaction_that_ended_is_not_ended_again_by_a_stale_run(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        with pytest.raises(Exception, match="no longer pending"):
            async with till.s.begin() as tx:
                await transactions.end(tx, transaction.id, State.FAILED, None)


async def test_the_order_on_record_has_no_more_of_the_card_than_its_token(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        card = await till.card()
        transaction = await till.charged()
        request = msgspec.json.decode(await till.s.owner.fetchval("select request::text from payonce.effects"))
        assert request == {
            "key": "inv-1:1",
            "amount": 2_900,
            "currency": "AED",
            "payment_method": card.token,
            "reference": "inv-1:1",
            "metadata": {"transaction": transaction.id, "account": "acc-1", "invoice": "inv-1"},
        }


async def test_an_outcome_and_what_follows_from_it_are_one_commit(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies in the middle of writing the outcome: nothing of it is there, and the next run writes it all."""
    async with open_till(stage) as till:
        await till.card()
        await till.ask()
        whole = Tx.post

        async def dies(self: Tx, posting: object) -> Any:
            monkeypatch.setattr(Tx, "post", whole)
            raise OSError("the power is gone")

        monkeypatch.setattr(Tx, "post", dies)
        await till.drain()
        assert (await till.transaction()).state is State.PENDING
        assert len(till.subscriptions.told) == 1
        await till.run()
        assert (await till.transaction()).state is State.SUCCEEDED
        assert till.captures() == 1
        assert await till.broken() == {}
