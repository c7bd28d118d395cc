"""Subscription billing: two services, subscriptions and payments, that talk by queue and signed webhook."""

from payonce.engine.work import Handler
from payonce.services.billing import payments, subscriptions
from payonce.services.billing.observing import observe_billing
from payonce.services.billing.payments.decisions import giving_back
from payonce.services.billing.policies import QUEUES
from payonce.services.billing.scopes import SCOPES
from payonce.services.billing.subscriptions.decisions import deciding

ROLES: dict[str, tuple[Handler, ...]] = {
    "subscriptions": subscriptions.HANDLERS,
    "payments": payments.HANDLERS,
}
INVARIANTS = {**subscriptions.INVARIANTS, **payments.INVARIANTS}
SCHEDULES = (*subscriptions.SCHEDULES, *payments.SCHEDULES)
REFERENCES = {**subscriptions.REFERENCES, **payments.REFERENCES}
statements = payments.statements
NAMES = f"{subscriptions.NAMES}\nunion {payments.NAMES}"
"""Of both services: a subscription by what people call it, and what payments calls its own."""

__all__ = [
    "INVARIANTS", "NAMES", "QUEUES", "REFERENCES", "ROLES", "SCHEDULES", "SCOPES", "deciding", "giving_back",
    "observe_billing", "statements",
]  # fmt: skip
