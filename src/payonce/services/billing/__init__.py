"""Subscription billing: two services, subscriptions and payments, that talk by queue and signed webhook."""

from payonce.engine.messages.work import Handler
from payonce.services.billing import payments, subscriptions
from payonce.services.billing.payments.decisions import giving_back
from payonce.services.billing.policies import QUEUES
from payonce.services.billing.scopes import NO_TENANTS, SCOPES
from payonce.services.billing.subscriptions.decisions.credit import changing_credit
from payonce.services.billing.subscriptions.decisions.subscriptions import deciding

ROLES: dict[str, tuple[Handler, ...]] = {
    "subscriptions": subscriptions.HANDLERS,
    "payments": payments.HANDLERS,
}
INVARIANTS = {**subscriptions.INVARIANTS, **payments.INVARIANTS, **payments.SHARED_INVARIANTS}
"""Of a database that both services share."""

__all__ = ["INVARIANTS", "NO_TENANTS", "QUEUES", "ROLES", "SCOPES", "changing_credit", "deciding", "giving_back"]
