"""What a paid invoice and a failed charge make of their subscription."""

from datetime import datetime
from typing import Any

from payonce.engine.transaction import Tx
from payonce.services.billing.subscriptions import (
    announcing,
    collecting,
    crediting,
    ending,
    invoice_store,
    issuing,
    store,
    usage,
)
from payonce.services.billing.subscriptions.falling_due import put_now
from payonce.services.billing.subscriptions.issuing import Draft, first_recognition
from payonce.services.billing.subscriptions.model import (
    CHANGES,
    Due,
    Invoice,
    InvoiceLine,
    InvoiceState,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import Standing
from payonce.services.billing.subscriptions.waking import wake
from payonce.services.billing.wire import Action


async def bill(tx: Tx, standing: Standing, draft: Draft) -> Invoice:
    """Issues an invoice; one with nothing due takes effect at once."""
    invoice = await issuing.issue(tx, standing, draft)
    if invoice.state is InvoiceState.PAID:
        await _take_effect(tx, standing, invoice)
    elif invoice.action in CHANGES:
        await crediting.hold(tx, invoice, await _left_by(tx, invoice))
    return invoice


async def pay(tx: Tx, standing: Standing, invoice: Invoice, transaction_id: str | None) -> Invoice:
    """The money is there: books, revenue and the subscription follow."""
    # What is served from its payment on may have waited for it beyond the next closing of the books.
    earn_at = invoice.earn_at or first_recognition(invoice.lines)
    invoice = await invoice_store.mark_paid(
        tx, invoice, transaction_id, standing.now, earn_at, refunding=invoice.action is Action.TRIAL
    )
    await _take_effect(tx, standing, invoice)
    return invoice


async def fail(
    tx: Tx, standing: Standing, invoice: Invoice, code: str | None, hard: bool
) -> Invoice:  # fmt: skip
    """The card did not pay, definitely."""
    try_at_once = invoice.try_at_once
    invoice = await invoice_store.mark_failed(tx, invoice, code, hard, standing.now)
    await announcing.tell_invoice(tx, "payment_failed", invoice)
    if invoice.action in CHANGES:
        invoice = await _leave_plan_as_it_is(tx, standing, invoice)
    elif try_at_once and await invoice_store.on_its_way_back(tx, invoice) is None:
        return await collecting.try_again(tx, standing, invoice)
    elif invoice.action is Action.RENEWAL:
        invoice = await collecting.follow_failure(tx, standing, invoice)
    else:
        await store.move(tx, standing.subscription, "payment_failed", standing.now, detail=_of(invoice))
    await wake(tx, standing.subscription.test_clock_id)
    return invoice


async def _leave_plan_as_it_is(tx: Tx, standing: Standing, invoice: Invoice) -> Invoice:
    subscription = standing.subscription
    invoice = await ending.void(tx, subscription, invoice, standing.now, "the change of plan was not paid")
    await store.move(tx, subscription, "plan_change_failed", standing.now, detail=_of(invoice))
    return invoice


async def _take_effect(tx: Tx, standing: Standing, invoice: Invoice) -> None:
    await announcing.tell_invoice(tx, "paid", invoice, heard=standing.heard)
    kind, changes = _changes(standing.subscription, invoice, standing.now)
    if invoice.action in CHANGES:
        left = await _left_by(tx, invoice)
        await invoice_store.close_lines(tx, left, invoice.issued_at)
        await crediting.hold(tx, invoice, left)
        await _take_use_along(tx, standing.subscription, invoice)
    moved = await store.move(tx, standing.subscription, kind, standing.now, detail=_of(invoice), **changes)
    await announcing.tell(tx, kind, moved, heard=standing.heard)
    if moved.due_at is not None and moved.due_at <= standing.now and not moved.test_clock_id:
        await put_now(tx, moved.id)
    await wake(tx, moved.test_clock_id)


async def _left_by(tx: Tx, change: Invoice) -> list[tuple[Invoice, InvoiceLine]]:
    """As when it was reckoned: a period that ended before its issue was left all the same."""
    asked_at = min(line.service_start for line in change.lines)
    in_force = await invoice_store.in_force(tx, change.subscription_id, asked_at)
    return [(older, line) for older, line in in_force if older.id != change.id]


async def _take_use_along(tx: Tx, subscription: Subscription, change: Invoice) -> None:
    """Into a period that the change begins. What a trial allowed was a gift, and is not counted against the plan."""
    if change.period_start != subscription.period_start and subscription.state is not State.TRIALING:
        await usage.carry_over(tx, subscription, change.period_start)


def _changes(subscription: Subscription, invoice: Invoice, now: datetime) -> tuple[str, dict[str, Any]]:
    """What becomes of it, and the word for that."""
    running = {
        "state": State.ACTIVE, "period_start": invoice.period_start, "period_end": invoice.period_end,
        "due_at": invoice.period_end, "due_for": Due.RENEW, "reason": None,
    }  # fmt: skip
    match invoice.action:
        case Action.INITIAL:
            return "activated", {**running, "anchor_at": invoice.period_start}
        case Action.TRIAL:
            trial = {"state": State.TRIALING, "trial_ends_at": invoice.period_end, "due_for": Due.TRIAL_END}
            return "trial_started", {**running, **trial, "anchor_at": invoice.period_start}
        case Action.UPGRADE | Action.DOWNGRADE:
            if invoice.period_start != subscription.period_start:
                running |= {"anchor_at": invoice.period_start, "anchor_period": subscription.period}
            return "plan_changed", {**running, "plan_id": invoice.plan_id, "next_plan_id": None}
        case _:
            if subscription.state is State.UNPAID and invoice.period_end <= now:
                # Nothing was served meanwhile: the next period begins now, and is charged at once.
                running |= {"anchor_at": now, "anchor_period": subscription.period + 1, "due_at": now}
            return "renewed", running


def _of(invoice: Invoice) -> dict[str, Any]:
    return {"invoice_id": invoice.id, "number": invoice.number, "amount": invoice.due.to_text(),
            "decline_code": invoice.decline_code}  # fmt: skip
