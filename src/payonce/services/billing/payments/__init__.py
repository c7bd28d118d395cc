"""The payment service: cards, charges and refunds at the gateway, and what subscriptions are told of them."""

from payonce.services.billing.payments.charging import process_charge_initiation
from payonce.services.billing.payments.invariants import INVARIANTS
from payonce.services.billing.payments.keeping import SCHEDULES, clean_up_payments, put_back_payments
from payonce.services.billing.payments.notifying import Notifier, process_webhook_processing
from payonce.services.billing.payments.refunding import process_refund_initiation
from payonce.services.billing.payments.statements import statements
from payonce.services.billing.payments.store import NAMES, REFERENCES

HANDLERS = (
    process_charge_initiation, process_webhook_processing, process_refund_initiation, put_back_payments,
    clean_up_payments,
)  # fmt: skip

__all__ = ["HANDLERS", "INVARIANTS", "NAMES", "REFERENCES", "SCHEDULES", "Notifier", "statements"]
