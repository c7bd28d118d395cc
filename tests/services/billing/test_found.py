"""Orders of events that once cost money or left the books unexplained, each with what must come of it."""

from datetime import timedelta

import pytest

from payonce.kit.money import Amount
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import test_clocks
from payonce.services.billing.subscriptions.model import State
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, House, aed, open_house
from tests.services.billing.test_life import give_credit

REFUNDS = "q:pay:refund_initiation"


async def all_is_back(house: House) -> None:
    """Nothing is left at the gateway, between the services or before a person."""
    paths = ("gateway_clearing", "captured", "unapplied")
    assert {path: await house.balance(path) for path in paths} == dict.fromkeys(paths, 0)
    assert await house.broken() == {}
    assert await house.parked() == []


async def test_of_a_late_payment_that_a_person_gave_back_in_part_the_rest_goes_back_too(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), run=False)
        house.door.answers = [503]
        await house.drain()
        told = await house.told("initial")
        assert told.transaction_id is not None
        async with house.s.begin() as tx:
            await refunds.request(tx, told.transaction_id, Amount(1_000, AED), "a part of it", "by-hand")
        await house.cancel(await house.subscription(subscription))
        await all_is_back(house)


async def test_a_late_payments_refund_that_lost_its_message_is_asked_for_again_and_made_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), run=False)
        house.door.answers = [503]
        await house.drain()
        await house.s.admin.pause(REFUNDS, "to lose it")
        await house.cancel(await house.subscription(subscription))
        assert await house.balance("unapplied") == -2_900
        await house.s.owner.execute("delete from payonce.messages where queue = $1", REFUNDS)
        await house.s.admin.resume(REFUNDS)
        await house.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
        for _ in range(2):
            async with house.s.begin() as tx:
                await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
            await house.run()
        await all_is_back(house)


async def test_a_trial_whose_refund_is_under_way_is_not_given_back_in_credit_as_well(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.admin.pause(REFUNDS, "the gateway is silent")
        trial = await house.start_trial(await house.customer())
        await house.change_plan(trial, "pro")
        await house.s.admin.resume(REFUNDS)
        await house.run()
        [first, second] = await house.invoices(trial)
        assert first.refunded == aed("1.00")
        assert second.total == aed("99.00")
        assert await house.broken() == {}


@pytest.mark.parametrize("minor", [40, 4_000])
async def test_a_trial_is_not_paid_out_of_credit_that_would_not_come_back(stage: OpenStage, minor: int) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        await give_credit(house, customer.id, minor)
        trial = await house.start_trial(customer)
        assert await house.state(trial) is State.TRIALING
        [invoice] = await house.invoices(trial)
        assert invoice.due == invoice.refunded == aed("1.00")
        assert await house.credit(customer) == Amount(minor, AED)
        assert await house.broken() == {}


async def test_a_change_of_plan_after_an_outage_does_not_jump_over_the_periods_that_are_due(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.due_at is not None
        await house.s.clock.freeze(subscription.due_at + timedelta(days=40))
        with pytest.raises(Conflict, match="the subscription's period is over"):
            await house.change_plan(subscription, "pro")
        await house.look()
        await house.run()
        await house.look()
        changed = await house.change_plan(subscription, "pro")
        assert (changed.plan_id, changed.anchor_at) == ("pro-v1", subscription.anchor_at)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1, 2, None]
        assert await house.broken() == {}


async def put_back(house: House) -> None:
    await house.s.clock.advance(schedules.FORGOTTEN_AFTER_S + 1)
    async with house.s.begin() as tx:
        await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
    await house.run()


async def test_a_test_clock_whose_renewal_lost_its_message_goes_on(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock()
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        assert subscription.due_at is not None
        await house.s.admin.pause("q:sub:payment_initiation", "to lose it")
        await house.advance(clock, subscription.due_at)
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.admin.resume("q:sub:payment_initiation")
        await put_back(house)
        assert [each.period for each in await house.invoices(subscription)] == [0, 1]
        assert await test_clocks.waits_for(house.s.read, clock.id) is None
        assert await house.broken() == {}


@pytest.mark.parametrize("trial", [False, True])
async def test_a_first_invoice_that_lost_its_message_is_issued_and_holds_up_no_clock(
    stage: OpenStage, trial: bool
) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock()
        customer = await house.customer(test_clock=clock)
        begin = house.start_trial if trial else house.subscribe
        subscription = await begin(customer, run=False)
        await house.s.owner.execute("delete from payonce.messages")
        await put_back(house)
        assert await house.state(subscription) is (State.TRIALING if trial else State.ACTIVE)
        assert await test_clocks.waits_for(house.s.read, clock.id) is None
        [invoice] = await house.invoices(subscription)
        assert house.captures(invoice) == 1
        assert await house.broken() == {}
