"""The content of printed invoices and credit notes: seller, customer, lines, amounts, payment and refunds."""

from collections.abc import Sequence
from typing import Final

from payonce.kit.money import Amount, render
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.calendar import local
from payonce.services.billing.subscriptions.model import Account, Invoice, InvoiceState
from payonce.services.billing.subscriptions.pdf.render import (
    Kind,
    Party,
    PrintedDocument,
    PrintedLine,
    PrintedNote,
)
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote

CARD: Final = "card"


def printed_invoice(
    invoice: Invoice, notes: Sequence[CreditNote], account: Account, seller: Sequence[str], time_zone: str
) -> PrintedDocument:
    """In the subscription's time zone and the customer's locale."""
    return PrintedDocument(
        kind=Kind.INVOICE,
        number=invoice.number,
        issued_at=invoice.issued_at,
        issuer=_seller(seller),
        customer=_customer(account),
        lines=tuple(
            PrintedLine(line.text, line.amount, line.service_start, line.service_end) for line in invoice.lines
        ),
        total=invoice.total,
        credit=invoice.credit if invoice.credit.minor else None,
        credit_back=_credit_back(invoice),
        due=invoice.due,
        paid_at=invoice.paid_at,
        owed=invoice.state is not InvoiceState.VOID,
        status=_status(invoice, time_zone, account.locale),
        notes=_notes(notes),
        zone=time_zone,
        locale=account.locale,
    )


def _credit_back(invoice: Invoice) -> Amount | None:
    """The credit returned to the customer when the invoice was voided or written off."""
    if invoice.state not in (InvoiceState.VOID, InvoiceState.UNCOLLECTIBLE):
        return None
    return ledger.unwound(invoice).credit_back or None


def printed_note(
    note: CreditNote,
    before: Sequence[CreditNote],
    invoice: Invoice,
    account: Account,
    seller: Sequence[str],
    time_zone: str,
) -> PrintedDocument:
    """`before` are the earlier credit notes of the same invoice."""
    amount: Amount = note.amount
    return PrintedDocument(
        kind=Kind.CREDIT_NOTE,
        number=note.number,
        issued_at=note.issued_at,
        issuer=_seller(seller),
        customer=_customer(account),
        lines=(PrintedLine(note.reason, amount),),
        total=amount,
        due=amount,
        status=_refunded(note, invoice),
        about=invoice.number,
        about_total=invoice.total,
        notes=_notes(before),
        zone=time_zone,
        locale=account.locale,
    )


def _refunded(note: CreditNote, invoice: Invoice) -> str:
    if note.refund_id is None:
        return f"Invoice {invoice.number} is void: nothing is to be paid"
    match note.outside:
        case True:
            return "Refunded by another way than the card"
        case False:
            return f"Refunded to the {invoice.paid_with or CARD}"
        case None:
            return "Refunded"


def _way(invoice: Invoice, locale: str) -> str:
    if invoice.due:
        card = invoice.paid_with or CARD
        return f"by {card}, and {render(invoice.credit, locale)} from credit" if invoice.credit else f"by {card}"
    return "from credit" if invoice.credit else "with nothing to pay"


def _status(invoice: Invoice, time_zone: str, locale: str) -> str:
    if invoice.paid_at is not None:
        return f"Paid on {local(invoice.paid_at, time_zone).date().format_iso()} {_way(invoice, locale)}"
    match invoice.state:
        case InvoiceState.VOID:
            return "Void: nothing is to be paid"
        case InvoiceState.UNCOLLECTIBLE:
            return "Not paid, and no longer charged"
        case _:
            return "Not paid yet"


def _notes(notes: Sequence[CreditNote]) -> tuple[PrintedNote, ...]:
    return tuple(PrintedNote(note.number, note.issued_at, note.amount, note.reason) for note in notes)


def _seller(seller: Sequence[str]) -> Party:
    return Party(seller[0], tuple(seller[1:]))


def _customer(account: Account) -> Party:
    return Party(account.name or account.email, (account.email,) if account.name else ())
