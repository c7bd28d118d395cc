"""Limits begin anew by the plan's allowance interval, which may be shorter than the interval of its bills."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain import allowance
from payonce.services.billing.subscriptions.domain.calendar import Anchor, Interval, Unit, period, period_at
from payonce.services.billing.subscriptions.handlers import usage_sync
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.store import plans, usage
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.services.billing.subscriptions.store.usage import UsageRefusal, UsageRefused
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, BEGIN, Customer, House, open_house
from tests.services.billing.usage.usage_stage import CALLS, broken

ALLOWED = 10_000
MONTH, YEAR = Interval(Unit.MONTH), Interval(Unit.YEAR)


async def offer(house: House, code: str, interval: Interval, allowance: Interval | None) -> None:
    async with house.s.begin() as tx:
        price = Amount(10_000, AED)
        await plans.add_version(tx, Offer(code, code.title(), price, interval, {CALLS: ALLOWED}, allowance))


async def use(house: House, customer: Customer, delta: int, event: str) -> datetime:
    return (await usage.use(house.s.read, customer.id, CALLS, delta, event)).period_start


async def used(house: House, customer: Customer) -> int:
    found = await usage.current_usage(house.s.read, customer.id)
    assert found is not None
    feature = found.of(CALLS)
    assert feature is not None
    return feature.used


async def test_an_annual_plan_has_its_monthly_allowance_every_month(stage: OpenStage) -> None:
    """10,000 calls each month of the year, counted from the 31st, and 429 within a month."""
    async with open_house(stage) as house:
        customer = await house.customer()
        await house.subscribe(customer, "annual-pro")
        begins = []
        for month in range(13):
            begins.append(await use(house, customer, ALLOWED, f"e-{month}"))
            with pytest.raises(UsageRefused, match="10000 of 10000 are used") as no:
                await use(house, customer, 1, f"over-{month}")
            assert no.value.why is UsageRefusal.OVER_LIMIT
            entitled = await usage.entitlement(house.s.read, customer.id, CALLS)
            assert (entitled.why_not, entitled.resets_at is not None) == (UsageRefusal.OVER_LIMIT, True)
            assert f"resets at {entitled.resets_at.isoformat()}" in str(no.value)  # type: ignore[union-attr]
            await house.go_to(entitled.resets_at)  # type: ignore[arg-type]
            assert (await usage.entitlement(house.s.read, customer.id, CALLS)).left == ALLOWED
        anchor = Anchor.at(BEGIN, "UTC", MONTH)
        assert begins == [period(anchor, n).start for n in range(13)]
        assert [(each.month, each.day) for each in begins[:4]] == [(1, 31), (2, 28), (3, 31), (4, 30)]
        async with house.s.begin() as tx:
            await usage_sync.roll(tx, 1_000)
        shown = await usage.totals(house.s.read, customer.id, CALLS)
        assert [(each.period_start, each.total) for each in shown] == [(each, ALLOWED) for each in reversed(begins)]
        assert len(await house.invoices(customer)) == 2, "billed once a year"
        assert await house.broken() == {}


async def test_a_reset_is_of_the_running_window(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        await house.subscribe(customer, "annual-pro")
        await use(house, customer, 500, "e-1")
        await house.pass_days(40)
        async with house.s.begin() as tx:
            assert await usage.reset(tx, customer.id, None, "ann", "a test") == {}
        await use(house, customer, 700, "e-2")
        async with house.s.begin() as tx:
            assert await usage.reset(tx, customer.id, None, "ann", "a test") == {CALLS: 700}
        assert await used(house, customer) == 0
        assert await house.broken() == {}


async def test_whoever_read_the_clock_before_a_window_began_counts_in_it_all_the_same(stage: OpenStage) -> None:
    """Another one has counted in the new window meanwhile: nobody waits for ever or sets the counter back."""
    async with open_house(stage) as house:
        customer = await house.customer()
        await house.subscribe(customer, "annual-pro")
        second = datetime(2026, 2, 28, 9, tzinfo=UTC)
        await house.s.clock.freeze(second + timedelta(seconds=1))
        assert await use(house, customer, 10, "e-1") == second
        await house.s.clock.freeze(second - timedelta(seconds=1))
        assert await use(house, customer, 20, "e-2") == second
        await house.s.clock.freeze(second + timedelta(seconds=2))
        assert await used(house, customer) == 30
        assert await broken(house.s) == {}


async def test_a_change_to_a_longer_window_keeps_what_was_used_and_one_back_gives_no_second_allowance(
    stage: OpenStage,
) -> None:
    """Two plans of the same price and period, one with limits a month and one with limits a year."""
    async with open_house(stage) as house:
        await offer(house, "monthly-limits", YEAR, MONTH)
        await offer(house, "yearly-limits", YEAR, None)
        customer = await house.customer()
        subscription = await house.subscribe(customer, "monthly-limits")
        await use(house, customer, 1_000, "e-1")
        await house.go_to(datetime(2026, 3, 5, tzinfo=UTC))
        await use(house, customer, 4_000, "e-2")
        await house.change_plan(subscription, "yearly-limits", ChangeTiming.NOW)
        assert await used(house, customer) == 5_000, "the year has both months"
        await use(house, customer, 1_000, "e-3")
        assert await house.broken() == {}
        await house.change_plan(subscription, "monthly-limits", ChangeTiming.NOW)
        assert 5_000 < await used(house, customer) <= 6_000, "of the year's use, the part of the time that is left"
        await use(house, customer, 1, "e-4")
        await house.go_to(datetime(2026, 4, 2, tzinfo=UTC))
        assert await used(house, customer) == 0
        assert await house.broken() == {}


async def test_a_daily_allowance_of_a_monthly_plan_follows_the_customers_calendar(stage: OpenStage) -> None:
    """Also over the night on which the clocks are set forward."""
    async with open_house(stage, at=datetime(2026, 3, 1, 1, 30, tzinfo=UTC)) as house:
        await offer(house, "daily", MONTH, Interval(Unit.DAY))
        customer = await house.customer(zone="Europe/Berlin")
        await house.subscribe(customer, "daily")
        begins = set()
        for day in range(31):
            await house.go_to(datetime(2026, 3, 1, 2, tzinfo=UTC) + timedelta(days=day))
            begins.add(await use(house, customer, ALLOWED, f"e-{day}"))
        assert len(begins) == 31
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("billing", "limits"),
    [
        (MONTH, Interval(Unit.WEEK)),
        (MONTH, YEAR),
        (Interval(Unit.YEAR, 3), Interval(Unit.DAY)),
        (Interval(Unit.WEEK), MONTH),
        (Interval(Unit.MONTH, 3), Interval(Unit.MONTH, 2)),
    ],
)
def test_an_allowance_that_does_not_fit_the_period_is_refused(billing: Interval, limits: Interval) -> None:
    with pytest.raises(Invalid, match="limits that reset every"):
        allowance.check(billing, limits)


FITTING = (
    (YEAR, MONTH),
    (YEAR, Interval(Unit.MONTH, 3)),
    (YEAR, Interval(Unit.DAY)),
    (MONTH, Interval(Unit.DAY)),
    (Interval(Unit.MONTH, 6), Interval(Unit.MONTH, 2)),
    (Interval(Unit.WEEK, 2), Interval(Unit.WEEK)),
    (Interval(Unit.DAY, 14), Interval(Unit.DAY, 7)),
    (Interval(Unit.WEEK), Interval(Unit.DAY)),
)


@settings(max_examples=300, deadline=None)
@given(
    moment=st.integers(946_684_800, 2_840_140_800).map(lambda second: datetime.fromtimestamp(second, UTC)),
    zone=st.sampled_from(["UTC", "Asia/Dubai", "Europe/Berlin", "America/New_York", "Pacific/Apia"]),
    intervals=st.sampled_from(FITTING),
    number=st.integers(0, 20),
)
def test_windows_part_every_period_without_a_gap_and_never_drift(
    moment: datetime, zone: str, intervals: tuple[Interval, Interval], number: int
) -> None:
    billing, limits = intervals
    allowance.check(billing, limits)
    anchor = Anchor.at(moment, zone, billing)
    billed, following = period(anchor, number), period(anchor, number + 1)
    starts = allowance.window_starts(anchor.moment, zone, limits, billed.start, billed.end)
    assert starts is not None
    assert starts[0] == billed.start
    assert list(starts) == sorted(set(starts))
    assert 1 < len(starts) <= allowance.WINDOWS_MAX
    assert starts[-1] < billed.end
    by_anchor = Anchor.at(moment, zone, limits)
    first = period_at(by_anchor, billed.start).n
    assert [period(by_anchor, first + n).start for n in range(len(starts))] == list(starts)
    assert period(by_anchor, first + len(starts)).start == billed.end, "the next period begins with a window"
    again = allowance.window_starts(anchor.moment, zone, limits, following.start, following.end)
    assert again is not None
    assert again[0] == billed.end
    for at in (billed.start, *starts, billed.end - timedelta(seconds=1)):
        begun, end = allowance.window_at(starts, billed.start, billed.end, at)
        assert begun <= at < end
