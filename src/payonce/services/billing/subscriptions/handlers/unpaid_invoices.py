"""Invoices that end unpaid, and the unrecognised revenue of subscriptions that end."""

from datetime import datetime

from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.domain.revenue import earned
from payonce.services.billing.subscriptions.handlers import merchant_events
from payonce.services.billing.subscriptions.handlers.invoices import first_recognition
from payonce.services.billing.subscriptions.model import CHANGES, EntryKind, Invoice, InvoiceState, Subscription
from payonce.services.billing.subscriptions.store import charge_credit, credit, credit_notes, invoices
from payonce.services.billing.subscriptions.store.credit import NewEntry
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote


async def void(tx: Tx, subscription: Subscription, invoice: Invoice, at: datetime, reason: str) -> Invoice:
    """Voids an open invoice with a credit note over its total. A charge in progress may still succeed and is then
    refunded."""
    invoice = await count(tx, invoice, at) if invoice.earn_at is not None else invoice
    invoice = await _unwind(tx, invoice, InvoiceState.VOID, at)
    if invoice.action in CHANGES:
        await charge_credit.release(tx, invoice.id, subscription.id)
    note = None
    if invoice.total.minor > 0:
        note = CreditNote(str(new_id()), "", invoice.id, None, invoice.total, reason, at)
        note = await credit_notes.insert(tx, note, subscription.test_clock_id)
    await merchant_events.announce_invoice(tx, "voided", invoice, note)
    return invoice


async def give_up(tx: Tx, invoice: Invoice, at: datetime) -> Invoice:
    """Writes an invoice off after dunning: the earned part is bad debt, and the rest is never earned."""
    invoice = await count(tx, invoice, at) if invoice.earn_at is not None else invoice
    return await _unwind(tx, invoice, InvoiceState.UNCOLLECTIBLE, at)


async def take_up_again(tx: Tx, invoice: Invoice, at: datetime) -> Invoice:
    """Reopens an uncollectible invoice for another charge; it earns revenue once that succeeds, since no service was
    provided meanwhile. Raises Conflict if its credit is no longer available."""
    if missing := await missing_credit(tx, invoice):
        raise Conflict(
            f"{ledger.unwound(invoice).credit_back} of invoice {invoice.number} must be paid from credit that was "
            f"returned when it was written off; {missing} of that is no longer available; add as much credit, or "
            "leave it unpaid"
        )
    if (posting := ledger.reopened(invoice)) is not None:
        await tx.post(posting)
    back = ledger.unwound(invoice).credit_back
    await _book_use(tx, invoice, -back, f"used:{invoice.id}:{invoice.generation}", "is charged again", at)
    return await invoices.reopen_lines(tx, invoice)


async def missing_credit(tx: Tx, invoice: Invoice) -> Amount:
    """The part of an uncollectible invoice's returned credit that is no longer available."""
    zero = Amount.zero(invoice.total.asset)
    if invoice.state is not InvoiceState.UNCOLLECTIBLE or not (back := ledger.unwound(invoice).credit_back):
        return zero
    return max(back - (await credit.locked(tx, invoice.account_id, zero.asset)).amount, zero)


async def close_books(tx: Tx, subscription: Subscription, at: datetime, reason: str) -> None:
    """Ends the invoices of an ended subscription: open ones are voided, and paid but unearned amounts are earned at
    once, since no more service follows."""
    for invoice in await invoices.unsettled(tx, subscription.id):
        if invoice.state is InvoiceState.OPEN:
            await void(tx, subscription, invoice, at, reason)
        else:
            await earn(tx, invoice, [line.amount for line in invoice.lines], at, None, closed_at=at)


async def count(tx: Tx, invoice: Invoice, at: datetime) -> Invoice:
    """Recognises revenue up to a time of the customer."""
    by_now = [earned(line.amount, line.service_start, line.service_end, at) for line in invoice.lines]
    return await earn(tx, invoice, by_now, at, first_recognition(invoice.lines, at))


async def earn(
    tx: Tx,
    invoice: Invoice,
    by_line: list[Amount],
    at: datetime,
    earn_at: datetime | None,
    closed_at: datetime | None = None,
) -> Invoice:
    before = Amount.total((line.earned for line in invoice.lines), invoice.total.asset)
    so_far = Amount.total(by_line, invoice.total.asset)
    if (posting := ledger.earned(invoice, so_far - before, so_far, at)) is not None:
        await tx.post(posting)
    return await invoices.write_lines(tx, invoice, by_line, earn_at, closed_at)


async def _unwind(tx: Tx, invoice: Invoice, state: InvoiceState, at: datetime) -> Invoice:
    if (posting := ledger.taken_back(invoice, state.value)) is not None:
        await tx.post(posting)
    back = ledger.unwound(invoice).credit_back
    await _book_use(tx, invoice, back, f"unused:{invoice.id}:{invoice.generation}", f"is {state}", at)
    invoice = await invoices.mark_ended(tx, invoice, state)
    return await invoices.write_lines(tx, invoice, [line.earned for line in invoice.lines], None, at)


async def _book_use(tx: Tx, invoice: Invoice, amount: Amount, key: str, why: str, at: datetime) -> None:
    entry = NewEntry(invoice.account_id, EntryKind.USED, amount, key, f"the invoice {why}", at, invoice_id=invoice.id)
    await credit.book(tx, entry)
