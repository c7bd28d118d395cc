"""Periods follow one another without gap, overlap or drift, on every calendar that the time zone database knows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import whenever
from hypothesis import example, given, settings
from hypothesis import strategies as st

from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import (
    COUNT_MAX,
    PERIODS_MAX,
    Anchor,
    Interval,
    Unit,
    days_later,
    local,
    period,
    period_at,
    share_left,
)

STEADY = settings(max_examples=60, deadline=None, derandomize=True)
DAY, MONTH, YEAR = Interval(Unit.DAY), Interval(Unit.MONTH), Interval(Unit.YEAR)
FORTNIGHT: Any = "fortnight"
EARLY = datetime(2025, 1, 1, tzinfo=UTC)
ZONES = sorted(whenever.available_timezones())

zones = st.sampled_from(ZONES)
moments = st.datetimes(datetime(1970, 1, 2), datetime(2080, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
intervals = st.sampled_from(Unit).flatmap(
    lambda unit: st.builds(Interval, st.just(unit), st.integers(1, COUNT_MAX[unit]))
)
anchors = st.builds(Anchor.at, moments, zones, st.one_of(st.sampled_from([DAY, MONTH, YEAR]), intervals))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def starts(begin: str, zone: str, interval: Interval, count: int) -> list[str]:
    """As the customer's clock shows them."""
    anchor = Anchor.at(at(begin), zone, interval)
    return [local(period(anchor, n).start, zone).to_plain().format_iso() for n in range(count)]


@pytest.mark.parametrize(
    ("begin", "zone", "interval", "shown"),
    [
        pytest.param(
            "2026-01-31T09:00+04:00",
            "Asia/Dubai",
            MONTH,
            ["2026-01-31T09:00:00", "2026-02-28T09:00:00", "2026-03-31T09:00:00", "2026-04-30T09:00:00"],
            id="the 31st comes back after each shorter month",
        ),
        pytest.param(
            "2027-12-31T10:00Z",
            "UTC",
            Interval(Unit.MONTH, 2),
            ["2027-12-31T10:00:00", "2028-02-29T10:00:00", "2028-04-30T10:00:00"],
            id="a leap February has one more day",
        ),
        pytest.param(
            "2024-02-29T00:00Z",
            "UTC",
            YEAR,
            [
                "2024-02-29T00:00:00",
                "2025-02-28T00:00:00",
                "2026-02-28T00:00:00",
                "2027-02-28T00:00:00",
                "2028-02-29T00:00:00",
            ],
            id="29 February is kept for the next leap year",
        ),
        pytest.param(
            "2026-03-27T02:30+01:00",
            "Europe/Berlin",
            DAY,
            ["2026-03-27T02:30:00", "2026-03-28T02:30:00", "2026-03-29T03:30:00", "2026-03-30T02:30:00"],
            id="a time the clocks skip is an hour later, on that day alone",
        ),
        pytest.param(
            "2026-10-01T23:59:59+02:00",
            "Europe/Berlin",
            Interval(Unit.WEEK, 2),
            ["2026-10-01T23:59:59", "2026-10-15T23:59:59", "2026-10-29T23:59:59"],
            id="weeks keep the local time through a change of clocks",
        ),
        pytest.param(
            "2011-12-28T12:00-10:00",
            "Pacific/Apia",
            DAY,
            ["2011-12-28T12:00:00", "2011-12-29T12:00:00", "2011-12-31T12:00:00", "2012-01-01T12:00:00"],
            id="a date that a country left out is not a day",
        ),
    ],
)
def test_periods_begin_where_a_person_would_say(begin: str, zone: str, interval: Interval, shown: list[str]) -> None:
    assert starts(begin, zone, interval, len(shown)) == shown


def test_of_two_equal_local_times_the_first_begins_a_period() -> None:
    anchor = Anchor.at(at("2026-10-24T02:30+02:00"), "Europe/Berlin", DAY)
    assert period(anchor, 1).start == at("2026-10-25T00:30Z")
    assert period(anchor, 2).start == at("2026-10-26T01:30Z")


def test_the_first_period_begins_at_the_anchor_even_in_the_hour_that_comes_twice() -> None:
    second = at("2026-10-25T01:30Z")
    anchor = Anchor.at(second, "Europe/Berlin", MONTH)
    assert period(anchor, 0).start == second
    assert period(anchor, 1).start == at("2026-11-25T01:30Z")


