"""Issues invoices: lines, credit, postings and the charge request in one commit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.services.billing.policies import CHARGE_INITIATION
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.calendar import Period, local
from payonce.services.billing.subscriptions.domain.revenue import next_recognition
from payonce.services.billing.subscriptions.handlers import merchant_events
from payonce.services.billing.subscriptions.model import (
    EntryKind,
    Invoice,
    InvoiceLine,
    InvoiceState,
    LineKind,
    Plan,
)
from payonce.services.billing.subscriptions.store import credit as credit_store
from payonce.services.billing.subscriptions.store import invoices
from payonce.services.billing.subscriptions.store.credit import NewEntry
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.wire import Action, Charge, charge_key

SERVED_AT_ONCE: Final = frozenset({Action.RENEWAL})
"""Service begins before the payment: revenue is recognised from the issue date. For other actions it begins with the
payment."""


@dataclass(frozen=True)
class Draft:
    """An invoice without a number."""

    action: Action
    plan_id: str
    period: int | None
    start: datetime
    end: datetime
    lines: Sequence[InvoiceLine]
    id: str | None = None
    """For a plan change, whose id makes redelivery harmless."""


def period_draft(action: Action, plan: Plan, period: Period, number: int, zone: str) -> Draft:
    """One period at the plan's price."""
    text = f"{plan.name}, {on_day(period.start, zone)} to {on_day(period.end, zone)}"
    line = new_line(1, LineKind.PERIOD, text, plan, plan.price, period.start, period.end)
    return Draft(action, plan.id, number, period.start, period.end, (line,))


def new_line(
    number: int, kind: LineKind, text: str, plan: Plan, amount: Amount, start: datetime, end: datetime
) -> InvoiceLine:
    return InvoiceLine(number, kind, text, plan.id, amount, start, end, Amount.zero(amount.asset))


async def issue(tx: Tx, locked: LockedSubscription, draft: Draft) -> Invoice:
    """Issues an invoice; with nothing due it is paid at once, otherwise its first charge is requested. The number is
    taken last, since its series stays locked until the commit."""
    subscription, now = locked.subscription, locked.now
    zero = Amount.zero(locked.plan.price.asset)
    total = Amount.total((line.amount for line in draft.lines), zero.asset)
    # The trial price verifies the card and is refunded to it; using credit for it would waste the credit.
    credit = zero if draft.action is Action.TRIAL else min(max(total, zero), locked.credit)
    if credit:
        # A payout may have used credit since the subscription was read; from here on the balance is locked.
        credit = min(credit, (await credit_store.locked(tx, subscription.account_id, zero.asset)).amount)
    due = max(total, zero) - credit
    invoice = Invoice(
        id=draft.id or str(new_id()),
        number="",
        account_id=subscription.account_id,
        subscription_id=subscription.id,
        action=draft.action,
        plan_id=draft.plan_id,
        period=draft.period,
        period_start=draft.start,
        period_end=draft.end,
        total=total,
        credit=credit,
        due=due,
        state=InvoiceState.OPEN if due else InvoiceState.PAID,
        generation=1 if due else 0,
        charging=bool(due),
        failures=0,
        first_failed_at=None,
        decline_code=None,
        declined_hard=False,
        try_at_once=False,
        transaction_id=None,
        paid_at=None if due else now,
        refunding=False,
        refunded=zero,
        earn_at=first_recognition(draft.lines) if not due or draft.action in SERVED_AT_ONCE else None,
        issued_at=now,
        trace_id=tx.trace_id or subscription.trace_id,
        lines=tuple(draft.lines),
    )
    if (posting := ledger.issued(invoice)) is not None:
        await tx.post(posting)
    await _book_credit(tx, invoice)
    if due:
        await send_charge(tx, invoice)
    invoice = await invoices.insert(tx, invoice, subscription.test_clock_id)
    await merchant_events.announce_invoice(tx, "issued", invoice, has_webhooks=locked.has_webhooks)
    return invoice


async def _book_credit(tx: Tx, invoice: Invoice) -> None:
    """A negative total becomes credit; credit used for the invoice is deducted."""
    if invoice.total.minor < 0:
        await credit_store.book(
            tx,
            NewEntry(
                invoice.account_id,
                EntryKind.GRANTED,
                -invoice.total,
                f"granted:{invoice.id}",
                "unused time at a plan change",
                invoice.issued_at,
                invoice_id=invoice.id,
            ),
        )
    elif invoice.credit:
        await credit_store.book(
            tx,
            NewEntry(
                invoice.account_id,
                EntryKind.USED,
                -invoice.credit,
                f"used:{invoice.id}",
                f"paid for {invoice.action}",
                invoice.issued_at,
                invoice_id=invoice.id,
            ),
        )


async def send_charge(tx: Tx, invoice: Invoice, *, again: bool = False) -> UUID:
    """Requests the charge from payments in this commit, and returns the message id. Pass `again` if the message was
    lost: its remembered key would suppress it."""
    charge = Charge(
        invoice_id=invoice.id,
        generation=invoice.generation,
        account_id=invoice.account_id,
        subscription_id=invoice.subscription_id,
        action=invoice.action,
        amount_minor=invoice.due.minor,
        currency=invoice.due.asset.code,
        exponent=invoice.due.asset.exponent,
    )
    return await tx.send(
        CHARGE_INITIATION,
        msgspec.to_builtins(charge),
        action=invoice.action.value,
        key=None if again else charge_key(invoice.id, invoice.generation),
        correlation_id=invoice.subscription_id,
    )


def first_recognition(lines: Sequence[InvoiceLine], after: datetime | None = None) -> datetime | None:
    """The next time to recognise revenue of these lines."""
    moments = (
        next_recognition(line.service_start, line.service_end, after or line.service_start)
        for line in lines
        if line.amount
    )
    return min((moment for moment in moments if moment is not None), default=None)


def on_day(moment: datetime, zone: str) -> str:
    return str(local(moment, zone).date())
