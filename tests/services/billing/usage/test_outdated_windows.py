"""In a rolling deployment processes of the version before renew and begin subscriptions without allowance windows."""

from datetime import timedelta
from typing import Final

import pytest

from payonce.engine.audit import notes
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.model import Subscription
from payonce.services.billing.subscriptions.store import usage
from payonce.services.billing.subscriptions.store.usage import UsageRefused
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import House, open_house
from tests.services.billing.usage.usage_stage import CALLS

BROKEN: Final = "limits reset as the plan says"
LOST: Final = {
    "a subscription begun without windows": "null",
    "windows of the period before": """
        array(select w - interval '1 year' from unnest(allowance_starts) w order by w)""",
}


async def put_back(house: House) -> list[str]:
    async with house.s.begin() as tx:
        await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
    await house.drain()
    return [each.text for each in await notes(house.s.read, location="billing.put_back")]


async def outdated(house: House, subscription: Subscription, windows: str) -> None:
    await house.s.owner.execute(
        f"update subscriptions.subscriptions set allowance_starts = {windows} where id = $1", subscription.id
    )


@pytest.mark.parametrize("windows", LOST.values(), ids=LOST)
async def test_windows_that_a_process_of_the_version_before_left_are_put_right(stage: OpenStage, windows: str) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await house.subscribe(customer, "annual-pro")
        await outdated(house, subscription, windows)
        await usage.use(house.s.read, customer.id, CALLS, 10, "before")
        await house.s.clock.advance(timedelta(hours=2).total_seconds())
        assert [row["id"] for row in (await house.broken())[BROKEN]] == [subscription.id]
        [said] = await put_back(house)
        assert "allowance windows" in said
        assert (await house.subscription(subscription)).allowance_starts == subscription.allowance_starts
        await house.pass_days(31)
        for month in range(2):
            await usage.use(house.s.read, customer.id, CALLS, 10_000, f"e-{month}")
            with pytest.raises(UsageRefused):
                await usage.use(house.s.read, customer.id, CALLS, 1, f"over-{month}")
            await house.pass_days(31)
        assert await put_back(house) == [said], "there was nothing else to put right"
        assert await house.broken() == {}


async def test_a_period_that_is_about_to_begin_with_another_anchor_is_left_alone(stage: OpenStage) -> None:
    """After a pause that was longer than the period, before the next one is worked on."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "annual-pro")
        await house.pause(subscription)
        await house.pass_days(400)
        await house.s.admin.pause("q:sub:payment_initiation", "to be late")
        await house.resume(subscription)
        await outdated(house, subscription, "null")
        assert await put_back(house) == []
        await house.s.admin.resume("q:sub:payment_initiation")
        await house.run()
        assert len((await house.subscription(subscription)).allowance_starts or ()) == 12
        assert await house.broken() == {}


async def test_windows_of_a_plan_that_was_left_are_removed(stage: OpenStage) -> None:
    """The limits of Basic are for a whole period."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await outdated(house, subscription, "array[period_start, period_start + interval '1 day']")
        await house.s.clock.advance(timedelta(hours=2).total_seconds())
        assert [row["id"] for row in (await house.broken())[BROKEN]] == [subscription.id]
        await put_back(house)
        assert (await house.subscription(subscription)).allowance_starts is None
        assert await house.broken() == {}


async def test_a_subscription_whose_windows_are_right_is_left_alone(stage: OpenStage) -> None:
    """Of a trial, of a plan without windows, and of a plan with them."""
    async with open_house(stage) as house:
        plans = ("basic", "annual-pro")
        mine = [await house.subscribe(await house.customer(), plan) for plan in plans]
        mine.append(await house.start_trial(await house.customer()))
        assert await put_back(house) == []
        assert [(await house.subscription(each)).revision for each in mine] == [each.revision for each in mine]
