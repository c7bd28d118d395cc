"""Credit for unused time, against refunds of the same charge: what goes back one way does not go back the other.

Payments keeps both on the row of the charge. Three functions are all of its schema that is touched from here, in the
commit of the change: whoever asks for a refund locks the same row, so of two that meet the second sees the first. The
subscription is locked before, and payments locks none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from payonce.engine.audit import Severity, note
from payonce.engine.transaction import Tx
from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.model import Invoice, InvoiceLine, LineKind


async def going_back(tx: Tx, in_force: Sequence[tuple[Invoice, InvoiceLine]]) -> Mapping[str, int]:
    """In minor units by invoice: what of its payment is back as money, or on its way, also where we have not heard of
    that yet. Until this commit nobody asks for more."""
    charges = {invoice.transaction_id: invoice.id for invoice, _ in in_force if invoice.transaction_id is not None}
    rows = await tx.fetch("select transaction_id, minor from payments.going_back($1::text[])", list(charges))
    return {charges[row["transaction_id"]]: row["minor"] for row in rows}


async def hold(tx: Tx, change: Invoice, left: Sequence[tuple[Invoice, InvoiceLine]]) -> None:
    """From the issue of a change its credit is out of reach for refunds. Held once, however often it is asked for."""
    for older, minor in sorted(_credited(change, left), key=lambda each: each[0].transaction_id or ""):
        both: int | None = await tx.fetchval(
            "select payments.hold_credit($1, $2, $3)", change.id, older.transaction_id, minor
        )
        if both:
            # The change was issued by a version that held nothing, and a refund came in between.
            await note(
                tx.connection, "billing.refunds", older.transaction_id or older.id,
                f"{Amount(both, older.due.asset)} came back both in money and as credit; a person may take it back",
                actor="billing.subscriptions", severity=Severity.ERROR,
            )  # fmt: skip


async def release(tx: Tx, change: Invoice) -> None:
    """It was not paid, so nothing comes back as credit."""
    await tx.execute("select payments.release_credit($1)", change.id)


def _credited(change: Invoice, left: Sequence[tuple[Invoice, InvoiceLine]]) -> list[tuple[Invoice, int]]:
    """Of what each invoice was paid, how much the change gives back; what earlier credit had paid goes back first."""
    unused = [line for line in change.lines if line.kind is LineKind.UNUSED]
    invoices, back = {}, Counter[str]()
    for older, line in left:
        given = next((each for each in unused if each.service_end == line.service_end), None)
        if given is not None:
            unused.remove(given)
            invoices[older.id] = older
            back[older.id] -= given.amount.minor
    found = []
    for older in invoices.values():
        billed = sum(line.amount.minor for line in older.lines if line.amount.minor > 0)
        minor = older.due.minor - billed + back[older.id]
        if older.transaction_id is not None and minor > 0:
            found.append((older, minor))
    return found
