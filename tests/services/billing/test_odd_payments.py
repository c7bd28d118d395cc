"""A payment of another amount than its invoice's: it goes back, the invoice comes to its end by itself, and nobody's
money is taken twice meanwhile.

Payments tells the amount that it was asked for, the gateway's client believes no answer about another one, and of one
key there is one order: a wrong amount is told only when the order itself was wrong, as one put by hand may be.
"""

from typing import Any

import msgspec
import pytest

from payonce.engine.audit import Severity, notes
from payonce.services.billing.policies import BILLING_CLOCK, CHARGE_INITIATION, PAYMENTS_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import dunning, payment_events
from payonce.services.billing.subscriptions.model import WRONG_AMOUNT, Due, Invoice, InvoiceState, State, Subscription
from payonce.services.billing.wire import Status
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import DECLINES, Customer, House, open_house

ODD_MINOR = 2_800
REFUNDS = "q:pay:refund_initiation"
CHARGES = CHARGE_INITIATION.queue


async def charge_the_odd_amount(house: House, of: Subscription, minor: int = ODD_MINOR, currency: str = "AED") -> None:
    """The order of the invoice that is being charged is lost, and somebody puts another one under its key by hand."""
    [invoice] = [each for each in await house.invoices(of) if each.charging]
    await house.s.owner.execute("delete from payonce.messages where queue = $1", CHARGES)
    async with house.s.begin() as tx:
        await tx.send(
            CHARGE_INITIATION,
            {
                "invoice_id": invoice.id,
                "generation": invoice.generation,
                "account_id": of.account_id,
                "subscription_id": of.id,
                "action": invoice.action,
                "amount_minor": minor,
                "currency": currency,
                "exponent": 2,
            },
            action=invoice.action,
            correlation_id=of.id,
        )
    await house.s.admin.resume(CHARGES)


async def first_invoice(house: House) -> tuple[Customer, Subscription]:
    await house.s.admin.pause(CHARGES, "to be lost")
    customer = await house.customer()
    subscription = await house.subscribe(customer, run=False)
    await house.drain()
    await charge_the_odd_amount(house, subscription)
    return customer, subscription


async def renewal(house: House) -> tuple[Customer, Subscription]:
    customer = await house.customer()
    subscription = await house.subscribe(customer)
    assert subscription.period_end is not None
    await house.s.admin.pause(CHARGES, "to be lost")
    await house.go_to(subscription.period_end)
    await charge_the_odd_amount(house, subscription)
    return customer, await house.subscription(subscription)


async def upgrade(house: House) -> tuple[Customer, Subscription]:
    customer = await house.customer()
    subscription = await house.subscribe(customer)
    await house.s.admin.pause(CHARGES, "to be lost")
    await house.change_plan(subscription, "pro")
    await charge_the_odd_amount(house, subscription)
    return customer, await house.subscription(subscription)


async def last_invoice(house: House, of: Subscription) -> Invoice:
    return (await house.invoices(of))[-1]


@pytest.mark.parametrize(
    ("arrange", "state", "invoice_state"),
    [
        (first_invoice, State.INCOMPLETE, InvoiceState.OPEN),
        (renewal, State.PAST_DUE, InvoiceState.OPEN),
        (upgrade, State.ACTIVE, InvoiceState.VOID),
    ],
)
async def test_another_amount_goes_back_and_its_invoice_is_released(
    stage: OpenStage, arrange: Any, state: State, invoice_state: InvoiceState
) -> None:
    async with open_house(stage) as house:
        _, subscription = await arrange(house)
        await house.run()
        invoice = await last_invoice(house, subscription)
        assert (invoice.state, invoice.charging) == (invoice_state, False)
        assert (invoice.failures, invoice.decline_code) == (1, WRONG_AMOUNT)
        assert await house.state(subscription) is state
        [kept] = await house.s.owner.fetch("select * from subscriptions.unapplied_payments")
        assert (kept["amount_minor"], kept["returned_minor"]) == (ODD_MINOR, ODD_MINOR)
        assert house.gateway.books.refunds, "by the gateway's books"
        assert await house.balance("unapplied") == await house.balance("captured") == 0
        assert [text for text in await house.loud() if "28.00 AED is not the amount" in text]
        assert await house.broken() == {}


