"""The payment service: cards, charges and refunds at the gateway, and notifications to subscriptions."""

from payonce.services.billing.payments.handlers.charges import process_charge_initiation
from payonce.services.billing.payments.handlers.credit_holds import (
    process_credit_confirmation,
    process_credit_hold,
    process_credit_release,
)
from payonce.services.billing.payments.handlers.notifications import NotificationSender, process_webhook_processing
from payonce.services.billing.payments.handlers.refunds import process_refund_initiation
from payonce.services.billing.payments.invariants import APART_INVARIANTS, INVARIANTS, SHARED_INVARIANTS
from payonce.services.billing.payments.metrics import observe_payments
from payonce.services.billing.payments.reconciliation import statements
from payonce.services.billing.payments.schedules import SCHEDULES, clean_up_payments, put_back_payments
from payonce.services.billing.payments.store.lookup import find_payments
from payonce.services.billing.payments.store.queries import is_used
from payonce.services.billing.payments.store.transactions import NAMES, REFERENCES

HANDLERS = (
    process_charge_initiation,
    process_webhook_processing,
    process_refund_initiation,
    process_credit_hold,
    process_credit_confirmation,
    process_credit_release,
    put_back_payments,
    clean_up_payments,
)

LOOKUPS = (find_payments,)

__all__ = [
    "APART_INVARIANTS",
    "HANDLERS",
    "INVARIANTS",
    "LOOKUPS",
    "NAMES",
    "REFERENCES",
    "SCHEDULES",
    "SHARED_INVARIANTS",
    "NotificationSender",
    "is_used",
    "observe_payments",
    "statements",
]
