"""What follows a renewal that cannot be charged: its days, a new card, and the end."""

from datetime import timedelta

import pytest

from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import dunning
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Due, InvoiceState, State, Subscription
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import DECLINES, EXPIRED, Customer, House, aed, open_house

SOFT, HARD, PAYS_AGAIN = "insufficient_funds", "expired_card", "succeeds"


async def with_a_failed_renewal(house: House, *outcomes: str, plan: str = "basic") -> tuple[Customer, Subscription]:
    """The first period is paid; the charges that follow end like this."""
    customer = await house.customer()
    subscription = await house.subscribe(customer, plan)
    house.card_will(customer, *outcomes)
    assert subscription.period_end is not None
    await house.go_to(subscription.period_end)
    return customer, await house.subscription(subscription)


async def test_a_failed_renewal_is_tried_on_its_days_and_then_unpaid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, subscription = await with_a_failed_renewal(house, *[SOFT] * 6)
        failed_at = await house.s.clock.now()
        assert (subscription.state, subscription.due_for) == (State.PAST_DUE, Due.DUN)
        for tries, day in enumerate((1, 3, 5, 7), start=2):
            await house.go_to(failed_at + timedelta(days=day, seconds=-1))
            assert (await house.invoices(subscription))[1].generation == tries - 1
            await house.go_to(failed_at + timedelta(days=day))
            assert (await house.invoices(subscription))[1].generation == tries
            assert await house.state(subscription) is State.PAST_DUE
        await house.go_to(failed_at + timedelta(days=14))
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.generation, invoice.failures, invoice.state) == (6, 6, InvoiceState.UNCOLLECTIBLE)
        subscription = await house.subscription(subscription)
        assert (subscription.state, subscription.due_at) == (State.UNPAID, None)
        # Half of the month was served for nothing, the other half is owed by nobody.
        assert await house.balance("bad_debt") == 1_310
        assert await house.balance("deferred") == await house.balance("receivable") == 0
        await house.pass_days(200)
        assert len(await house.invoices(subscription)) == 2
        assert await house.broken() == {}


async def test_paid_on_a_day_of_dunning_it_is_active_as_if_nothing_had_been(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, subscription = await with_a_failed_renewal(house, SOFT, SOFT)
        await house.pass_days(4)
        renewed = await house.subscription(subscription)
        assert (renewed.state, renewed.due_for, renewed.due_at) == (State.ACTIVE, Due.RENEW, subscription.period_end)
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.state, invoice.generation, house.captures(invoice)) == (InvoiceState.PAID, 3, 1)
        assert await house.broken() == {}


async def test_a_hard_decline_is_not_tried_again_and_ends_on_the_last_day(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, subscription = await with_a_failed_renewal(house, HARD)
        await house.pass_days(13.9)
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.generation, await house.state(subscription)) == (1, State.PAST_DUE)
        await house.pass_days(0.1)
        assert await house.state(subscription) is State.UNPAID
        assert (await house.invoices(subscription))[1].generation == 1
        assert await house.broken() == {}


