"""What a paid invoice and a failed charge make of their subscription."""

from datetime import datetime
from fractions import Fraction
from typing import Any

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.subscriptions.domain.allowance import window_at, window_starts
from payonce.services.billing.subscriptions.domain.calendar import share_left
from payonce.services.billing.subscriptions.handlers import (
    dunning,
    invoices,
    merchant_events,
    plan_moves,
    unpaid_invoices,
)
from payonce.services.billing.subscriptions.handlers.invoices import Draft, first_recognition
from payonce.services.billing.subscriptions.model import (
    CHANGES,
    ChangeState,
    Due,
    Invoice,
    InvoiceLine,
    InvoiceState,
    State,
    Subscription,
    When,
)
from payonce.services.billing.subscriptions.store import charge_credit, plan_changes, plans, subscriptions, usage
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store.due_work import put_now
from payonce.services.billing.subscriptions.store.subscriptions import Standing
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import Action


async def bill(tx: Tx, standing: Standing, draft: Draft) -> Invoice:
    """Issues an invoice; one with nothing due takes effect at once."""
    invoice = await invoices.issue(tx, standing, draft)
    if invoice.state is InvoiceState.PAID:
        await _take_effect(tx, standing, invoice)
    return invoice


async def pay(
    tx: Tx, standing: Standing, invoice: Invoice, transaction_id: str | None, paid_with: str | None
) -> Invoice:
    """The money is there: books, revenue and the subscription follow."""
    # What is served from its payment on may have waited for it beyond the next closing of the books.
    earn_at = invoice.earn_at or first_recognition(invoice.lines)
    invoice = await invoice_store.mark_paid(
        tx, invoice, transaction_id, standing.now, earn_at, paid_with, refunding=invoice.action is Action.TRIAL
    )
    await _take_effect(tx, standing, invoice)
    return invoice


async def fail(tx: Tx, standing: Standing, invoice: Invoice, code: str | None, hard: bool) -> Invoice:
    """The card did not pay, definitely."""
    try_at_once = invoice.try_at_once
    invoice = await invoice_store.mark_failed(tx, invoice, code, hard, standing.now)
    await merchant_events.tell_invoice(tx, "payment_failed", invoice)
    if invoice.action in CHANGES:
        invoice = await _leave_plan_as_it_is(tx, standing, invoice)
    elif try_at_once and await invoice_store.on_its_way_back(tx, invoice) is None:
        return await dunning.try_again(tx, standing, invoice)
    elif invoice.action is Action.RENEWAL:
        invoice = await dunning.follow_failure(tx, standing, invoice)
    else:
        await subscriptions.move(tx, standing.subscription, "payment_failed", standing.now, detail=_of(invoice))
    await wake(tx, standing.subscription.test_clock_id)
    return invoice


async def _leave_plan_as_it_is(tx: Tx, standing: Standing, invoice: Invoice) -> Invoice:
    subscription = standing.subscription
    invoice = await unpaid_invoices.void(tx, subscription, invoice, standing.now, "the change of plan was not paid")
    reason = f"{invoice.due} of invoice {invoice.number} was not paid: {invoice.decline_code or 'no answer'}"
    change = await plan_changes.find(tx, invoice.id)
    detail = {**_of(invoice), "change_id": invoice.id, "reason": reason}
    moved = await subscriptions.move(tx, subscription, "plan_change_failed", standing.now, detail=detail)
    if change is not None and change.state is ChangeState.PENDING:
        after = subscriptions.with_subscription(standing, moved)
        change = await plan_changes.end(tx, after, change, ChangeState.FAILED, reason, timeline=False)
        described = merchant_events.described_change(change, moved)
        await merchant_events.tell(tx, "plan_change_failed", moved, heard=standing.heard, change=described)
    return invoice


