"""Test clocks: a customer's years in moments, in order, and nothing lost on the way."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from payonce.kit.outcomes import Invalid
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import new_subscriptions, plan_changes, test_clocks
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import State, Subscription
from payonce.services.billing.subscriptions.store import subscriptions as store
from payonce.testing import OpenStage, eventually
from tests.locks import apart, waits_for_a_lock
from tests.services.billing.billing_stage import BEGIN, House, aed, open_house

LONG_AGO = datetime(2020, 1, 31, 9, tzinfo=UTC)
A_YEAR_ON = datetime(2021, 1, 31, 9, tzinfo=UTC)


async def test_a_year_of_a_customer_passes_at_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        assert subscription.period_start == LONG_AGO
        arrived = await house.advance(clock, A_YEAR_ON)
        assert arrived.now_at == arrived.target_at == A_YEAR_ON
        invoices = await house.invoices(subscription)
        assert [invoice.issued_at.day for invoice in invoices] == [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31]
        assert {house.captures(invoice) for invoice in invoices} == {1}
        assert invoices[0].number == f"TEST-{clock.id.upper()}-INV-2020-000001"
        assert await house.balance("revenue") == -12 * 2_900
        assert await house.s.clock.now() < BEGIN + timedelta(hours=1), "the store's own clock has hardly moved"
        assert await house.broken() == {}


async def test_trials_dunning_and_renewals_of_many_happen_in_order(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        payer, trier, poor = [await house.customer(test_clock=clock) for _ in range(3)]
        renewed = await house.subscribe(payer)
        tried = await house.start_trial(trier)
        owed = await house.subscribe(poor, "pro")
        house.card_will(poor, *["insufficient_funds"] * 3)
        await house.advance(clock, LONG_AGO + timedelta(days=95))
        assert [each.period for each in await house.invoices(renewed)] == [0, 1, 2, 3]
        assert [each.period for each in await house.invoices(tried)] == [0, 1, 2, 3]
        assert await house.state(owed) is State.ACTIVE
        moments = await house.s.owner.fetch("select at from subscriptions.subscription_events order by id")
        assert [row["at"] for row in moments] == sorted(row["at"] for row in moments)
        paid = (await house.invoices(owed))[1]
        assert (paid.generation, paid.paid_at) == (4, paid.issued_at + timedelta(days=5))
        assert await house.broken() == {}


async def test_a_clock_waits_for_what_is_under_way(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        await house.s.admin.pause("q:pay:charge_initiation", "to be late")
        stuck = await house.advance(clock, A_YEAR_ON)
        assert stuck.now_at == subscription.period_end
        invoices = await house.invoices(subscription)
        assert await test_clocks.waits_for(house.s.read, clock.id) == f"the charge of invoice {invoices[1].number}"
        await house.s.admin.resume("q:pay:charge_initiation")
        await house.run()
        found = await test_clocks.find(house.s.read, clock.id)
        assert found is not None
        assert found.arrived
        assert len(await house.invoices(subscription)) == 13
        assert await house.broken() == {}


async def test_a_clock_whose_message_is_lost_goes_on_at_the_next_look(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        async with house.s.begin() as tx:
            await test_clocks.advance(tx, clock.id, A_YEAR_ON)
        await house.s.owner.execute("delete from payonce.messages where queue = $1", BILLING_CLOCK.queue)
        async with house.s.begin() as tx:
            await tx.send(BILLING_CLOCK, {}, action=schedules.RENEW)
        await house.run()
        assert len(await house.invoices(subscription)) == 13


async def test_what_customers_wish_on_the_way_counts_at_their_time(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(datetime(2020, 2, 1, 9, tzinfo=UTC))
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        await house.advance(clock, clock.now_at + timedelta(days=29 / 2))
        await house.change_plan(subscription, "pro")
        [_, change] = await house.invoices(subscription)
        assert change.due == aed("35.00")
        paused = await house.pause(subscription)
        assert paused.paused_at == clock.now_at + timedelta(days=29 / 2)
        await house.advance(clock, datetime(2020, 6, 1, tzinfo=UTC))
        resumed = await house.resume(subscription)
        assert resumed.period_start == datetime(2020, 6, 1, tzinfo=UTC)
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await house.advance(clock, datetime(2020, 8, 1, tzinfo=UTC))
        ended = await house.subscription(subscription)
        assert (ended.state, ended.ended_at) == (State.CANCELED, datetime(2020, 7, 1, tzinfo=UTC))
        assert await house.broken() == {}


async def test_a_cancellation_that_holds_the_subscription_as_the_clock_arrives_is_followed(stage: OpenStage) -> None:
    """The clock passes over what somebody has locked, and looks again."""
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        assert subscription.period_end is not None
        async with house.s.begin() as tx:
            await plan_changes.cancel(tx, None, subscription.id, ChangeTiming.PERIOD_END)
            async with house.s.begin() as other:
                await test_clocks.advance(other, clock.id, subscription.period_end)
            await house.drain()
            arrived = await apart(test_clocks.find(house.s.read, clock.id))
            assert arrived is not None
            assert arrived.arrived
        await house.run()
        await ended_with_its_period(house, subscription)


async def test_revenue_of_a_subscription_that_is_locked_as_the_clock_arrives_is_counted_then(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        [invoice] = await house.invoices(subscription)
        assert invoice.earn_at is not None
        async with house.s.begin() as tx:
            await store.locked(tx, subscription.id)
            async with house.s.begin() as other:
                await test_clocks.advance(other, clock.id, invoice.earn_at)
            await house.drain()
            assert await house.balance("revenue") == 0
        await house.run()
        assert await house.balance("revenue") < 0
        assert await house.broken() == {}


async def test_a_clock_that_arrived_and_has_something_left_to_put_is_moved_by_the_next_look(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        await house.s.owner.execute(
            "update subscriptions.test_clocks set now_at = $1, target_at = $1", subscription.period_end
        )
        await house.look()
        assert len(await house.invoices(subscription)) == 2
        assert await test_clocks.waits_for(house.s.read, clock.id) is None


async def test_a_cancellation_that_waits_for_the_clock_to_put_the_renewal_comes_before_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        assert subscription.period_end is not None
        async with house.s.begin() as tx:
            arriving = await test_clocks.advance(tx, clock.id, subscription.period_end)
            await test_clocks._hop(tx, arriving)
            canceling = asyncio.create_task(cancel(house, subscription))
            await eventually(lambda: waits_for_a_lock(house.s))
        await canceling
        await house.run()
        await ended_with_its_period(house, subscription)


async def cancel(house: House, subscription: Subscription) -> None:
    async with house.s.begin() as tx:
        await plan_changes.cancel(tx, None, subscription.id, ChangeTiming.PERIOD_END)


async def ended_with_its_period(house: House, subscription: Subscription) -> None:
    ended = await house.subscription(subscription)
    assert (ended.state, ended.ended_at) == (State.CANCELED, subscription.period_end)
    assert len(await house.invoices(subscription)) == 1
    assert subscription.test_clock_id is not None
    assert await test_clocks.waits_for(house.s.read, subscription.test_clock_id) is None
    assert await house.broken() == {}


async def test_customers_on_the_stores_clock_are_left_alone(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        other = await house.subscribe(await house.customer())
        clock = await house.test_clock(BEGIN)
        subscription = await house.subscribe(await house.customer(test_clock=clock))
        await house.advance(clock, BEGIN + timedelta(days=100))
        await house.look()
        assert len(await house.invoices(subscription)) == 4
        assert len(await house.invoices(other)) == 1
        await house.pass_days(40)
        assert len(await house.invoices(subscription)) == 4
        assert [each.number for each in await house.invoices(other)] == ["INV-2026-000001", "INV-2026-000002"]


async def test_a_clock_is_not_set_back_nor_sent_too_far(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        async with house.s.begin() as tx:
            for moment in (LONG_AGO - timedelta(days=1), LONG_AGO + timedelta(days=10_000)):
                with pytest.raises(Conflict, match="the clock stands at 2020-01-31"):
                    await test_clocks.advance(tx, clock.id, moment)
            with pytest.raises(NotFound, match="no test clock"):
                await test_clocks.advance(tx, "gone", A_YEAR_ON)
            with pytest.raises(Invalid, match="no time zone"):
                await test_clocks.advance(tx, clock.id, A_YEAR_ON.replace(tzinfo=None))


async def test_only_an_account_without_a_subscription_is_put_on_a_clock(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer, other = await house.customer(), await house.customer()
        clock = await house.test_clock(LONG_AGO)
        await house.subscribe(other)
        async with house.s.begin() as tx:
            await test_clocks.put_on_clock(tx, customer.id, clock.id)
            with pytest.raises(Conflict, match="without a subscription"):
                await test_clocks.put_on_clock(tx, other.id, clock.id)
            with pytest.raises(NotFound, match="no test clock"):
                await test_clocks.put_on_clock(tx, customer.id, "gone")
        assert (await house.subscribe(customer)).period_start == LONG_AGO


async def test_who_subscribes_while_they_are_put_on_a_clock_lives_by_one_time(stage: OpenStage) -> None:
    """Whoever comes later waits, and sees what the other has done."""
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        first, second = await house.customer(), await house.customer()

        async def join(account_id: str) -> None:
            async with house.s.begin() as tx:
                await test_clocks.put_on_clock(tx, account_id, clock.id)

        async with house.s.begin() as tx:
            await new_subscriptions.start(tx, first.id, "basic")
            joining = apart(join(first.id))
            await eventually(lambda: waits_for_a_lock(house.s))
        with pytest.raises(Conflict, match="without a subscription"):
            await joining

        async with house.s.begin() as tx:
            await test_clocks.put_on_clock(tx, second.id, clock.id)
            subscribing = apart(house.subscribe(second, run=False))
            await eventually(lambda: waits_for_a_lock(house.s))
        assert (await subscribing).test_clock_id == clock.id
        await house.run()
        assert [each.issued_at for each in await house.invoices(second)] == [LONG_AGO]
        assert await house.broken() == {}


async def test_a_clock_does_not_begin_before_there_are_periods(stage: OpenStage) -> None:
    """1970 in Kiritimati is still 1969 here: nothing that began there could ever be invoiced."""
    async with open_house(stage) as house:
        with pytest.raises(Invalid, match="before 1970 in UTC"):
            await house.test_clock(datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=14))))


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_year_of_fifty_customers_on_one_clock_is_invoiced_whole(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        clock = await house.test_clock(LONG_AGO)
        customers = [await house.customer(test_clock=clock) for _ in range(50)]
        subscriptions = [await house.subscribe(customer, run=False) for customer in customers]
        await house.run()
        await house.advance(clock, A_YEAR_ON)
        for subscription in subscriptions:
            assert len(await house.invoices(subscription)) == 13
        assert await house.broken() == {}
