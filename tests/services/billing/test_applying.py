"""What payments tells is applied once, whatever comes twice, late, out of order or does not fit."""

from typing import Any

import msgspec
import pytest

from payonce.kit.outcomes import Retry
from payonce.services.billing.policies import BILLING_CLOCK, CHARGE_INITIATION, PAYMENT_INITIATION, PLAN_CHANGE
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.handlers import payment_events
from payonce.services.billing.subscriptions.handlers.payment_events import Applied
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import InvoiceState, State
from payonce.services.billing.wire import Action, Notification, Status
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import House, aed, open_house

LOST_ANSWERS = 2


async def give(house: House, notification: Notification) -> Applied:
    async with house.s.begin() as tx:
        return await payment_events.apply(tx, notification)


async def everything(house: House) -> dict[str, list[dict[str, Any]]]:
    """All that a repetition must leave as it is."""
    tables = (
        "subscriptions",
        "subscription_events",
        "invoices",
        "invoice_lines",
        "credit_notes",
        "credits",
        "unapplied_payments",
        "number_series",
    )
    found = {name: await house.s.owner.fetch(f"select * from subscriptions.{name} order by 1, 2") for name in tables}
    found["lines"] = await house.s.owner.fetch("select account_id, minor from payonce.posting_lines order by 1, 2")
    rows = {name: [dict(row) for row in rows] for name, rows in found.items()}
    for row in (*rows["subscriptions"], *rows["invoices"]):
        # Who looks whether there is something to do may put its mark.
        row.pop("updated_at", None)
    return rows


async def test_an_event_that_comes_again_is_a_duplicate_and_changes_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.start_trial(customer)
        await house.change_plan(subscription, "pro")
        house.card_will(customer, "insufficient_funds")
        await house.pass_days(40)
        before = await everything(house)
        given = list(house.door.given)
        assert {each.action for each in given} == {
            Action.PAYMENT_METHOD,
            Action.TRIAL,
            Action.REFUND,
            Action.UPGRADE,
            Action.RENEWAL,
        }
        for notification in given:
            assert await give(house, notification) == Applied("duplicate")
        await house.run()
        assert await everything(house) == before
        [row] = await house.s.owner.fetch(
            "select retry_count, processed from subscriptions.payment_webhook_requests where event_id = $1",
            given[1].event_id,
        )
        assert (row["retry_count"], row["processed"]) == (1, True)


async def test_every_message_that_comes_again_changes_nothing(stage: OpenStage) -> None:
    """Each under a new id and without its key, as if a person had put it by hand."""
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.start_trial(customer)
        await house.change_plan(subscription, "pro")
        house.card_will(customer, "insufficient_funds", "insufficient_funds")
        await house.pass_days(40)
        await house.cancel(await house.subscription(subscription), ChangeTiming.PERIOD_END)
        await house.pass_days(40)
        other = await house.subscribe(await house.customer("4000000000000002"))
        await house.pass_days(2)
        rows = await house.s.owner.fetch("select queue, action, correlation_id from payonce.job_logs")
        assert {row["queue"] for row in rows} >= {PAYMENT_INITIATION.queue, PLAN_CHANGE.queue, CHARGE_INITIATION.queue}
        [_, change, *_, last] = await house.invoices(subscription)
        before = await everything(house)
        async with house.s.begin() as tx:
            for each in (subscription, other):
                named = {"subscription_id": each.id}
                await tx.send(PAYMENT_INITIATION, named, action=Action.INITIAL)
                for period in range(1, (await house.subscription(each)).period + 2):
                    await tx.send(PAYMENT_INITIATION, {**named, "period": period}, action=Action.RENEWAL)
                await tx.send(BILLING_CLOCK, named, action="expire_incomplete")
            named = {"subscription_id": subscription.id}
            await tx.send(PAYMENT_INITIATION, {**named, "invoice_id": last.id}, action=Action.RENEWAL)
            at = change.issued_at.isoformat()
            changed = {**named, "change_id": change.id, "plan_id": change.plan_id, "at": at}
            await tx.send(PLAN_CHANGE, changed, action=Action.UPGRADE)
            await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW)
            await tx.send(BILLING_CLOCK, {}, action=schedules.EARN)
        await house.run()
        assert await everything(house) == before
        assert await house.parked() == []
        assert await house.broken() == {}


