"""An invoice as it is printed: who sells, who buys, what is owed, and what was given back."""

from collections.abc import Sequence

from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.accounts import Account
from payonce.services.billing.subscriptions.document import Kind, Party, Printable, PrintedLine, PrintedNote
from payonce.services.billing.subscriptions.invoice_store import CreditNote
from payonce.services.billing.subscriptions.model import Invoice


def printed_invoice(
    invoice: Invoice, notes: Sequence[CreditNote], account: Account, seller: Sequence[str], time_zone: str
) -> Printable:
    """In the customer's calendar as the subscription had it, and in the manner of their locale."""
    return Printable(
        kind=Kind.INVOICE, number=invoice.number, issued_at=invoice.issued_at, issuer=_seller(seller),
        customer=_customer(account),
        lines=tuple(
            PrintedLine(line.text, line.amount, line.service_start, line.service_end) for line in invoice.lines
        ),
        total=invoice.total, credit=invoice.credit if invoice.credit.minor else None, due=invoice.due,
        status=invoice.state.value,
        notes=tuple(PrintedNote(note.number, note.issued_at, note.amount, note.reason) for note in notes),
        zone=time_zone, locale=account.locale,
    )  # fmt: skip


def printed_note(
    note: CreditNote, invoice: Invoice, account: Account, seller: Sequence[str], time_zone: str
) -> Printable:
    amount: Amount = note.amount
    return Printable(
        kind=Kind.CREDIT_NOTE, number=note.number, issued_at=note.issued_at, issuer=_seller(seller),
        customer=_customer(account), lines=(PrintedLine(note.reason, amount),), total=amount, due=amount,
        status="issued", about=invoice.number, zone=time_zone, locale=account.locale,
    )  # fmt: skip


def _seller(seller: Sequence[str]) -> Party:
    return Party(seller[0], tuple(seller[1:]))


def _customer(account: Account) -> Party:
    return Party(account.name or account.email, (account.email,) if account.name else ())
