"""A period that is left for a new one, as by a change from a month to a year: what was used goes along as the price
goes back, so that nobody begins at zero by changing to and fro."""

from datetime import timedelta
from fractions import Fraction

import pytest

from payonce.services.billing.subscriptions.handlers import settlement
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.store import subscriptions, usage
from payonce.services.billing.subscriptions.store.usage import UsageRefused
from payonce.testing import OpenStage, eventually
from tests.locks import apart, waits_for_a_lock
from tests.services.billing.billing_stage import Customer, House, open_house
from tests.services.billing.usage.usage_stage import CALLS, SECOND, THIRD, broken, renew, subscribe


async def used(house: House, customer: Customer) -> int:
    found = await usage.current_usage(house.s.read, customer.id)
    assert found is not None
    feature = found.of(CALLS)
    assert feature is not None
    return feature.used


async def test_half_of_the_price_goes_back_and_half_of_the_use_goes_along(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer, "pro")
        assert subscription.period_start is not None
        assert subscription.period_end is not None
        await usage.use(house.s.read, customer.id, CALLS, 8_001, "e-1")
        middle = subscription.period_start + (subscription.period_end - subscription.period_start) / 2
        await house.go_to(middle)
        await house.change_plan(subscription, "annual-pro", ChangeTiming.NOW)
        assert await used(house, customer) == 4_001, "rounded up: by many changes nothing is gained either"
        await usage.use(house.s.read, customer.id, CALLS, 5_999, "e-2")
        with pytest.raises(UsageRefused, match="10000 of 10000"):
            await usage.use(house.s.read, customer.id, CALLS, 1, "e-3")
        totals = [(each.period_start, each.total) for each in await usage.totals(house.s.read, customer.id)]
        assert totals == [(middle, 10_000), (subscription.period_start, 4_000)], "together, what was used"
        assert await house.broken() == {}


async def changed_to_and_fro(house: House) -> int:
    """What a customer could use within some minutes, with a plan of 10,000 a month and one of 10,000 a year."""
    customer = await house.customer()
    subscription = await house.subscribe(customer, "pro")
    counted = 0
    for number, plan in enumerate(("annual-pro", "pro")):
        if left := 10_000 - await used(house, customer):
            await usage.use(house.s.read, customer.id, CALLS, left, f"e-{number}")
        counted += left
        await house.s.clock.freeze(await house.s.clock.now() + timedelta(seconds=1))
        await house.change_plan(subscription, plan, ChangeTiming.NOW)
    assert await house.broken() == {}
    return counted


async def test_changing_to_and_fro_gives_no_more_than_the_time_that_was_paid_for(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        assert await changed_to_and_fro(house) < 10_010


async def test_without_it_every_change_is_a_whole_allowance(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave_it(*_: object) -> None:
        return

    monkeypatch.setattr(settlement, "_carry_usage_over", leave_it)
    async with open_house(stage) as house:
        assert await changed_to_and_fro(house) == 20_000


async def test_who_counts_while_the_period_is_left_counts_in_the_new_one(stage: OpenStage) -> None:
    """Also where the counter still stood at an earlier period."""
    async with stage() as s:
        await subscribe(s)
        await usage.use(s.read, "anna", CALLS, 10, "e-1")
        await renew(s)
        before = await subscriptions.find(s.read, "of-anna")
        assert before is not None
        middle = SECOND + (THIRD - SECOND) / 2
        async with s.begin() as tx:
            await usage.carry_over(tx, before, SECOND, middle, Fraction(1, 2))
            counting = apart(usage.use(s.read, "anna", CALLS, 700, "e-2"))
            await eventually(lambda: waits_for_a_lock(s))
            await tx.execute("update subscriptions.subscriptions set period_start = $1", middle)
        assert (await counting).period_start == middle
        assert await broken(s) == {}


async def test_what_a_trial_allowed_is_not_counted_against_the_plan(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.start_trial(customer)
        await usage.use(house.s.read, customer.id, CALLS, 100, "e-1")
        await house.change_plan(subscription, "basic", ChangeTiming.NOW)
        assert await used(house, customer) == 0
        assert await house.broken() == {}
