"""Refunds: never more than was captured, each once, also when two are asked for in the same moment."""

import asyncio
from typing import Any

import pytest

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.ledger import CAPTURED, CLEARING
from payonce.services.billing.payments.model import Refund, RefundState, State
from payonce.services.billing.payments.store import refunds as refund_store
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, Script
from tests.locks import waits_for_a_lock
from tests.services.billing.payments.till import AED, DECLINES, PRICE, Till, open_till


async def asked(till: Till, transaction_id: str, minor: int | None, key: str = "k") -> Refund:
    async with till.s.begin() as tx:
        return await refunds.request(
            tx, transaction_id, None if minor is None else Amount(minor, AED), "asked for", key
        )


async def wanted(till: Till, **payload: Any) -> None:
    async with till.s.begin() as tx:
        await tx.send(REFUND_INITIATION, payload, action="refund")
    await till.run()


async def test_parts_and_then_the_rest_are_given_back_and_told(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        await asked(till, transaction.id, 900, "first")
        await till.run()
        assert (await till.transaction()).state is State.PARTIALLY_REFUNDED
        assert await till.balance(CLEARING) == PRICE.minor - 900
        await asked(till, transaction.id, None, "rest")
        await till.run()
        assert (await till.transaction()).state is State.REFUNDED
        assert till.gateway.books.refunded_total("AED") == PRICE
        assert [told["amount"] for told in till.subscriptions.told[-2:]] == ["9.00", "20.00"]
        assert await till.balance(CLEARING) == await till.balance(CAPTURED) == 0
        assert await till.broken() == {}


async def test_the_same_key_is_the_same_refund(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        first, again = await asked(till, transaction.id, 900), await asked(till, transaction.id, 900)
        assert first == again
        await till.run()
        assert till.gateway.books.refunded_total("AED").minor == 900
        with pytest.raises(Invalid, match="recorded for something else"):
            await asked(till, transaction.id, 901)
        async with till.s.begin() as tx:
            with pytest.raises(Invalid, match="recorded for something else"):
                await refunds.record_outside(tx, transaction.id, None, "by bank", "k")
            noted = [await refunds.record_outside(tx, transaction.id, None, "by bank", "k2") for _ in range(2)]
        assert noted[0].id == noted[1].id


async def test_two_at_once_never_give_back_more_than_was_captured(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        async with till.s.begin() as tx:
            await refunds.request(tx, transaction.id, Amount(2_000, AED), "asked for", "k1")
            second = asyncio.create_task(asked(till, transaction.id, 2_000, "k2"))
            await eventually(lambda: waits_for_a_lock(till.s), what="a second that waits")
        [came] = await asyncio.gather(second, return_exceptions=True)
        assert isinstance(came, Invalid), came
        await till.run()
        assert till.gateway.books.refunded_total("AED").minor == 2_000
        assert await till.broken() == {}


async def test_more_than_is_left_is_refused_with_what_is_left(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        await asked(till, transaction.id, 2_000)
        with pytest.raises(Invalid, match=r"9\.00 AED of 29\.00 AED is left"):
            await asked(till, transaction.id, 901, "more")
        with pytest.raises(Invalid, match="cannot be refunded"):
            await asked(till, transaction.id, 0, "nothing")


async def test_of_a_failed_charge_nothing_can_be_given_back(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card(DECLINES)
        transaction = await till.charged()
        with pytest.raises(Invalid, match="is failed: nothing was captured"):
            await asked(till, transaction.id, 1)


async def test_what_subscriptions_ask_for_is_put_on_record_and_given_back_once(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        for _ in range(2):
            await wanted(till, transaction_id=transaction.id, amount_minor=2_900, reason="too late", key="late:inv-1")
        assert (await till.transaction()).state is State.REFUNDED
        told = till.subscriptions.told[-1]
        assert (told["action"], told["metadata"]["refund_key"]) == ("refund", "late:inv-1")
        assert till.gateway.books.refunded_total("AED") == PRICE


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "a RefundRequest: Object missing"),
        ({"refund_id": "nobody"}, "there is no refund 'nobody'"),
        ({"transaction_id": "nobody", "reason": "r", "key": "k"}, "there is no transaction 'nobody'"),
        ({"transaction_id": "?", "reason": " ", "key": "k"}, "needs a reason"),
        ({"transaction_id": "?", "reason": "r", "key": "k", "amount_minor": 2_901}, "29.00 AED is left"),
    ],
)
async def test_what_cannot_be_a_refund_is_parked_with_the_reason(
    stage: OpenStage, payload: dict[str, Any], why: str
) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        if payload.get("transaction_id") == "?":
            payload = payload | {"transaction_id": transaction.id}
        await wanted(till, **payload)
        [said] = await till.parked()
        assert why in said
        assert not till.gateway.books.refunds


@pytest.mark.parametrize(
    "fault",
    [
        Fault.TOO_MANY_REQUESTS,
        Fault.ERROR_BEFORE,
        Fault.ERROR_AFTER,
        Fault.TIMEOUT_AFTER,
        Fault.LATE,
        Fault.DUPLICATE,
        Fault.WRONG_ANSWER,
    ],
)
async def test_whatever_happens_on_the_wire_it_is_given_back_once(stage: OpenStage, fault: Fault) -> None:
    async with open_till(stage, Script([None, None, fault])) as till:
        await till.card()
        transaction = await till.charged()
        refund = await asked(till, transaction.id, 900)
        await till.run()
        assert till.door.enacted[fault] == 1
        found = await refund_store.find(till.s.read, refund.id)
        assert found is not None
        assert found.state is RefundState.SUCCEEDED
        assert till.gateway.books.refunded_total("AED").minor == 900
        assert await till.broken() == {}


async def test_a_refund_that_the_gateway_refuses_fails_and_frees_what_it_held(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        # Somebody has given it back at the gateway's own context.
        till.gateway.books._refunded[str(transaction.gateway_id)] = 2_500
        refund = await asked(till, transaction.id, 900)
        await till.run()
        found = await refund_store.find(till.s.read, refund.id)
        assert found is not None
        assert found.state is RefundState.FAILED
        assert "amount_too_large" in str(found.failure)
        after = await till.transaction()
        assert (after.state, after.refunding.minor) == (State.SUCCEEDED, 0)
        assert till.subscriptions.told[-1]["status"] == "failed"
        [said] = await till.loud()
        assert "9.00 AED was not refunded" in said
        assert await till.broken() == {}


async def test_a_duplicate_of_a_refunds_message_changes_nothing(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        await till.card()
        transaction = await till.charged()
        refund = await asked(till, transaction.id, 900)
        for _ in range(2):
            await wanted(till, refund_id=refund.id)
        assert till.gateway.books.refunded_total("AED").minor == 900
        assert [told["action"] for told in till.subscriptions.told].count("refund") == 1
        assert not await till.s.owner.fetchval("select count(*) from payonce.messages"), "nor is it tried again"
