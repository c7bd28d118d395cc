"""Revenue recognition: straight-line over the service time, to the second."""

from datetime import UTC, datetime

import whenever

from payonce.kit.money import Amount, Rounding
from payonce.services.billing.subscriptions.domain.calendar import check_time, local, share_left


def earned(amount: Amount, start: datetime, end: datetime, at: datetime) -> Amount:
    """The part of a line that is earned at a time, rounded half to even.

    It is cumulative, so the differences between any times add up to the amount at the end. A negative line reduces
    revenue in the same way.
    """
    return amount.times(1 - share_left(start, end, at), Rounding.HALF_EVEN)


def next_recognition(start: datetime, end: datetime, after: datetime, zone: str = "UTC") -> datetime | None:
    """The next time to recognise revenue: each first of a month in the ledger's zone, and finally the end; then None.

    Books are closed monthly, so an annual payment appears in each of its months.
    """
    check_time(start, end)
    if after >= end:
        return None
    first = local(max(after, start), zone).date().replace(day=1).add(months=1)
    # The later of two midnights: the earlier one may still show the previous month after the clocks go back.
    opens = first.at(whenever.Time()).assume_tz(zone, disambiguation="later")
    return min(datetime.fromtimestamp(opens.timestamp(), UTC), end.astimezone(UTC))
