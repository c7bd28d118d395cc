"""Dunning days: when a failed renewal is charged again, and when dunning ends.

    declined                        │ retried                            │ ends
    ────────────────────────────────┼────────────────────────────────────┼──────────────────────────────
    hard: expired_card, invalid_cvv │ not with that card                 │ on day 14
    otherwise                       │ day 1, 3, 5, 7, 14 after the first │ when the last attempt fails
                                    │ failure, at the same local time    │
    a new payment method            │ at once, then on the days left     │ according to its own failure

Until then the subscription is `past_due`, and then `unpaid` or `canceled`, depending on its plan.
The gateway's port defines the hard declines; an unknown code is not one, since attempts are limited anyway.
"""

from datetime import datetime
from typing import Final

from payonce.services.billing.subscriptions.domain.calendar import days_later

RETRY_DAYS: Final = (1, 3, 5, 7, 14)
"""After the first failure: close together while a card may only be short of money, and long enough to include a
payday."""


def next_day(first_failed_at: datetime, hard: bool, zone: str, now: datetime) -> datetime | None:
    """The next dunning day, at the customer's same time of day; None when dunning has ended.

    It is a day for another attempt, or after a hard decline the final day. Days that have passed are skipped, whether
    they were used or lost to an outage: nobody is charged twice within an hour.
    """
    days = RETRY_DAYS[-1:] if hard else RETRY_DAYS
    moments = (days_later(first_failed_at, after, zone) for after in days)
    return next((moment for moment in moments if moment > now), None)