async def _take_effect(tx: Tx, standing: Standing, invoice: Invoice) -> None:
    await merchant_events.tell_invoice(tx, "paid", invoice, heard=standing.heard)
    kind, changes = _changes(standing.subscription, invoice, standing.now)
    changes |= await _windows(tx, standing, invoice, changes)
    if invoice.action in CHANGES:
        left = await _left_by(tx, invoice)
        await invoice_store.close_lines(tx, left, invoice.issued_at)
        await charge_credit.confirm(tx, invoice, left)
        await _take_use_along(tx, standing, invoice, changes["allowance_starts"])
    moved = await subscriptions.move(tx, standing.subscription, kind, standing.now, detail=_of(invoice), **changes)
    change = None
    if invoice.action in CHANGES:
        change = await _end_changes(tx, subscriptions.with_subscription(standing, moved), invoice)
    await merchant_events.tell(tx, kind, moved, heard=standing.heard, change=change)
    if invoice.action in CHANGES:
        moved = await plan_moves.follow(tx, await subscriptions.standing(tx, moved))
    if moved.due_at is not None and moved.due_at <= standing.now and not moved.test_clock_id:
        await put_now(tx, moved.id)
    await wake(tx, moved.test_clock_id)


async def _end_changes(tx: Tx, standing: Standing, invoice: Invoice) -> dict[str, Any] | None:
    """The change that was paid is applied, and one for the end of the period has nothing left to change."""
    found = await plan_changes.pending(tx, standing.subscription.id)
    if (later := found.get(When.PERIOD_END)) is not None:
        await plan_changes.end(tx, standing, later, ChangeState.CANCELED, f"replaced by change {invoice.id}")
    change = found.get(When.NOW)
    if change is None or change.id != invoice.id:
        return None
    change = await plan_changes.end(tx, standing, change, ChangeState.APPLIED, timeline=False)
    return merchant_events.described_change(change, standing.subscription)


async def _left_by(tx: Tx, change: Invoice) -> list[tuple[Invoice, InvoiceLine]]:
    """As when it was reckoned: a period that ended before its issue was left all the same."""
    asked_at = min(line.service_start for line in change.lines)
    in_force = await invoice_store.in_force(tx, change.subscription_id, asked_at)
    return [(older, line) for older, line in in_force if older.id != change.id]


async def _windows(tx: Tx, standing: Standing, invoice: Invoice, changes: dict[str, Any]) -> dict[str, Any]:
    """The allowance windows of the period that the invoice is of."""
    plan = standing.plan if invoice.plan_id == standing.plan.id else await plans.plan(tx, invoice.plan_id)
    anchor_at = changes.get("anchor_at", standing.subscription.anchor_at)
    if anchor_at is None or anchor_at > invoice.period_start:
        # The period is over, and the next one is counted from a new anchor.
        return {}
    zone, allowance = standing.subscription.time_zone, plans.allowance_of(plan)
    starts = window_starts(anchor_at, zone, allowance, invoice.period_start, invoice.period_end)
    return {"allowance_starts": starts}


async def _take_use_along(tx: Tx, standing: Standing, change: Invoice, starts: tuple[datetime, ...] | None) -> None:
    """Into the window that the change begins. What a trial allowed was a gift, and is not counted against the plan."""
    subscription = standing.subscription
    assert subscription.period_start is not None and subscription.period_end is not None
    asked_at = min(line.service_start for line in change.lines)
    left = window_at(subscription.allowance_starts, subscription.period_start, subscription.period_end, standing.now)
    begun, _ = window_at(starts, change.period_start, change.period_end, standing.now)
    if begun == left[0]:
        return
    if subscription.state is State.TRIALING:
        share = Fraction(0)
    else:
        # A longer window that began earlier contains all that was used in the one that is left.
        share = share_left(*left, asked_at) if begun > left[0] else Fraction(1)
    await usage.carry_over(tx, subscription, left[0], begun, share)


def _changes(
    subscription: Subscription, invoice: Invoice, now: datetime
) -> tuple[merchant_events.SubscriptionEvent, dict[str, Any]]:
    """What becomes of it, and the word for that."""
    running = {
        "state": State.ACTIVE,
        "period_start": invoice.period_start,
        "period_end": invoice.period_end,
        "due_at": invoice.period_end,
        "due_for": Due.RENEW,
        "reason": None,
    }
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
    return {
        "invoice_id": invoice.id,
        "number": invoice.number,
        "amount": invoice.due.to_text(),
        "decline_code": invoice.decline_code,
    }
