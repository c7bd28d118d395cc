"""Whoever is moved to another version of their plan is told long enough before, and of all that changes; a choice made
before the move does not escape it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import plan_migrations, plan_moves
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import ChangeState
from payonce.services.billing.subscriptions.store import plan_changes, plans
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, BEGIN, House, aed, open_house
from tests.services.billing.test_announcing import heard, listen
from tests.services.billing.test_plan_versions import offer, order, pending

MONTH, YEAR = Interval(Unit.MONTH), Interval(Unit.YEAR)
NOTICE = timedelta(days=plan_migrations.NOTICE_DAYS)


async def sell(house: House, code: str, minor: int, interval: Interval, **more: Any) -> None:
    async with house.s.begin() as tx:
        await plans.add_version(tx, Offer(code, code.title(), Amount(minor, AED), interval, **more))


async def notices(house: House) -> list[dict[str, Any]]:
    told = await heard(house)
    return [data["plan_change"] for name, data in told if name == "subscription.plan_change_scheduled"]


async def test_a_renewal_that_leaves_no_time_for_the_notice_is_at_the_older_price(stage: OpenStage) -> None:
    """Ordered a minute before the period ends: that renewal and its invoice are as before, the next one is dearer."""
    async with open_house(stage) as house:
        await listen(house)
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await offer(house, 3_900)
        await house.go_to(subscription.period_end - timedelta(minutes=1))
        await heard(house)
        seen = await plan_migrations.preview(house.s.read, "basic-v1")
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        [notice] = await notices(house)
        following = datetime(2026, 3, 31, 9, tzinfo=UTC)
        assert (notice["effective_at"], seen.first_at, seen.last_at) == (following.isoformat(), following, following)
        await house.go_to(following - timedelta(seconds=1))
        same = await house.subscription(subscription)
        assert (same.plan_id, same.next_plan_id, same.period) == ("basic-v1", "basic-v2", 1)
        [change] = (await pending(house, subscription)).values()
        assert change.effective_at(same) == following
        await house.go_to(following + timedelta(days=1))
        assert [each.due for each in await house.invoices(subscription)] == [aed("29.00"), aed("29.00"), aed("39.00")]
        assert await pending(house, subscription) == {}
        assert await house.broken() == {}


async def test_a_renewal_that_is_overdue_is_at_the_older_price(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await offer(house, 3_900)
        await house.s.clock.freeze(subscription.period_end + timedelta(hours=2))
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        await house.look()
        await house.run()
        assert [each.due for each in await house.invoices(subscription)] == [aed("29.00"), aed("29.00")]
        await house.pass_days(31)
        assert (await house.invoices(subscription))[-1].due == aed("39.00")
        assert await house.broken() == {}


async def test_a_plan_that_is_renewed_every_week_keeps_its_version_until_the_notice_is_over(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        await sell(house, "weekly", 1_000, Interval(Unit.WEEK))
        subscription = await house.subscribe(await house.customer(), "weekly")
        await sell(house, "weekly", 1_500, Interval(Unit.WEEK))
        await house.pass_days(6)
        ordered_at = await house.s.clock.now()
        await heard(house)
        seen = await plan_migrations.preview(house.s.read, "weekly-v1")
        await order(house, "weekly-v1", notice_days=plan_migrations.NOTICE_DAYS)
        [notice] = await notices(house)
        effective_at = datetime.fromisoformat(notice["effective_at"])
        assert ordered_at + NOTICE <= effective_at < ordered_at + NOTICE + timedelta(days=7)
        assert seen.first_at == effective_at
        await house.pass_days(30)
        invoices = await house.invoices(subscription)
        assert [each.due for each in invoices] == [aed("10.00")] * 3 + [aed("15.00")] * 3
        assert invoices[3].period_start == effective_at
        assert await house.broken() == {}


async def test_a_trial_that_ends_before_the_notice_becomes_what_it_was_promised_first(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        trial = await house.start_trial(await house.customer())
        await offer(house, 3_900)
        seen = await plan_migrations.preview(house.s.read, "basic-v1")
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        await house.pass_days(20)
        assert (await house.subscription(trial)).plan_id == "basic-v1"
        await house.pass_days(30)
        assert [each.due for each in await house.invoices(trial)] == [aed("1.00"), aed("29.00"), aed("39.00")]
        assert (await house.invoices(trial))[-1].period_start == seen.first_at
        assert await house.broken() == {}


async def test_a_version_that_was_chosen_before_the_notice_is_over_is_had_first(stage: OpenStage) -> None:
    """Basic at 29.00 was chosen for the next period, which begins in a day: it is not to be 39.00 then."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        assert subscription.period_end is not None
        await house.change_plan(subscription, "basic", ChangeTiming.PERIOD_END)
        await offer(house, 3_900)
        await house.go_to(subscription.period_end - timedelta(days=1))
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        assert (await house.subscription(subscription)).next_plan_id == "basic-v1"
        await house.pass_days(2)
        moving = await house.subscription(subscription)
        assert (moving.plan_id, moving.next_plan_id) == ("basic-v1", "basic-v2")
        await house.pass_days(31)
        dues = [each.due for each in await house.invoices(subscription)]
        assert dues == [aed("99.00"), aed("29.00"), aed("39.00")]
        assert await house.broken() == {}


