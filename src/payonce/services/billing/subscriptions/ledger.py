"""The postings of each step of an invoice.

Assets and receivables are positive. Per invoice, `billing/receivable` is the unpaid amount and `billing/deferred` the
billed but unearned one. `billing/captured` is in transit between the two services: payments books what it captured,
subscriptions what it was for.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.ledger import Line, Posting, Reference, moved
from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.model import CreditPayout, Invoice, PayoutWay

RECEIVABLE: Final = "billing/receivable"
DEFERRED: Final = "billing/deferred"
REVENUE: Final = "billing/revenue"
REFUNDS: Final = "billing/refunds"
CREDIT: Final = "billing/credit"
"""Owed to customers, who use it for their next invoices."""
BAD_DEBT: Final = "billing/bad_debt"
"""Service that was provided and will not be paid."""
CAPTURED: Final = "billing/captured"
UNAPPLIED: Final = "billing/unapplied"
"""Captured without a matching invoice; being refunded, or awaiting an operator's decision."""
CREDIT_PAYOUT: Final = "billing/credit_payout"
"""Credit being paid out to a card: no longer usable, and not received yet."""
CREDIT_ADJUSTMENTS: Final = "billing/credit_adjustments"
"""Credit that operators added, minus what they removed."""
CREDIT_EXPIRED: Final = "billing/credit_expired"
PAID_OUTSIDE: Final = "billing/paid_outside"
"""Negative by the amount that left our bank or till."""

INVOICE: Final = "billing_invoice"
TRANSACTION: Final = "billing_transaction"
REFUND: Final = "billing_refund"
"""The reference kinds; payments keeps the objects of the latter two."""
PAYOUT: Final = "billing_credit_payout"
ENTRY: Final = "billing_credit_entry"
"""More reference kinds: a payout by its id, an entry by its key."""


@dataclass(frozen=True)
class Unwound:
    """The settlement of an invoice that is voided or written off after part of it was earned: credit pays for the
    earned part as far as it goes, the rest of that part is bad debt, and unused credit returns to the customer."""

    unearned: Amount
    credit_back: Amount
    bad_debt: Amount


def unwound(invoice: Invoice) -> Unwound:
    earned = Amount.total((line.earned for line in invoice.lines), invoice.total.asset)
    served_by_credit = min(invoice.credit, max(earned, Amount.zero(earned.asset)))
    return Unwound(invoice.total - earned, invoice.credit - served_by_credit, earned - served_by_credit)


def issued(invoice: Invoice) -> Posting | None:
    """None for an invoice of zero."""
    credit = invoice.credit if invoice.total.minor >= 0 else invoice.total
    return _of(
        invoice,
        "issued",
        Reference(INVOICE, invoice.id),
        ((RECEIVABLE, invoice.due), (CREDIT, credit), (DEFERRED, -invoice.total)),
    )


def paid(invoice: Invoice) -> Posting | None:
    return _of(invoice, "paid", Reference(INVOICE, invoice.id), ((CAPTURED, invoice.due), (RECEIVABLE, -invoice.due)))


def earned(invoice: Invoice, amount: Amount, so_far: Amount, at: datetime) -> Posting | None:
    """`so_far` includes the amount and distinguishes two steps at the same moment."""
    return _of(
        invoice,
        f"earned:{at.isoformat()}:{so_far.minor}",
        Reference(INVOICE, invoice.id),
        ((DEFERRED, amount), (REVENUE, -amount)),
    )


def taken_back(invoice: Invoice, step: str) -> Posting | None:
    """Void, or written off as uncollectible."""
    back = unwound(invoice)
    return _of(
        invoice,
        f"{step}:{invoice.generation}",
        Reference(INVOICE, invoice.id),
        ((RECEIVABLE, -invoice.due), (CREDIT, -back.credit_back), (DEFERRED, back.unearned), (BAD_DEBT, back.bad_debt)),
    )


def reopened(invoice: Invoice) -> Posting | None:
    """An uncollectible invoice is charged again: the reverse of writing it off."""
    back = unwound(invoice)
    return _of(
        invoice,
        f"reopened:{invoice.generation}",
        Reference(INVOICE, invoice.id),
        ((RECEIVABLE, invoice.due), (CREDIT, back.credit_back), (DEFERRED, -back.unearned), (BAD_DEBT, -back.bad_debt)),
    )


def refunded(invoice: Invoice, refund_id: str, amount: Amount) -> Posting:
    return Posting(
        f"billing_refund:{refund_id}:applied",
        Reference(INVOICE, invoice.id),
        moved(amount, CAPTURED, REFUNDS),
        "refund",
    )


def unapplied(transaction_id: str, amount: Amount) -> Posting:
    return Posting(
        f"billing_transaction:{transaction_id}:unapplied",
        Reference(TRANSACTION, transaction_id),
        moved(amount, UNAPPLIED, CAPTURED),
        "unapplied",
    )


def returned(transaction_id: str, refund_id: str, amount: Amount) -> Posting:
    """Captured money without a matching invoice was refunded."""
    return Posting(
        f"billing_refund:{refund_id}:returned",
        Reference(TRANSACTION, transaction_id),
        moved(amount, CAPTURED, UNAPPLIED),
        "returned",
    )


def credit_adjusted(entry_key: str, amount: Amount) -> Posting:
    """Positive amounts increase the customer's credit."""
    return Posting(
        f"{ENTRY}:{entry_key}", Reference(ENTRY, entry_key), moved(amount, CREDIT, CREDIT_ADJUSTMENTS), "adjusted"
    )


def credit_expired(entry_key: str, amount: Amount) -> Posting:
    return Posting(
        f"{ENTRY}:{entry_key}", Reference(ENTRY, entry_key), moved(amount, CREDIT_EXPIRED, CREDIT), "expired"
    )


def payout_begun(payout: CreditPayout) -> Posting:
    """The credit is deducted. A manual payout has already reached the customer."""
    source = PAID_OUTSIDE if payout.way is PayoutWay.BY_HAND else CREDIT_PAYOUT
    return Posting(
        f"{PAYOUT}:{payout.id}", Reference(PAYOUT, payout.id), moved(payout.amount, source, CREDIT), "paid_out"
    )


def payout_arrived(payout: CreditPayout) -> Posting:
    """Payments refunded the amount from captured money."""
    return Posting(
        f"{PAYOUT}:{payout.id}:arrived",
        Reference(PAYOUT, payout.id),
        moved(payout.amount, CAPTURED, CREDIT_PAYOUT),
        "arrived",
    )


def payout_failed(payout: CreditPayout) -> Posting:
    return Posting(
        f"{PAYOUT}:{payout.id}:failed",
        Reference(PAYOUT, payout.id),
        moved(payout.amount, CREDIT, CREDIT_PAYOUT),
        "failed",
    )


def _of(invoice: Invoice, step: str, reference: Reference, amounts: tuple[tuple[str, Amount], ...]) -> Posting | None:
    lines = tuple(Line(path, amount) for path, amount in amounts if amount)
    if not lines:
        return None
    return Posting(f"billing_invoice:{invoice.id}:{step}", reference, lines, step.partition(":")[0])