@pytest.mark.parametrize(
    "payload",
    [{}, {"subscription_id": 7}, {"subscription_id": "gone"}, {"subscription_id": "gone", "period": "x"}],
)
async def test_a_message_that_makes_no_sense_is_parked_and_not_tried_again(
    stage: OpenStage, payload: dict[str, Any]
) -> None:
    async with open_house(stage) as house:
        async with house.s.begin() as tx:
            await tx.send(PAYMENT_INITIATION, payload, action=Action.RENEWAL)
            await tx.send(PLAN_CHANGE, payload, action=Action.UPGRADE)
            await tx.send(BILLING_CLOCK, payload, action="move_clock")
        await house.run()
        assert len(await house.parked()) == 3
        tries = await house.s.owner.fetch("select attempts, status from payonce.job_logs where status <> 'success'")
        assert [tuple(row) for row in tries] == [(1, "parked")] * 3


async def test_a_webhook_that_did_not_arrive_comes_by_the_queue(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        house.door.answers = [500] * LOST_ANSWERS
        subscription = await house.subscribe(customer, run=False)
        await house.run(5.0)
        assert await house.state(subscription) is State.INCOMPLETE
        await house.run(600.0)
        assert await house.state(subscription) is State.ACTIVE
        assert await house.broken() == {}


async def test_a_refund_is_not_applied_before_its_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.start_trial(await house.customer())
        [refund] = [each for each in house.door.given if each.action is Action.REFUND]
    async with open_house(stage) as again:
        assert (await again.subscription(subscription)).state is State.TRIALING
        await again.s.owner.execute(
            "update subscriptions.invoices set state = 'open', charging = true, paid_at = null, refunded_minor = 0"
        )
        earlier = msgspec.structs.replace(refund, event_id="evt-before-its-payment")
        with pytest.raises(Retry, match="has not arrived yet"):
            await give(again, earlier)
        known = await again.s.owner.fetchval(
            "select count(*) from subscriptions.payment_webhook_requests where event_id = 'evt-before-its-payment'"
        )
        assert known == 0, "it may come again"


async def test_a_payment_that_comes_after_the_end_is_given_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer, run=False)
        house.door.answers = [503]
        await house.drain()
        [invoice] = await house.invoices(subscription)
        assert (invoice.charging, house.captures(invoice)) == (True, 1), "charged, and we do not know it yet"
        await house.cancel(await house.subscription(subscription))
        await house.run()
        [invoice] = await house.invoices(subscription)
        assert invoice.state is InvoiceState.VOID
        assert await house.state(subscription) is State.CANCELED
        assert await house.balance("gateway_clearing") == 0, "the customer has it back"
        assert await house.balance("unapplied") == await house.balance("captured") == 0
        [kept] = await house.s.owner.fetch("select * from subscriptions.unapplied_payments")
        assert (kept["amount_minor"], kept["returned_minor"], kept["refund_asked"]) == (2_900, 2_900, True)
        assert await house.broken() == {}


