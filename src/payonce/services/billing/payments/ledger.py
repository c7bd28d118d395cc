"""The postings of each step of a payment.

Assets and receivables are positive. From a charge until subscriptions applies it, its amount is in `billing/captured`,
which belongs to neither service and is zero at rest.
"""

from typing import Final

from payonce.engine.ledger import Posting, Reference, moved
from payonce.services.billing.payments.model import Refund, Transaction

CLEARING: Final = "billing/gateway_clearing"
"""What the gateway has captured for us and not refunded."""
CAPTURED: Final = "billing/captured"
"""In transit between the two services."""
OUTSIDE: Final = "billing/paid_outside"
"""Refunds outside the gateway: negative by the amount that left our bank or till."""
ONE_OFF: Final = "billing/one_off"
"""Payments without an invoice, which are not reported to subscriptions."""

TRANSACTION: Final = "billing_transaction"
REFUND: Final = "billing_refund"
"""The reference kinds."""


def captured(transaction: Transaction) -> Posting:
    return Posting(
        f"{TRANSACTION}:{transaction.id}:captured",
        Reference(TRANSACTION, transaction.id),
        moved(transaction.amount, _counterpart(transaction), CLEARING),
        "captured",
    )


def refunded(refund: Refund, transaction: Transaction) -> Posting:
    source = OUTSIDE if refund.outside else CLEARING
    return Posting(
        f"{REFUND}:{refund.id}",
        Reference(REFUND, refund.id),
        moved(refund.amount, source, _counterpart(transaction)),
        "refunded",
    )


def _counterpart(transaction: Transaction) -> str:
    return CAPTURED if transaction.told else ONE_OFF