async def test_a_plan_may_say_that_who_does_not_pay_is_canceled(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.owner.execute(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count, after_dunning) values ('strict-v1', 'strict', 1, 'Strict', 1000, 'AED', 2, 'month', 1,
                'canceled')
            """
        )
        _, subscription = await with_a_failed_renewal(house, *[SOFT] * 6, plan="strict")
        await house.pass_days(14)
        canceled = await house.subscription(subscription)
        assert (canceled.state, canceled.reason) == (State.CANCELED, dunning.NOT_PAID)
        assert (await house.invoices(subscription))[1].state is InvoiceState.UNCOLLECTIBLE
        assert await house.broken() == {}


async def test_a_new_card_is_tried_at_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, HARD)
        await house.give_card(customer)
        await house.run()
        assert await house.state(subscription) is State.ACTIVE
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.generation, house.captures(invoice)) == (2, 1)
        assert await house.broken() == {}


async def test_a_new_card_that_declines_uses_up_no_day(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, SOFT)
        failed_at = await house.s.clock.now()
        await house.give_card(customer, DECLINES)
        await house.run()
        assert (await house.subscription(subscription)).due_at == failed_at + timedelta(days=1)
        await house.go_to(failed_at + timedelta(days=14))
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.generation, invoice.state) == (7, InvoiceState.UNCOLLECTIBLE)
        assert await house.broken() == {}


async def test_a_card_that_comes_while_another_is_charged_is_tried_when_that_fails(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer(EXPIRED)
        subscription = await house.subscribe(customer, run=False)
        # The charge is asked for, and payments has not begun with it.
        await house.s.admin.pause("q:pay:charge_initiation", "to be late")
        await house.drain()
        async with house.s.begin() as tx:
            invoice = await dunning.try_new_card(tx, customer.id)
        assert invoice is not None
        assert invoice.try_at_once
        house.card_will(customer, HARD, PAYS_AGAIN)
        await house.s.admin.resume("q:pay:charge_initiation")
        await house.run()
        assert await house.state(subscription) is State.ACTIVE
        [invoice] = await house.invoices(subscription)
        assert (invoice.generation, house.captures(invoice)) == (2, 1)
        assert await house.broken() == {}


async def test_unpaid_within_its_period_it_goes_on_when_it_is_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, HARD)
        await house.pass_days(20)
        assert await house.state(subscription) is State.UNPAID
        await house.give_card(customer)
        await house.run()
        renewed = await house.subscription(subscription)
        assert (renewed.state, renewed.due_at) == (State.ACTIVE, subscription.period_end)
        assert (await house.invoices(subscription))[1].state is InvoiceState.PAID
        assert (await house.balance("bad_debt"), await house.balance("receivable")) == (0, 0)
        await house.pass_days(15)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1, 2]
        assert await house.broken() == {}


async def test_unpaid_for_long_it_begins_a_new_period_when_the_old_one_is_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, HARD)
        await house.pass_days(100)
        now = await house.s.clock.now()
        await house.give_card(customer)
        await house.run()
        renewed = await house.subscription(subscription)
        assert (renewed.state, renewed.period, renewed.period_start) == (State.ACTIVE, 2, now)
        assert [house.captures(each) for each in await house.invoices(subscription)] == [1, 1, 1]
        assert await house.broken() == {}


async def test_unpaid_a_card_that_declines_leaves_it_so(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, HARD)
        await house.pass_days(20)
        owed = await house.balance("bad_debt")
        await house.give_card(customer, DECLINES)
        await house.run()
        assert await house.state(subscription) is State.UNPAID
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.state, invoice.generation) == (InvoiceState.UNCOLLECTIBLE, 2)
        assert (await house.balance("bad_debt"), await house.balance("deferred")) == (owed, 0)
        assert await house.broken() == {}


async def test_an_invoice_is_paid_when_its_customer_asks_for_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, subscription = await with_a_failed_renewal(house, SOFT)
        [first, second] = await house.invoices(subscription)
        async with house.s.begin() as tx:
            with pytest.raises(NotFound, match="no invoice"):
                await dunning.pay_invoice(tx, "somebody else", second.id)
            with pytest.raises(Conflict, match="paid and cannot be paid"):
                await dunning.pay_invoice(tx, customer.id, first.id)
            await dunning.pay_invoice(tx, customer.id, second.number)
            with pytest.raises(Conflict, match="is being charged"):
                await dunning.pay_invoice(tx, None, second.id)
        await house.run()
        assert await house.state(subscription) is State.ACTIVE
        assert await house.broken() == {}


async def test_periods_that_pass_during_dunning_are_invoiced_when_it_is_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.owner.execute(
            """
            insert into subscriptions.plans (id, code, version, name, price_minor, currency, exponent, interval_unit,
                interval_count) values ('daily-v1', 'daily', 1, 'Daily', 100, 'AED', 2, 'day', 1)
            """
        )
        _, subscription = await with_a_failed_renewal(house, SOFT, SOFT, plan="daily")
        await house.pass_days(3)
        invoices = await house.invoices(subscription)
        assert [each.period for each in invoices] == [0, 1, 2, 3, 4]
        assert [house.captures(each) for each in invoices] == [1] * 5
        assert await house.state(subscription) is State.ACTIVE
        assert await house.broken() == {}


async def test_canceled_while_past_due_nothing_more_is_owed(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        _, subscription = await with_a_failed_renewal(house, SOFT)
        await house.pass_days(0.5)
        await house.cancel(subscription, ChangeTiming.NOW)
        [_, invoice] = await house.invoices(subscription)
        assert invoice.state is InvoiceState.VOID
        assert await house.balance("receivable") == await house.balance("deferred") == 0
        assert await house.balance("bad_debt") == 47
        [note] = await house.s.owner.fetch("select * from subscriptions.credit_notes")
        assert (note["number"], note["amount_minor"]) == ("CN-2026-000001", aed("29.00").minor)
        await house.pass_days(40)
        assert len(await house.invoices(subscription)) == 2
        assert await house.broken() == {}


async def test_credit_pays_for_what_was_served_and_the_rest_of_it_comes_back(stage: OpenStage) -> None:
    from tests.services.billing.test_life import give_credit

    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer)
        await give_credit(house, customer.id, 2_000)
        house.card_will(customer, HARD)
        await house.pass_days(28)
        assert await house.credit(customer) == aed("0.00")
        await house.pass_days(14)
        assert await house.state(subscription) is State.UNPAID
        # 13.10 were served, for which credit was enough.
        assert (await house.credit(customer), await house.balance("bad_debt")) == (aed("6.90"), 0)
        await house.give_card(customer)
        await house.run()
        assert (await house.credit(customer), await house.state(subscription)) == (aed("0.00"), State.ACTIVE)
        assert await house.broken() == {}
