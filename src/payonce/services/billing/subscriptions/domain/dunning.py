"""The days of dunning: when a renewal that could not be charged is tried again, and when that ends.

    declined                        │ tried again                        │ ends
    ────────────────────────────────┼────────────────────────────────────┼─────────────────────────────
    hard: expired_card, invalid_cvv │ not with that card                 │ on day 14
    otherwise                       │ day 1, 3, 5, 7, 14 after the first │ when the last try has failed
                                    │ failure, at the same local time    │
    a new payment method            │ at once, then on the days left     │ as its own failure says

The subscription is `past_due` until then, and at the end what its plan says: `unpaid` or `canceled`.
Which declines are hard the gateway's port says; one of a code that is not known is not: tries are bounded.
"""

from datetime import datetime
from typing import Final

from payonce.services.billing.subscriptions.domain.calendar import days_later

RETRY_DAYS: Final = (1, 3, 5, 7, 14)
"""After the first failure: close while a card may only be short of money, wide enough to span a payday."""


def next_day(first_failed_at: datetime, hard: bool, zone: str, now: datetime) -> datetime | None:
    """When the next day of dunning comes, at the customer's same time of day; None when it has ended.

    It is a day to try, or after a hard decline the day to end. Days that have passed are left out, whether they were
    tried or an outage covered them: nobody is charged twice in an hour.
    """
    days = RETRY_DAYS[-1:] if hard else RETRY_DAYS
    moments = (days_later(first_failed_at, after, zone) for after in days)
    return next((moment for moment in moments if moment > now), None)
