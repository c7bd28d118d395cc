"""What gauges and counters tell of payments: charges by how they ended, and what subscriptions were not told yet."""

from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import (
    BILLING_CHARGES,
    BILLING_NOTIFICATION_OLDEST_SECONDS,
    BILLING_NOTIFICATION_SECONDS,
    BILLING_NOTIFICATIONS,
)
from payonce.services.billing.payments.model import State

CODES: Final = frozenset(
    {"insufficient_funds", "card_declined", "expired_card", "invalid_cvv", "no_payment_method", ""}
)  # fmt: skip
OTHER: Final = "other"
"""Whatever else the gateway says: a label is not for every word of a vendor."""


def count_charge(state: State, decline_code: str | None) -> None:
    """Once for each charge, when its end is on record."""
    code = decline_code or ""
    BILLING_CHARGES.labels(state, code if code in CODES else OTHER).inc()


def count_delivery(seconds: float) -> None:
    BILLING_NOTIFICATION_SECONDS.observe(max(0.0, seconds))


async def observe_payments(database: Database) -> None:
    row = await database.engine.fetchrow(
        """
        select count(*), coalesce(greatest(0, extract(epoch from payonce.due_now() - min(created_at))), 0)::float8
            as oldest_s
        from payments.notifications where delivered_at is null
        """
    )
    assert row is not None
    BILLING_NOTIFICATIONS.set(row["count"])
    BILLING_NOTIFICATION_OLDEST_SECONDS.set(row["oldest_s"])
