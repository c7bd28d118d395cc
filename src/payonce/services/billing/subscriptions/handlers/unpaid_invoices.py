"""Invoices that end unpaid, and what becomes of the revenue that was not counted when a subscription ends."""

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
    """Takes an open invoice back, by a credit note over the whole of it. A charge that is under way may still succeed:
    then the money goes back."""
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
    """Dunning has ended: what was served is bad debt, and nothing of the rest is earned."""
    invoice = await count(tx, invoice, at) if invoice.earn_at is not None else invoice
    return await _unwind(tx, invoice, InvoiceState.UNCOLLECTIBLE, at)


async def take_up_again(tx: Tx, invoice: Invoice, at: datetime) -> Invoice:
    """One that was given up may be paid after all. Its next charge makes it open; it earns when that has succeeded, for
    nothing was served meanwhile. Raises Conflict when its credit is no longer there."""
    if missing := await missing_credit(tx, invoice):
        raise Conflict(
            f"{ledger.unwound(invoice).credit_back} of invoice {invoice.number} is to be paid by credit, which the "
            f"customer got back when it was given up; {missing} of that is gone; add as much credit, or leave it unpaid"
        )
    if (posting := ledger.reopened(invoice)) is not None:
        await tx.post(posting)
    back = ledger.unwound(invoice).credit_back
    await _book_use(tx, invoice, -back, f"used:{invoice.id}:{invoice.generation}", "is charged once more", at)
    return await invoices.reopen_lines(tx, invoice)


async def missing_credit(tx: Tx, invoice: Invoice) -> Amount:
    """Of an invoice that was given up: the credit that came back then, and is no longer there to pay it."""
    zero = Amount.zero(invoice.total.asset)
    if invoice.state is not InvoiceState.UNCOLLECTIBLE or not (back := ledger.unwound(invoice).credit_back):
        return zero
    return max(back - (await credit.locked(tx, invoice.account_id, zero.asset)).amount, zero)


async def close_books(tx: Tx, subscription: Subscription, at: datetime, reason: str) -> None:
    """The subscription has ended: open invoices are taken back, and what was paid and not earned is earned at once,
    since nothing more is served for it."""
    for invoice in await invoices.unsettled(tx, subscription.id):
        if invoice.state is InvoiceState.OPEN:
            await void(tx, subscription, invoice, at, reason)
        else:
            await earn(tx, invoice, [line.amount for line in invoice.lines], at, None, closed_at=at)


async def count(tx: Tx, invoice: Invoice, at: datetime) -> Invoice:
    """Revenue up to a moment of the customer's time."""
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
