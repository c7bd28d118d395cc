"""The metrics of payments: charges by outcome, and undelivered notifications to subscriptions."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import REGISTRY, WAITS_S
from payonce.services.billing.payments.model import State

NOTIFICATIONS = Gauge(
    "payonce_billing_undelivered_notifications",
    "Notifications to subscriptions that are not delivered yet.",
    registry=REGISTRY,
)
NOTIFICATION_OLDEST_SECONDS = Gauge(
    "payonce_billing_oldest_undelivered_seconds",
    "Age of the oldest undelivered notification; 0 without one.",
    registry=REGISTRY,
)
CHARGES = Counter(
    "payonce_billing_charges_total",
    "Completed charges by outcome and gateway code.",
    ["outcome", "code"],
    registry=REGISTRY,
)
NOTIFICATION_SECONDS = Histogram(
    "payonce_billing_notification_seconds",
    "Time from recording a notification to its delivery to subscriptions.",
    buckets=WAITS_S,
    registry=REGISTRY,
)

CODES: Final = frozenset(
    {"insufficient_funds", "card_declined", "expired_card", "invalid_cvv", "no_payment_method", ""}
)
OTHER: Final = "other"
"""Any other code, so that the gateway cannot create labels without limit."""


def count_charge(state: State, decline_code: str | None) -> None:
    """Counts each charge once, when its result is recorded."""
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