async def test_another_currency_goes_back_as_well(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.admin.pause(CHARGES, "to be lost")
        subscription = await house.subscribe(await house.customer(), run=False)
        await house.drain()
        await charge_the_odd_amount(house, subscription, 2_900, "USD")
        await house.run()
        assert (await last_invoice(house, subscription)).charging is False
        [kept] = await house.s.owner.fetch("select * from subscriptions.unapplied_payments")
        assert (kept["currency"], kept["amount_minor"], kept["returned_minor"]) == ("USD", 2_900, 2_900)
        assert await house.broken() == {}


async def test_a_renewal_is_then_charged_once_and_its_own_amount(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, subscription = await renewal(house)
        await house.run()
        assert (await house.subscription(subscription)).reason == dunning.NOT_FITTING
        await house.pass_days(1)
        invoice = await last_invoice(house, subscription)
        assert (invoice.state, invoice.generation) == (InvoiceState.PAID, 2)
        assert await house.state(subscription) is State.ACTIVE
        assert await house.balance("gateway_clearing") == 2 * 2_900
        assert await house.broken() == {}


async def test_nothing_is_charged_while_the_odd_payment_is_not_back(stage: OpenStage) -> None:
    """Neither by a day of dunning, nor by a new card, nor as the customer asks for it; and dunning does not end."""
    async with open_house(stage) as house:
        await house.s.admin.pause(REFUNDS, "to be late")
        customer, subscription = await renewal(house)
        await house.run()
        await house.give_card(customer)
        invoice = await last_invoice(house, subscription)
        async with house.s.begin() as tx:
            with pytest.raises(Conflict, match="being refunded; pay once it is refunded"):
                await dunning.pay_invoice(tx, customer.id, invoice.id)
        await house.pass_days(15)
        invoice = await last_invoice(house, subscription)
        assert (invoice.state, invoice.generation, house.captures(invoice)) == (InvoiceState.OPEN, 1, 1)
        waiting, now = await house.subscription(subscription), await house.s.clock.now()
        assert (waiting.state, waiting.due_for) == (State.PAST_DUE, Due.DUN)
        assert waiting.due_at is not None
        assert now < waiting.due_at <= now + dunning.LOOKED_AGAIN_AFTER
        assert "dunning_waits" in await house.timeline(subscription)
        assert "money without a matching invoice is recorded and being refunded" in await house.broken()
        await house.s.admin.resume(REFUNDS)
        await house.pass_days(1)
        invoice = await last_invoice(house, subscription)
        assert (invoice.state, invoice.generation) == (InvoiceState.PAID, 2)
        assert await house.balance("gateway_clearing") == 2 * 2_900
        assert await house.broken() == {}


async def test_a_card_that_came_meanwhile_is_not_tried_before_the_odd_payment_is_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.admin.pause(REFUNDS, "to be late")
        customer, subscription = await first_invoice(house)
        await house.give_card(customer)
        assert (await last_invoice(house, subscription)).try_at_once
        await house.run()
        invoice = await last_invoice(house, subscription)
        assert (invoice.generation, house.captures(invoice)) == (1, 1)
        await house.s.admin.resume(REFUNDS)
        await house.run()
        async with house.s.begin() as tx:
            await dunning.pay_invoice(tx, customer.id, invoice.id)
        await house.run()
        assert (await last_invoice(house, subscription)).state is InvoiceState.PAID
        assert await house.broken() == {}


async def test_it_is_put_back_no_more_and_the_right_order_under_that_key_is_refused_by_payments(
    stage: OpenStage,
) -> None:
    async with open_house(stage) as house:
        _, subscription = await first_invoice(house)
        house.door.answers = [503]
        await house.drain()
        assert (await last_invoice(house, subscription)).charging, "charged, and we do not know it yet"
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        for _ in range(2):
            async with house.s.begin() as tx:
                await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
                await tx.send(PAYMENTS_CLOCK, {}, action="put_back_payments")
            await house.run()
            await house.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        put_back = [n.text for n in await notes(house.s.read, severity=Severity.WARNING) if "charged" in n.text]
        assert put_back == ["invoice INV-2026-000001 was being charged and had no message"]
        assert [text for text in await house.parked() if "is recorded with another amount" in text]
        assert len(house.gateway.books.charges) == 1
        assert (await last_invoice(house, subscription)).charging is False
        assert await house.broken() == {}


async def test_a_failure_of_another_amount_took_nothing_and_releases_the_invoice_too(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(DECLINES), run=False)
        house.door.answers = [503]
        await house.drain()
        told = await house.told("initial")
        assert told.status is Status.FAILED
        async with house.s.begin() as tx:
            applied = await payment_events.apply(tx, msgspec.structs.replace(told, event_id="evt-odd", amount="28.00"))
        assert applied.problem == "28.00 AED is not the amount of INV-2026-000001"
        invoice = await last_invoice(house, subscription)
        assert (invoice.charging, invoice.decline_code) == (False, "card_declined")
        assert await house.s.owner.fetchval("select count(*) from subscriptions.unapplied_payments") == 0
