"""The periods of a subscription: the anchor plus n intervals on the customer's calendar, never computed from the
previous period."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final

import whenever

from payonce.kit.outcomes import Invalid


class Unit(StrEnum):
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


COUNT_MAX: Final = {Unit.DAY: 1096, Unit.WEEK: 156, Unit.MONTH: 36, Unit.YEAR: 3}
"""Three years of each: prepaying for longer would make a mistake in a plan too expensive."""

PERIODS_MAX: Final = 36_600
"""A century of days; a larger number is a mistake."""

_DAYS_MAX: Final = {Unit.DAY: 1, Unit.WEEK: 7, Unit.MONTH: 31, Unit.YEAR: 366}
"""Upper bounds, so that an estimate made with them is never too late."""

_DAY_SKIPPED: Final = whenever.TimeDelta(hours=20)
"""A zone that crosses the date line moves by about a day; all other changes are of a few hours."""

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Since then no zone has moved back across the date line, which would repeat a date."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The length of a period on the calendar."""

    unit: Unit
    count: int = 1

    def __post_init__(self) -> None:
        if self.unit not in COUNT_MAX:
            raise Invalid(f"{self.unit!r} is not a unit of time for a plan: write day, week, month or year")
        object.__setattr__(self, "unit", Unit(self.unit))
        if type(self.count) is not int or not 1 <= self.count <= COUNT_MAX[self.unit]:
            raise Invalid(f"an interval of {self.count!r} × {self.unit} must count 1 to {COUNT_MAX[self.unit]}")


_DAILY: Final = Interval(Unit.DAY)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The moment and the time zone that periods are counted from. `Anchor.at` truncates to whole seconds."""

    moment: datetime
    zone: str
    interval: Interval

    def __post_init__(self) -> None:
        if self.moment.tzinfo is None:
            raise Invalid(f"the anchor {self.moment.isoformat()} has no time zone; give it with its offset, as in UTC")
        if self.moment.microsecond:
            raise Invalid(
                f"the anchor {self.moment.isoformat()} is not a whole second; use Anchor.at, which truncates it"
            )
        if self.moment < EARLIEST:
            raise Invalid(f"the anchor {self.moment.isoformat()} is before 1970; give a later one")
        local(self.moment, self.zone)
        object.__setattr__(self, "moment", self.moment.astimezone(UTC))

    @staticmethod
    def at(moment: datetime, zone: str, interval: Interval) -> "Anchor":
        return Anchor(whole_second(moment), zone, interval)


@dataclass(frozen=True, slots=True)
class Period:
    """From its start to just before its end, both in UTC; `n` counts from 0 at the anchor."""

    start: datetime
    end: datetime
    n: int

    def __contains__(self, moment: datetime) -> bool:
        return self.start <= moment < self.end


def period(anchor: Anchor, n: int) -> Period:
    """The n-th period, independent of the others: 31 January, then 28 February, then 31 March."""
    if type(n) is not int or not 0 <= n < PERIODS_MAX:
        raise Invalid(f"period {n!r} does not exist: they are numbered from 0 to {PERIODS_MAX - 1}")
    return Period(_start(anchor, n), _start(anchor, n + 1), n)


def period_at(anchor: Anchor, moment: datetime) -> Period:
    """The period that contains a time."""
    if moment < anchor.moment:
        raise Invalid(f"{moment.isoformat()} is before the first period, which begins {anchor.moment.isoformat()}")
    longest = timedelta(days=_DAYS_MAX[anchor.interval.unit] * anchor.interval.count)
    found = period(anchor, max(0, (moment - anchor.moment) // longest - 1))
    while moment >= found.end:
        found = period(anchor, found.n + 1)
    return found


def local(moment: datetime, zone: str) -> whenever.ZonedDateTime:
    """The time in a time zone. Raises Invalid for an unknown zone."""
    try:
        return whenever.Instant.from_timestamp(int(whole_second(moment).timestamp())).to_tz(zone)
    except (ValueError, TypeError) as error:
        raise Invalid(f"{zone!r} is not a known time zone; use one like 'Asia/Dubai' or 'UTC'") from error


def days_later(moment: datetime, days: int, zone: str) -> datetime:
    """The same local time a number of days later."""
    then = _zoned(local(moment, zone).to_plain().add(days=days), zone)
    return datetime.fromtimestamp(then.timestamp(), UTC)


def share_left(start: datetime, end: datetime, at: datetime) -> Fraction:
    """The remaining share of the time from start to end, exact to the second: 1 before it, 0 after it."""
    check_time(start, end)
    left = end - min(max(whole_second(at), start), end)
    return Fraction(left // timedelta(microseconds=1), (end - start) // timedelta(microseconds=1))


def check_time(start: datetime, end: datetime) -> None:
    if not start < end:
        raise Invalid(f"the time from {start.isoformat()} to {end.isoformat()} is empty: the end must be later")


def whole_second(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def _start(anchor: Anchor, n: int) -> datetime:
    if n == 0:
        # The anchor itself, which may be the second of two equal local times.
        return anchor.moment
    here, interval = local(anchor.moment, anchor.zone), anchor.interval
    try:
        nominal = _added(here.to_plain(), interval.unit, n * interval.count)
        found = _zoned(nominal, anchor.zone)
        if interval == _DAILY and found.offset - here.offset >= _DAY_SKIPPED:
            # A date skipped by a zone that crosses the date line is not billed.
            found = _zoned(nominal.add(days=1), anchor.zone)
    except ValueError as error:
        raise Invalid(f"period {n} of {interval.count} × {interval.unit} is beyond the year 9999") from error
    return datetime.fromtimestamp(found.timestamp(), UTC)


def _added(date_time: whenever.PlainDateTime, unit: Unit, steps: int) -> whenever.PlainDateTime:
    match unit:
        case Unit.DAY:
            return date_time.add(days=steps)
        case Unit.WEEK:
            return date_time.add(weeks=steps)
        case Unit.MONTH:
            return date_time.add(months=steps)
        case Unit.YEAR:
            return date_time.add(years=steps)


def _zoned(date_time: whenever.PlainDateTime, zone: str) -> whenever.ZonedDateTime:
    """By RFC 5545: a skipped local time moves on by the gap, and of two equal ones the first counts."""
    return date_time.assume_tz(zone, disambiguation="compatible")
