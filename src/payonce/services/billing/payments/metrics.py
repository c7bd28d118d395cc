"""The metrics of payments: charges by how they ended, and notifications that subscriptions have not received."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY, WAITS_S
from payonce.services.billing.payments.model import State

NOTIFICATIONS = Gauge(
    "payonce_billing_undelivered_notifications",
    "What payments has to tell subscriptions and could not yet.",
    registry=REGISTRY,
)
NOTIFICATION_OLDEST_SECONDS = Gauge(
    "payonce_billing_oldest_undelivered_seconds",
    "For how long the oldest of them waits; 0 without one.",
    registry=REGISTRY,
)
CHARGES = Counter(
    "payonce_billing_charges_total",
    "Charges that ended, by how and with which code of the gateway.",
    ["outcome", "code"],
    registry=REGISTRY,
)
NOTIFICATION_SECONDS = Histogram(
    "payonce_billing_notification_seconds",
    "From what payments put on record to its delivery to subscriptions.",
    buckets=WAITS_S,
    registry=REGISTRY,
)

CODES: Final = frozenset(
    {"insufficient_funds", "card_declined", "expired_card", "invalid_cvv", "no_payment_method", ""}
)
OTHER: Final = "other"
"""Whatever else the gateway says: a label is not for every word of a vendor."""


def count_charge(state: State, decline_code: str | None) -> None:
    """Once for each charge, when its end is on record."""
    code = decline_code or ""
    CHARGES.labels(state, code if code in CODES else OTHER).inc()


def count_delivery(seconds: float) -> None:
    NOTIFICATION_SECONDS.observe(max(0.0, seconds))


async def observe_payments(database: Database) -> None:
    row = await database.engine.fetchrow(
        """
        select count(*), coalesce(greatest(0, extract(epoch from payonce.due_now() - min(created_at))), 0)::float8
            as oldest_s
        from payments.notifications where delivered_at is null
        """
    )
    assert row is not None
    NOTIFICATIONS.set(row["count"])
    NOTIFICATION_OLDEST_SECONDS.set(row["oldest_s"])