@STEADY
@given(anchors, st.integers(0, 400), st.integers(0, 10**9))
@example(Anchor.at(at("1993-08-01T00:00Z"), "Pacific/Kwajalein", DAY), 19, 0)
@example(Anchor.at(at("2011-12-01T10:00Z"), "Pacific/Apia", DAY), 29, 0)
def test_periods_are_adjacent_never_empty_and_found_by_any_moment_in_them(anchor: Anchor, n: int, inside: int) -> None:
    this, following = period(anchor, n), period(anchor, n + 1)
    assert anchor.moment <= this.start < this.end == following.start < following.end
    moment = this.start + timedelta(seconds=inside) % (this.end - this.start)
    assert moment in this
    assert period_at(anchor, moment) == this
    assert period_at(anchor, this.end) == following
    assert period_at(anchor, this.end - timedelta(microseconds=1)) == this


@STEADY
@given(anchors, st.integers(1, 60), st.integers(1, 3))
def test_a_period_does_not_depend_on_how_the_calendar_counts_to_it(anchor: Anchor, n: int, count: int) -> None:
    """The n-th of every third month is the 3n-th of every month, so no rounding is carried from one to the next."""
    one = Anchor(anchor.moment, anchor.zone, MONTH)
    assert (
        period(Anchor(anchor.moment, anchor.zone, Interval(Unit.MONTH, count)), n).start == period(one, n * count).start
    )
    yearly = Anchor(anchor.moment, anchor.zone, YEAR)
    assert period(yearly, n).start == period(one, 12 * n).start


@pytest.mark.parametrize("begin", ["1994-12-15T01:59:59Z", "2011-12-31T00:30:00Z", "2026-03-08T02:30:00Z"])
def test_in_every_zone_of_the_world_days_and_months_follow_one_another(begin: str) -> None:
    for zone in ZONES:
        for interval in (DAY, MONTH):
            anchor = Anchor.at(at(begin) - timedelta(days=9), zone, interval)
            bounds = [period(anchor, n).start for n in range(0, 20, 2)]
            bounds += [period(anchor, n).end for n in range(0, 20, 2)]
            assert len(set(bounds)) == len(bounds), (zone, interval)
            in_order = [moment for pair in zip(bounds[:10], bounds[10:], strict=True) for moment in pair]
            assert sorted(bounds) == in_order, (zone, interval)


def test_days_later_is_the_same_local_time() -> None:
    assert days_later(at("2026-03-28T09:00+01:00"), 1, "Europe/Berlin") == at("2026-03-29T09:00+02:00")


@STEADY
@given(moments, st.integers(1, 10**8), st.integers(-(10**8), 10**8))
def test_the_share_left_is_a_share_and_exact_to_the_second(start: datetime, length_s: int, after_s: int) -> None:
    end = start + timedelta(seconds=length_s)
    left = share_left(start, end, start + timedelta(seconds=after_s, microseconds=0))
    assert 0 <= left <= 1
    assert left == 1 if after_s <= 0 else left * length_s >= length_s - after_s


def test_what_is_less_than_a_second_does_not_count() -> None:
    start, end = at("2026-01-01T00:00Z"), at("2026-01-02T00:00Z")
    assert share_left(start, end, at("2026-01-01T12:00:00.999999Z")) * 2 == 1


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Interval(FORTNIGHT), "'fortnight' is not a unit of time for a plan: write day, week"),
        (lambda: Interval(Unit.MONTH, 0), "0 × month must count 1 to 36"),
        (lambda: Interval(Unit.YEAR, 4), "4 × year must count 1 to 3"),
        (lambda: Interval(Unit.DAY, True), "True × day must count 1 to 1096"),
        (lambda: Anchor.at(at("2026-01-01T00:00Z"), "Dubai", MONTH), "'Dubai' is not a known time zone"),
        (lambda: Anchor.at(datetime(2026, 1, 1), "UTC", MONTH), "has no time zone"),  # noqa: DTZ001
        (lambda: Anchor(at("2026-01-01T00:00:00.5Z"), "UTC", MONTH), "is not a whole second; use Anchor.at"),
        (lambda: Anchor.at(at("1969-12-31T00:00Z"), "UTC", MONTH), "is before 1970"),
        (lambda: period(Anchor.at(at("2026-01-01T00:00Z"), "UTC", MONTH), -1), "period -1 does not exist"),
        (lambda: period(Anchor.at(at("2026-01-01T00:00Z"), "UTC", DAY), PERIODS_MAX), "does not exist"),
        (lambda: period(Anchor.at(at("2026-01-01T00:00Z"), "UTC", YEAR), 9_000), "beyond the year 9999"),
        (lambda: period_at(Anchor.at(at("2026-01-01T00:00Z"), "UTC", DAY), EARLY), "before the first"),
        (lambda: share_left(at("2026-01-01T00:00Z"), at("2026-01-01T00:00Z"), at("2026-01-01T00:00Z")), "is empty"),
    ],
)
def test_what_makes_no_period_is_refused_in_one_sentence(build: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words.replace("(", r"\(")):
        build()
