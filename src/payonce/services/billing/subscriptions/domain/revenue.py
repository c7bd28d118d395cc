"""When money that was billed becomes revenue: in a straight line over the time it pays for, to the second."""

from datetime import UTC, datetime

import whenever

from payonce.kit.money import Amount, Rounding
from payonce.services.billing.subscriptions.domain.calendar import check_time, local, share_left


def earned(amount: Amount, start: datetime, end: datetime, at: datetime) -> Amount:
    """How much of a line is earned by a moment, rounded half to even.

    It is the sum since the start, so whatever the moments one asks at, the differences add up to the amount at the
    end. A line below zero takes revenue back in the same way.
    """
    return amount.times(1 - share_left(start, end, at), Rounding.HALF_EVEN)


def next_recognition(start: datetime, end: datetime, after: datetime, zone: str = "UTC") -> datetime | None:
    """The next moment to post what was earned: each first of a month in the books' zone, at last the end; then None.

    Books are closed by the month, so a year paid at once shows up in each of its months.
    """
    check_time(start, end)
    if after >= end:
        return None
    first = local(max(after, start), zone).date().replace(day=1).add(months=1)
    # Of two midnights the later: the earlier may have passed on a clock that shows the old month once more.
    opens = first.at(whenever.Time()).assume_tz(zone, disambiguation="later")
    return min(datetime.fromtimestamp(opens.timestamp(), UTC), end.astimezone(UTC))
