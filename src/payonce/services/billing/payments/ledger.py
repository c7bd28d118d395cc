"""What each step of a payment writes into the books.

What we have or are owed is positive. Between a charge and the moment subscriptions apply it, its amount is in
`billing/captured`, which belongs to neither service and is zero at rest.
"""

from typing import Final

from payonce.engine.ledger import Posting, Reference, moved
from payonce.services.billing.payments.model import Refund, Transaction

CLEARING: Final = "billing/gateway_clearing"
"""What the gateway has captured for us and not given back."""
CAPTURED: Final = "billing/captured"
"""In transit between the two services."""
OUTSIDE: Final = "billing/paid_outside"
"""What was given back by another way than the gateway: below zero by what our bank or till has less."""
ONE_OFF: Final = "billing/one_off"
"""Paid for no invoice: subscriptions never hear of it."""

TRANSACTION: Final = "billing_transaction"
REFUND: Final = "billing_refund"
"""The kinds of reference."""


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
