"""Allowance windows: how often a plan's limits reset, independently of its billing interval.

An annual plan may allow 10,000 calls a month. Windows are counted from the subscription's anchor, like periods: 31
January, 28 February, 31 March. They never drift, and every period begins and ends with a window.
"""

from datetime import datetime
from typing import Final

from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import Anchor, Interval, Unit, period, period_at

WINDOWS_MAX: Final = 366
"""Per period; the starts of all windows are stored with the subscription."""

_MONTHS: Final = {Unit.MONTH: 1, Unit.YEAR: 12}
_DAYS: Final = {Unit.DAY: 1, Unit.WEEK: 7}
_DAYS_PER_MONTH_MAX: Final = 31


def check(billing: Interval, allowance: Interval) -> None:
    """Raises Invalid unless a billing period is a whole and not too large number of windows."""
    if allowance == billing:
        return
    said = f"limits that reset every {allowance.count} × {allowance.unit}"
    billed = f"a plan that is billed every {billing.count} × {billing.unit}"
    count = _windows(billing, allowance)
    if count is None:
        raise Invalid(
            f"{said} do not fit {billed}: the period must be a whole number of them; change the interval, or omit it"
        )
    if count > WINDOWS_MAX:
        raise Invalid(f"{said} make up to {count} windows in a period of {billed}; at most {WINDOWS_MAX} are allowed")


def window_starts(
    anchor_at: datetime, zone: str, allowance: Interval | None, start: datetime, end: datetime
) -> tuple[datetime, ...] | None:
    """The starts of the windows in the period from `start` to `end`; None if the period is the only window."""
    if allowance is None:
        return None
    anchor = Anchor.at(anchor_at, zone, allowance)
    window = period_at(anchor, start)
    starts = [start]
    while window.end < end:
        starts.append(window.end)
        window = period(anchor, window.n + 1)
    return tuple(starts)


def window_at(
    starts: tuple[datetime, ...] | None, start: datetime, end: datetime, at: datetime
) -> tuple[datetime, datetime]:
    """Start and end of the window that contains a time; the last one lasts until the next period begins."""
    begun = max((each for each in starts or () if each <= at), default=start)
    return begun, min((each for each in starts or () if each > at), default=end)


def _windows(billing: Interval, allowance: Interval) -> int | None:
    """The maximum number of windows in a period; None if it is not a whole number."""
    for family in (_MONTHS, _DAYS):
        if billing.unit in family and allowance.unit in family:
            whole, part = family[billing.unit] * billing.count, family[allowance.unit] * allowance.count
            return whole // part if whole % part == 0 else None
    if billing.unit in _MONTHS and allowance == Interval(Unit.DAY):
        months = _MONTHS[billing.unit] * billing.count
        return min(months * _DAYS_PER_MONTH_MAX, months // 12 * 366 + months % 12 * _DAYS_PER_MONTH_MAX)
    return None
