"""A subscription's life from its first payment to its end, with books that close at every step."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from payonce.engine.controls import submit
from payonce.services.billing.subscriptions.decisions.credit import CreditChange, CreditVerdict, credit_action
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import new_subscriptions
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Due, InvoiceState, State
from payonce.services.billing.subscriptions.store import subscriptions
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import BEGIN, DECLINES, PAYS, House, aed, open_house


async def test_a_subscription_is_active_with_its_first_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.state is State.ACTIVE
        assert (subscription.period, subscription.period_start) == (0, BEGIN)
        assert subscription.period_end == datetime(2026, 2, 28, 9, tzinfo=UTC)
        assert (subscription.due_for, subscription.due_at) == (Due.RENEW, subscription.period_end)
        [invoice] = await house.invoices(subscription)
        assert (invoice.number, invoice.state, invoice.due) == ("INV-2026-000001", InvoiceState.PAID, aed("29.00"))
        assert house.captures(invoice) == 1
        assert await house.timeline(subscription) == ["created", "activated"]
        assert await house.broken() == {}


async def test_a_year_has_twelve_renewals_on_the_last_of_each_month(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.go_to(BEGIN + timedelta(days=365))
        invoices = await house.invoices(subscription)
        assert [invoice.period for invoice in invoices] == list(range(13))
        assert [invoice.period_end.day for invoice in invoices] == [28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31, 28]
        assert {house.captures(invoice) for invoice in invoices} == {1}
        assert [invoice.number for invoice in invoices][-2:] == ["INV-2026-000012", "INV-2027-000001"]
        assert await house.balance("gateway_clearing") == 13 * 2_900
        # Twelve periods are over; the thirteenth has just begun.
        assert await house.balance("revenue") == -12 * 2_900
        assert await house.balance("deferred") == -2_900
        assert await house.broken() == {}
        assert await house.parked() == []


async def test_an_hour_in_dubai_stays_that_hour(stage: OpenStage) -> None:
    async with open_house(stage, at=datetime(2026, 3, 1, 6, tzinfo=UTC)) as house:
        subscription = await house.subscribe(await house.customer(zone="Europe/Berlin"))
        # Seven in the morning in winter, and seven in the morning in summer.
        assert subscription.period_end == datetime(2026, 4, 1, 5, tzinfo=UTC)


async def test_a_card_that_declines_leaves_it_incomplete_until_it_expires(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(DECLINES))
        assert subscription.state is State.INCOMPLETE
        [invoice] = await house.invoices(subscription)
        assert (invoice.state, invoice.decline_code, invoice.failures) == (InvoiceState.OPEN, "card_declined", 1)
        await house.go_to(BEGIN + timedelta(hours=23, seconds=-1))
        assert await house.state(subscription) is State.INCOMPLETE
        await house.go_to(BEGIN + timedelta(hours=23))
        assert await house.state(subscription) is State.INCOMPLETE_EXPIRED
        [invoice] = await house.invoices(subscription)
        assert (invoice.state, house.captures(invoice)) == (InvoiceState.VOID, 0)
        assert {await house.balance(path) for path in ("receivable", "deferred", "revenue", "bad_debt")} == {0}
        assert await house.broken() == {}


async def test_without_a_card_it_waits_for_one_and_is_charged_when_it_comes(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer(card=None)
        subscription = await house.subscribe(customer)
        [invoice] = await house.invoices(subscription)
        assert (subscription.state, invoice.decline_code) == (State.INCOMPLETE, "no_payment_method")
        await house.give_card(customer)
        await house.run()
        assert await house.state(subscription) is State.ACTIVE
        [invoice] = await house.invoices(subscription)
        assert (invoice.generation, house.captures(invoice)) == (2, 1)
        assert await house.broken() == {}


async def test_an_account_has_one_subscription_at_a_time(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        first = await house.subscribe(customer)
        with pytest.raises(Conflict, match="already has a subscription"):
            await house.subscribe(customer, "pro")
        await house.cancel(first)
        second = await house.subscribe(customer, "pro")
        assert second.state is State.ACTIVE
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("plan", "trial", "says"),
    [("gone", False, "no plan"), ("trial", False, "is a trial"), ("basic", True, "not a trial")],
)
async def test_what_is_not_for_sale_is_refused(stage: OpenStage, plan: str, trial: bool, says: str) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        with pytest.raises((Conflict, NotFound), match=says):
            await (house.start_trial if trial else house.subscribe)(customer, plan)


async def test_a_trial_is_given_back_and_becomes_the_plan_that_follows(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.start_trial(await house.customer())
        assert subscription.state is State.TRIALING
        assert subscription.trial_ends_at == BEGIN + timedelta(days=14)
        [invoice] = await house.invoices(subscription)
        assert (invoice.due, invoice.refunded, invoice.refunding) == (aed("1.00"), aed("1.00"), False)
        assert await house.balance("gateway_clearing") == 0
        await house.pass_days(14)
        subscription = await house.subscription(subscription)
        assert (subscription.state, subscription.plan_id, subscription.period) == (State.ACTIVE, "basic-v1", 1)
        assert subscription.period_end == datetime(2026, 3, 14, 9, tzinfo=UTC)
        await house.pass_days(40)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1, 2]
        assert await house.broken() == {}


async def test_a_trial_can_be_ended_before_it_costs_anything(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.start_trial(await house.customer())
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await house.pass_days(20)
        subscription = await house.subscription(subscription)
        assert (subscription.state, subscription.ended_at) == (State.CANCELED, subscription.trial_ends_at)
        assert await house.balance("gateway_clearing") == 0
        assert await house.broken() == {}


async def test_a_customer_has_one_trial_and_whoever_never_got_it_may_try_again(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer(DECLINES)
        for number in (DECLINES, PAYS):
            await house.give_card(customer, number)
            subscription = await house.start_trial(customer)
            await house.cancel(subscription)
        with pytest.raises(Conflict, match="already had a trial"):
            await house.start_trial(customer)
        async with house.s.begin() as tx:
            await new_subscriptions.start_trial(tx, customer.id, "trial", again=True)
        await house.run()
        begun = await subscriptions.running(house.s.read, customer.id)
        assert begun is not None
        assert begun.state is State.TRIALING
        assert await house.broken() == {}


async def test_canceled_at_the_end_of_the_period_it_runs_until_then(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        asked = await house.cancel(subscription, ChangeTiming.PERIOD_END)
        assert (asked.state, asked.cancel_at_period_end) == (State.ACTIVE, True)
        await house.pass_days(40)
        ended = await house.subscription(subscription)
        assert (ended.state, ended.ended_at) == (State.CANCELED, subscription.period_end)
        assert len(await house.invoices(subscription)) == 1
        assert await house.balance("deferred") == 0
        assert await house.broken() == {}


async def test_a_cancellation_at_the_end_can_be_taken_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await house.resume(subscription)
        await house.pass_days(40)
        assert await house.state(subscription) is State.ACTIVE
        assert len(await house.invoices(subscription)) == 2


async def test_canceled_now_it_earns_at_once_what_was_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.pass_days(10)
        canceled = await house.cancel(subscription)
        assert (canceled.state, canceled.due_at) == (State.CANCELED, None)
        assert (await house.balance("revenue"), await house.balance("deferred")) == (-2_900, 0)
        with pytest.raises(Conflict, match="already canceled"):
            await house.cancel(subscription)
        assert await house.broken() == {}


async def test_resumed_within_its_period_it_is_as_before(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.pass_days(3)
        paused = await house.pause(subscription)
        assert (paused.state, paused.due_at) == (State.PAUSED, None)
        await house.pass_days(3)
        resumed = await house.resume(subscription)
        assert (resumed.state, resumed.due_at) == (State.ACTIVE, subscription.period_end)
        assert len(await house.invoices(subscription)) == 1
        assert await house.broken() == {}


async def test_resumed_after_its_period_a_new_one_begins_at_that_moment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.pause(subscription)
        await house.pass_days(100)
        assert len(await house.invoices(subscription)) == 1
        now = await house.s.clock.now()
        resumed = await house.resume(subscription)
        assert (resumed.state, resumed.period, resumed.period_start) == (State.ACTIVE, 1, now)
        [_, invoice] = await house.invoices(subscription)
        assert (invoice.state, house.captures(invoice)) == (InvoiceState.PAID, 1)
        await house.pass_days(35)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1, 2]
        assert await house.broken() == {}


async def test_a_paused_trial_that_is_over_becomes_the_plan_that_follows(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.start_trial(await house.customer())
        await house.pause(subscription)
        await house.pass_days(20)
        now = await house.s.clock.now()
        resumed = await house.resume(subscription)
        assert (resumed.state, resumed.plan_id, resumed.period_start) == (State.ACTIVE, "basic-v1", now)
        assert await house.broken() == {}


async def test_somebody_elses_subscription_is_not_there(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        other = await house.customer()
        stolen = replace(subscription, account_id=other.id)
        for wish in (house.cancel, house.pause, house.resume):
            with pytest.raises(NotFound, match="no subscription"):
                await wish(stolen)
        assert await house.state(subscription) is State.ACTIVE


async def test_after_an_outage_every_period_is_invoiced_one_after_the_other(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.s.clock.freeze(BEGIN + timedelta(days=95))
        await house.pass_days(1)
        invoices = await house.invoices(subscription)
        assert [invoice.period for invoice in invoices] == [0, 1, 2, 3]
        assert [house.captures(invoice) for invoice in invoices] == [1, 1, 1, 1]
        assert await house.broken() == {}


async def test_credit_is_used_up_by_the_next_invoices(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        await give_credit(house, customer.id, 4_000)
        subscription = await house.subscribe(customer)
        [first] = await house.invoices(subscription)
        assert (first.credit, first.due, first.state) == (aed("29.00"), aed("0.00"), InvoiceState.PAID)
        await house.pass_days(30)
        [_, second] = await house.invoices(subscription)
        assert (second.credit, second.due, house.captures(second)) == (aed("11.00"), aed("18.00"), 1)
        assert await house.credit(customer) == aed("0.00")
        assert await house.broken() == {}


async def give_credit(house: House, account_id: str, minor: int) -> None:
    """As an operator does it."""
    asked = CreditChange(
        account_id=account_id,
        currency="AED",
        exponent=2,
        seen=0,
        verdict=CreditVerdict.ADD,
        amount_minor=minor,
        note="an outage",
    )
    async with house.s.begin() as tx:
        await submit(tx, credit_action(house.s.admin), asked, "ann", asked.note)
