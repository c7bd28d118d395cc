"""Allowance windows: how often a plan's limits begin anew, apart from how often it is billed.

An annual plan may allow 10,000 calls a month. Its windows are counted from the subscription's anchor, like its periods:
31 January, 28 February, 31 March. They never drift, and a period begins and ends with a window.
"""

from datetime import datetime
from typing import Final

from payonce.kit.outcomes import Invalid
from payonce.services.billing.subscriptions.domain.calendar import Anchor, Interval, Unit, period, period_at

WINDOWS_MAX: Final = 366
"""Of one period: the starts of all of them are kept with the subscription."""

_MONTHS: Final = {Unit.MONTH: 1, Unit.YEAR: 12}
_DAYS: Final = {Unit.DAY: 1, Unit.WEEK: 7}
_DAYS_PER_MONTH_MAX: Final = 31


def check(billing: Interval, allowance: Interval) -> None:
    """Raises Invalid unless every billing period is a whole number of allowance windows, and not too many."""
    if allowance == billing:
        return
    said = f"limits that begin anew every {allowance.count} × {allowance.unit}"
    billed = f"a plan that is billed every {billing.count} × {billing.unit}"
    count = _windows(billing, allowance)
    if count is None:
        raise Invalid(f"{said} do not fit {billed}: its period must be a whole number of them, or leave it out")
    if count > WINDOWS_MAX:
        raise Invalid(f"{said} are up to {count} windows in a period of {billed}; at most {WINDOWS_MAX} are kept")


def window_starts(
    anchor_at: datetime, zone: str, allowance: Interval | None, start: datetime, end: datetime
) -> tuple[datetime, ...] | None:
    """When the windows of the period from `start` to `end` begin. None: the period is the one window."""
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
    """Start and end of the window that a moment falls in; the last one lasts until the next period begins."""
    begun = max((each for each in starts or () if each <= at), default=start)
    return begun, min((each for each in starts or () if each > at), default=end)


def _windows(billing: Interval, allowance: Interval) -> int | None:
    """At most how many windows a period has; None when it is not a whole number of them."""
    for family in (_MONTHS, _DAYS):
        if billing.unit in family and allowance.unit in family:
            whole, part = family[billing.unit] * billing.count, family[allowance.unit] * allowance.count
            return whole // part if whole % part == 0 else None
    if billing.unit in _MONTHS and allowance == Interval(Unit.DAY):
        months = _MONTHS[billing.unit] * billing.count
        return min(months * _DAYS_PER_MONTH_MAX, months // 12 * 366 + months % 12 * _DAYS_PER_MONTH_MAX)
    return None
