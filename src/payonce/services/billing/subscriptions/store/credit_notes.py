"""Credit notes in the database."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.model import Invoice
from payonce.services.billing.subscriptions.store.document_numbers import NUMBER, TAKE_NUMBER, series

CREDIT_NOTE_SERIES: Final = "CN"
REASON_MAX_LENGTH: Final = 500


@dataclass(frozen=True)
class CreditNote:
    id: str
    number: str
    invoice_id: str
    refund_id: str | None
    amount: Amount
    reason: str
    issued_at: datetime
    outside: bool | None = None
    """Whether the money was returned outside the gateway; None if none was returned, or payments did not say."""


async def insert(tx: Tx, note: CreditNote, test_clock_id: str | None) -> CreditNote:
    """Truncates the reason, since cancellations accept longer ones."""
    note = replace(note, reason=note.reason[:REASON_MAX_LENGTH])
    number = await tx.fetchval(
        f"""
        with numbered as ({TAKE_NUMBER})
        insert into subscriptions.credit_notes
            (id, number, invoice_id, refund_id, amount_minor, reason, issued_at, outside)
        select $4, {NUMBER}, $5, $6, $7, $8, $9, $10 from numbered returning number
        """,
        *series(CREDIT_NOTE_SERIES, test_clock_id, note.issued_at),
        note.id,
        note.invoice_id,
        note.refund_id,
        note.amount.minor,
        note.reason,
        note.issued_at,
        note.outside,
    )
    return replace(note, number=number)


async def of_invoice(read: Reader | Tx, invoice: Invoice) -> list[CreditNote]:
    rows = await read.fetch(
        "select * from subscriptions.credit_notes where invoice_id = $1 order by issued_at, id", invoice.id
    )
    return [
        CreditNote(
            row["id"],
            row["number"],
            row["invoice_id"],
            row["refund_id"],
            Amount(row["amount_minor"], invoice.total.asset),
            row["reason"],
            row["issued_at"],
            row["outside"],
        )
        for row in rows
    ]
