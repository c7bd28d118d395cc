"""What each step of an invoice writes into the books.

What we have or are owed is positive. Per invoice `billing/receivable` says what is still to be paid, and
`billing/deferred` what is billed and not earned yet. `billing/captured` lies between the two services: payments writes
what it took, we write what it was for.
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
"""Owed to customers, who use it up with their next invoices."""
BAD_DEBT: Final = "billing/bad_debt"
"""Service that was given and will not be paid."""
CAPTURED: Final = "billing/captured"
UNAPPLIED: Final = "billing/unapplied"
"""Taken from a card for what nobody owes; on its way back, or before a person."""
CREDIT_PAYOUT: Final = "billing/credit_payout"
"""Credit on its way to a card: no longer the customer's to use, and not with them yet."""
CREDIT_ADJUSTMENTS: Final = "billing/credit_adjustments"
"""What operators gave as credit, less what they took."""
CREDIT_EXPIRED: Final = "billing/credit_expired"
PAID_OUTSIDE: Final = "billing/paid_outside"
"""Below zero by what our bank or till has less."""

INVOICE: Final = "billing_invoice"
TRANSACTION: Final = "billing_transaction"
REFUND: Final = "billing_refund"
"""The kinds of reference; the latter two are kept by payments."""
PAYOUT: Final = "billing_credit_payout"
ENTRY: Final = "billing_credit_entry"
"""Kinds of reference, too: a payout by its id, an entry by its key."""


@dataclass(frozen=True)
class Unwound:
    """What becomes of an invoice that is taken back or given up after some of it was earned: credit pays for what was
    served as far as it goes, the rest of that is bad debt, and credit that is left goes back to the customer."""

    unearned: Amount
    credit_back: Amount
    bad_debt: Amount


def unwound(invoice: Invoice) -> Unwound:
    earned = Amount.total((line.earned for line in invoice.lines), invoice.total.asset)
    served_by_credit = min(invoice.credit, max(earned, Amount.zero(earned.asset)))
    return Unwound(invoice.total - earned, invoice.credit - served_by_credit, earned - served_by_credit)


def issued(invoice: Invoice) -> Posting | None:
    """None: the invoice is of nothing."""
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
    """`so_far` includes the amount: two steps of one moment are told apart by it."""
    return _of(
        invoice,
        f"earned:{at.isoformat()}:{so_far.minor}",
        Reference(INVOICE, invoice.id),
        ((DEFERRED, amount), (REVENUE, -amount)),
    )


def taken_back(invoice: Invoice, step: str) -> Posting | None:
    """Void, or given up as uncollectible."""
    back = unwound(invoice)
    return _of(
        invoice,
        f"{step}:{invoice.generation}",
        Reference(INVOICE, invoice.id),
        ((RECEIVABLE, -invoice.due), (CREDIT, -back.credit_back), (DEFERRED, back.unearned), (BAD_DEBT, back.bad_debt)),
    )


def reopened(invoice: Invoice) -> Posting | None:
    """What was given up is charged once more: the opposite of having given it up."""
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
    """Money that fitted no invoice is back with the customer."""
    return Posting(
        f"billing_refund:{refund_id}:returned",
        Reference(TRANSACTION, transaction_id),
        moved(amount, CAPTURED, UNAPPLIED),
        "returned",
    )


def credit_adjusted(entry_key: str, amount: Amount) -> Posting:
    """Above zero the customer has more."""
    return Posting(
        f"{ENTRY}:{entry_key}", Reference(ENTRY, entry_key), moved(amount, CREDIT, CREDIT_ADJUSTMENTS), "adjusted"
    )


def credit_expired(entry_key: str, amount: Amount) -> Posting:
    return Posting(
        f"{ENTRY}:{entry_key}", Reference(ENTRY, entry_key), moved(amount, CREDIT_EXPIRED, CREDIT), "expired"
    )


def payout_begun(payout: CreditPayout) -> Posting:
    """The customer cannot use it any more. By hand it is with them already."""
    source = PAID_OUTSIDE if payout.way is PayoutWay.BY_HAND else CREDIT_PAYOUT
    return Posting(
        f"{PAYOUT}:{payout.id}", Reference(PAYOUT, payout.id), moved(payout.amount, source, CREDIT), "paid_out"
    )


def payout_arrived(payout: CreditPayout) -> Posting:
    """Payments gave it back, out of what was captured."""
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