async def test_a_pause_does_not_shorten_the_notice(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await offer(house, 3_900)
        await house.go_to(subscription.period_end - timedelta(days=2))
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        await house.pause(subscription)
        await house.pass_days(5)
        await house.resume(subscription)
        assert [each.due for each in await house.invoices(subscription)] == [aed("29.00"), aed("29.00")]
        await house.pass_days(31)
        assert (await house.invoices(subscription))[-1].due == aed("39.00")
        assert await house.broken() == {}


@pytest.mark.parametrize("days", [-1, 367])
async def test_a_notice_that_nobody_means_is_refused(stage: OpenStage, days: int) -> None:
    async with open_house(stage) as house:
        await offer(house, 3_900)
        async with house.s.begin() as tx:
            with pytest.raises(Invalid, match=f"{days} days is not possible"):
                await plan_migrations.start(tx, "basic-v1", None, "ann", "why", days)


@pytest.mark.parametrize("trial", [False, True])
@pytest.mark.parametrize("way", ["stay", "cancel and resume"])
async def test_a_choice_made_before_a_migration_does_not_escape_it(stage: OpenStage, way: str, trial: bool) -> None:
    """Pro was chosen for the next period before Basic was migrated, and is taken back after it."""
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await (house.start_trial(customer) if trial else house.subscribe(customer))
        await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        await offer(house, 3_900)
        seen = await plan_migrations.preview(house.s.read, "basic-v1", notice_days=0)
        assert (seen.subscriptions, seen.choosing, seen.canceling) == (0, 1, 0)
        migration = await order(house)
        assert migration.scheduled == 0
        if way == "stay":
            with pytest.raises(Conflict, match="no longer for sale" if trial else "cannot keep basic-v1"):
                await house.change_plan(subscription, "basic-v1", ChangeTiming.PERIOD_END)
            await house.change_plan(subscription, "basic", ChangeTiming.PERIOD_END)
        else:
            await house.cancel(subscription, ChangeTiming.PERIOD_END)
            await house.resume(subscription)
            [change] = (await pending(house, subscription)).values()
            assert (change.to_plan_id, change.migration_id) == ("basic-v2", migration.id)
        await house.pass_days(32)
        assert (await house.subscription(subscription)).plan_id == "basic-v2"
        assert (await house.invoices(subscription))[1].due == aed("39.00")
        assert await house.broken() == {}


async def test_a_cancellation_that_is_taken_back_after_a_migration_is_moved_with_notice(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        subscription = await house.subscribe(await house.customer())
        assert subscription.period_end is not None
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await offer(house, 3_900)
        seen = await plan_migrations.preview(house.s.read, "basic-v1")
        assert (seen.subscriptions, seen.choosing, seen.canceling) == (0, 0, 1)
        await order(house, notice_days=plan_migrations.NOTICE_DAYS)
        await house.go_to(subscription.period_end - timedelta(hours=1))
        await heard(house)
        await house.resume(subscription)
        [notice] = await notices(house)
        assert notice["effective_at"] == datetime(2026, 3, 31, 9, tzinfo=UTC).isoformat()
        await house.pass_days(60)
        dues = [each.due for each in await house.invoices(subscription)]
        assert dues == [aed("29.00"), aed("29.00"), aed("39.00")]
        assert await house.broken() == {}


async def test_a_change_that_is_paid_after_its_version_was_migrated_is_followed_by_the_move(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "pro")
        await house.s.admin.pause("q:sub:plan_change", "to be late")
        await house.change_plan(subscription, "basic", ChangeTiming.NOW)
        await offer(house, 3_900)
        await order(house)
        await house.s.admin.resume("q:sub:plan_change")
        await house.run()
        moving = await house.subscription(subscription)
        assert (moving.plan_id, moving.next_plan_id) == ("basic-v1", "basic-v2")
        assert await house.broken() == {}


async def test_two_migrations_are_followed_one_after_the_other(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        for older, minor in (("basic-v1", 3_900), ("basic-v2", 4_900)):
            await offer(house, minor)
            await order(house, older)
        found = await plan_moves.ordered(house.s.read, subscription.id, "basic-v1")
        assert found is not None
        assert found.to_plan_id == "basic-v3"
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await house.resume(subscription)
        assert (await house.subscription(subscription)).next_plan_id == "basic-v3"
        assert await house.broken() == {}


async def test_the_notice_names_all_that_changes(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        await sell(house, "team", 10_000, YEAR, features={"calls": 100, "seats": 5, "old": 1}, allowance=MONTH)
        await house.subscribe(await house.customer(), "team")
        changed = {"calls": 50, "seats": 5, "new": None}
        await sell(house, "team", 11_000, YEAR, features=changed, allowance=YEAR)
        await heard(house)
        await order(house, "team-v1")
        [notice] = await notices(house)
        every = {"interval": "year", "interval_count": 1, "allowance_interval_count": 1}
        assert notice["previous_terms"] == {
            **every,
            "allowance_interval": "month",
            "features": {"calls": 100, "old": 1},
        }
        assert notice["terms"] == {**every, "allowance_interval": "year", "features": {"calls": 50, "new": None}}
        assert (notice["previous_price"], notice["price"]) == ("100.00", "110.00")


@pytest.mark.parametrize(
    ("interval", "allowance", "has"),
    [
        (YEAR, None, MONTH),
        (YEAR, YEAR, None),
        (YEAR, Interval(Unit.MONTH, 3), Interval(Unit.MONTH, 3)),
        (MONTH, None, None),
    ],
)
async def test_a_new_version_keeps_the_allowance_interval_unless_it_says_otherwise(
    stage: OpenStage, interval: Interval, allowance: Interval | None, has: Interval | None
) -> None:
    """`annual-pro` is billed by the year and has its limits every month."""
    async with open_house(stage) as house:
        await sell(house, "annual-pro", 109_900, interval, features={"api_calls": 10_000}, allowance=allowance)
        newer = await plans.plan(house.s.read, "annual-pro")
        assert (newer.version, plans.allowance_of(newer)) == (2, has)


async def test_after_a_move_to_a_new_price_the_limits_begin_anew_every_month_as_before(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), "annual-pro")
        await sell(house, "annual-pro", 109_900, YEAR, features={"api_calls": 10_000})
        await order(house, "annual-pro-v1", notice_days=plan_migrations.NOTICE_DAYS)
        await house.go_to(BEGIN + timedelta(days=367))
        moved = await house.subscription(subscription)
        assert (moved.plan_id, len(moved.allowance_starts or ())) == ("annual-pro-v2", 12)
        [change] = await plan_changes.of_subscription(house.s.read, subscription.id)
        assert change.state is ChangeState.APPLIED
        assert await house.broken() == {}