async def test_a_refund_of_such_a_payment_that_fails_is_left_to_a_person(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        told = await charged(house)
        subscription = await house.subscription(told.subscription_id or "")
        await house.cancel(subscription)
        refunds = [each for each in house.door.given if each.action is Action.REFUND]
        assert len(refunds) == 1
        await house.s.owner.execute("update subscriptions.unapplied_payments set returned_minor = 0")
        failed = msgspec.structs.replace(refunds[0], event_id="evt-failed", status=Status.FAILED)
        await give(house, failed)
        broken = await house.broken()
        assert "money without a matching invoice is recorded and being refunded" in broken


async def charged(house: House) -> Notification:
    """A success that was not told yet."""
    subscription = await house.subscribe(await house.customer(), run=False)
    house.door.answers = [503]
    await house.drain()
    [invoice] = await house.invoices(subscription)
    told = await house.told("initial")
    assert told.metadata["invoice_id"] == invoice.id
    return told


@pytest.mark.parametrize(
    ("changes", "metadata", "says"),
    [
        ({}, {"invoice_id": "gone"}, "no invoice 'gone'"),
        ({"subscription_id": "another"}, {}, "no invoice"),
    ],
)
async def test_money_that_fits_no_invoice_is_kept_apart_and_told_loudly(
    stage: OpenStage, changes: dict[str, Any], metadata: dict[str, Any], says: str
) -> None:
    async with open_house(stage) as house:
        told = await charged(house)
        wrong = msgspec.structs.replace(told, event_id="evt-wrong", metadata={**told.metadata, **metadata}, **changes)
        applied = await give(house, wrong)
        assert applied.status == "processed"
        assert applied.problem is not None
        assert says in applied.problem
        assert any(says in text for text in await house.loud())
        kept = await house.s.owner.fetchrow("select * from subscriptions.unapplied_payments")
        assert kept is not None
        assert (kept["refund_asked"], says in kept["reason"]) == (False, True)
        error = await house.s.owner.fetchval(
            "select error_message from subscriptions.payment_webhook_requests where event_id = 'evt-wrong'"
        )
        assert says in error
        assert "money without a matching invoice is recorded and being refunded" in await house.broken()
        [invoice] = await house.invoices(house.customers[0])
        assert (invoice.state, invoice.charging) == (InvoiceState.OPEN, True)


async def test_an_answer_to_an_earlier_try_is_not_taken_for_the_present_one(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        house.card_will(customer, "insufficient_funds")
        subscription = await house.subscribe(customer)
        [failed] = [each for each in house.door.given if each.action is Action.INITIAL]
        await house.s.admin.pause("q:pay:charge_initiation", "to be late")
        await house.give_card(customer)
        await house.drain()
        again = msgspec.structs.replace(failed, event_id="evt-again")
        applied = await give(house, again)
        assert applied.problem is not None
        [invoice] = await house.invoices(subscription)
        assert (invoice.generation, invoice.charging, invoice.failures) == (2, True, 1)


async def test_part_of_a_payment_is_given_back_with_a_credit_note(stage: OpenStage) -> None:
    from payonce.services.billing.payments.handlers import refunds as refunding

    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        [invoice] = await house.invoices(subscription)
        assert invoice.transaction_id is not None
        for amount, reason in ((aed("10.00"), "a bad day"), (aed("19.00"), "another")):
            async with house.s.begin() as tx:
                await refunding.request(tx, invoice.transaction_id, amount, reason, f"by hand: {reason}")
            await house.run()
        [invoice] = await house.invoices(subscription)
        assert (invoice.state, invoice.refunded) == (InvoiceState.PAID, aed("29.00"))
        notes = await house.s.owner.fetch("select number, amount_minor from subscriptions.credit_notes order by number")
        assert [(note["number"], note["amount_minor"]) for note in notes] == [
            ("CN-2026-000001", 1_000),
            ("CN-2026-000002", 1_900),
        ]
        assert await house.balance("refunds") == 2_900
        assert await house.state(subscription) is State.ACTIVE
        assert await house.broken() == {}


async def test_two_events_of_one_customer_at_the_same_moment_wait_for_each_other(stage: OpenStage) -> None:
    """A new card and the failure of the old one: whichever comes first, one try follows."""
    import asyncio

    async with open_house(stage) as house:
        customer = await house.customer("4000000000000002")
        subscription = await house.subscribe(customer, run=False)
        house.door.answers = [503]
        await house.drain()
        failed = await house.told("initial")
        card = msgspec.structs.replace(
            failed, event_id="evt-card", action=Action.PAYMENT_METHOD, transaction_id=None, subscription_id=None
        )
        await asyncio.gather(give(house, failed), give(house, card))
        [invoice] = await house.invoices(subscription)
        assert (invoice.generation, invoice.charging, invoice.failures) == (2, True, 1)
        await house.pass_days(0.5)
        assert await house.broken() == {}
