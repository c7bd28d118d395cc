"""The payment service: cards, charges and refunds at the gateway, and what subscriptions are told of them."""

from payonce.services.billing.payments.charging import process_charge_initiation
from payonce.services.billing.payments.credit_holds import (
    process_credit_confirmation,
    process_credit_hold,
    process_credit_release,
)
from payonce.services.billing.payments.invariants import APART_INVARIANTS, INVARIANTS, SHARED_INVARIANTS
from payonce.services.billing.payments.keeping import SCHEDULES, clean_up_payments, put_back_payments
from payonce.services.billing.payments.looking import is_used
from payonce.services.billing.payments.lookup import find_payments
from payonce.services.billing.payments.notifying import Notifier, process_webhook_processing
from payonce.services.billing.payments.observing import observe_payments
from payonce.services.billing.payments.refunding import process_refund_initiation
from payonce.services.billing.payments.statements import statements
from payonce.services.billing.payments.store import NAMES, REFERENCES

HANDLERS = (
    process_charge_initiation, process_webhook_processing, process_refund_initiation, process_credit_hold,
    process_credit_confirmation, process_credit_release, put_back_payments, clean_up_payments,
)  # fmt: skip

LOOKUPS = (find_payments,)

__all__ = [
    "APART_INVARIANTS", "HANDLERS", "INVARIANTS", "LOOKUPS", "NAMES", "REFERENCES", "SCHEDULES", "SHARED_INVARIANTS",
    "Notifier", "is_used", "observe_payments", "statements",
]  # fmt: skip
