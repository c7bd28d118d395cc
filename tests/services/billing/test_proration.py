"""A change of plan gives back what is unused at the price that was billed, and never more than that."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import Anchor, Interval, Unit, period, period_at
from payonce.services.billing.subscriptions.domain.proration import BilledLine, change_plan, credit_unused

STEADY = settings(max_examples=100, deadline=None, derandomize=True)
AED, USD = asset_of("AED"), asset_of("USD")
EIGHT_WEEKS, MONTH, YEAR = Interval(Unit.WEEK, 8), Interval(Unit.MONTH), Interval(Unit.YEAR)
BEGIN = datetime(2026, 1, 31, 9, 0, tzinfo=UTC)

prices = st.integers(0, 10**7).map(lambda minor: Amount(minor, AED))
moments_in_a_month = st.integers(0, 28 * 86_400 - 1).map(lambda seconds: BEGIN + timedelta(seconds=seconds))


def billed(anchor: Anchor, amount: Amount) -> BilledLine:
    paid = period(anchor, 0)
    return BilledLine(amount, paid.start, paid.end)


def test_the_vector_of_35_of_56_days_left() -> None:
    anchor = Anchor.at(BEGIN, "UTC", EIGHT_WEEKS)
    at = BEGIN + timedelta(days=21)
    change = change_plan([billed(anchor, Amount(2900, AED))], Amount(9900, AED), EIGHT_WEEKS, anchor, at)
    assert [line.amount.minor for line in change.lines] == [-1812, 6188]
    assert change.total == Amount(4376, AED)
    assert {(line.start, line.end) for line in change.lines} == {(at, period(anchor, 0).end)}
    assert (change.anchor, change.period) == (anchor, period(anchor, 0))


def test_another_interval_begins_a_new_period_at_the_change_in_full() -> None:
    anchor = Anchor.at(BEGIN, "Asia/Dubai", MONTH)
    at = BEGIN + timedelta(days=14, microseconds=7)
    change = change_plan([billed(anchor, Amount(2900, AED))], Amount(99_900, AED), YEAR, anchor, at)
    assert [line.amount.minor for line in change.lines] == [-1450, 99_900]
    assert change.anchor == Anchor.at(at, "Asia/Dubai", YEAR)
    assert change.period == period(change.anchor, 0)
    assert change.period.start == at.replace(microsecond=0)


def test_a_second_change_gives_back_the_line_of_the_first_and_not_todays_price() -> None:
    anchor = Anchor.at(BEGIN, "UTC", EIGHT_WEEKS)
    first = change_plan(
        [billed(anchor, Amount(2900, AED))], Amount(9900, AED), EIGHT_WEEKS, anchor, BEGIN + timedelta(days=21)
    )
    assert first.debit is not None
    in_force = BilledLine(first.debit.amount, first.debit.start, first.debit.end)
    second = change_plan([in_force], Amount(2900, AED), EIGHT_WEEKS, anchor, BEGIN + timedelta(days=42))
    assert [line.amount.minor for line in second.lines] == [-2475, 725]
    assert second.total == Amount(-1750, AED)


def test_what_was_credited_before_is_not_credited_again() -> None:
    anchor = Anchor.at(BEGIN, "UTC", EIGHT_WEEKS)
    paid = period(anchor, 0)
    assert credit_unused(BilledLine(Amount(2900, AED), paid.start, paid.end, credited_minor=2900), BEGIN) is None
    partly = credit_unused(BilledLine(Amount(2900, AED), paid.start, paid.end, credited_minor=2000), BEGIN)
    assert partly is not None
    assert partly.amount == Amount(-900, AED)


@STEADY
@given(prices, prices, moments_in_a_month, st.sampled_from([MONTH, YEAR]))
def test_lines_sum_to_the_total_and_stay_within_what_was_billed(
    old: Amount, new: Amount, at: datetime, interval: Interval
) -> None:
    anchor = Anchor.at(BEGIN, "UTC", MONTH)
    change = change_plan([billed(anchor, old)], new, interval, anchor, at)
    assert Amount.total((line.amount for line in change.lines), AED) == change.total
    assert all(-old.minor <= line.amount.minor < 0 for line in change.credits)
    assert change.debit is None or 0 < change.debit.amount.minor <= new.minor
    assert all(line.start == at and line.end > at and line.amount for line in change.lines)
    assert at in change.period


@STEADY
@given(prices, st.lists(moments_in_a_month, min_size=1, max_size=8), st.lists(prices, min_size=8, max_size=8))
def test_however_often_the_plan_changes_every_second_is_paid_once(
    first: Amount, moments: list[datetime], new: list[Amount]
) -> None:
    """Each change rounds two lines, so what is paid is within one unit a change of the price of each stretch."""
    anchor = Anchor.at(BEGIN, "UTC", MONTH)
    running = period(anchor, 0)
    in_force, price, since = [billed(anchor, first)], first, running.start
    paid, exact = first.minor, 0
    for at, following in zip(sorted(moments), new, strict=False):
        exact += price.minor * ((at - since) // timedelta(seconds=1))
        change = change_plan(in_force, following, MONTH, anchor, at)
        paid += change.total.minor
        in_force = [BilledLine(line.amount, line.start, line.end) for line in change.lines[len(change.credits) :]]
        price, since = following, at
    exact += price.minor * ((running.end - since) // timedelta(seconds=1))
    length_s = (running.end - running.start) // timedelta(seconds=1)
    assert abs(paid * length_s - exact) <= 2 * len(moments) * length_s
    assert paid >= 0


def test_after_the_period_and_without_a_paid_line_nothing_goes_back() -> None:
    anchor = Anchor.at(BEGIN, "UTC", MONTH)
    late = period(anchor, 1).start + timedelta(days=1)
    change = change_plan([billed(anchor, Amount(2900, AED))], Amount(9900, AED), MONTH, anchor, late)
    assert change.credits == ()
    assert change.period == period_at(anchor, late)
    assert change_plan([], Amount(0, AED), MONTH, anchor, late).lines == ()


def test_what_cannot_be_prorated_is_refused() -> None:
    anchor = Anchor.at(BEGIN, "UTC", MONTH)
    with pytest.raises(Invalid, match="AED of 2 decimals and USD"):
        change_plan([billed(anchor, Amount(2900, USD))], Amount(9900, AED), MONTH, anchor, BEGIN)
    with pytest.raises(Invalid, match=r"cannot cost -1\.00 AED"):
        change_plan([], Amount(-100, AED), MONTH, anchor, BEGIN)
    with pytest.raises(Invalid, match="with 2901 credited"):
        BilledLine(Amount(2900, AED), BEGIN, BEGIN + timedelta(days=1), credited_minor=2901)
    with pytest.raises(Invalid, match="a line of -1 minor units"):
        BilledLine(Amount(-1, AED), BEGIN, BEGIN + timedelta(days=1))
