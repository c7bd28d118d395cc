"""The effects of a paid invoice and of a failed charge on the subscription."""

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
    ChangeTiming,
    Due,
    Invoice,
    InvoiceLine,
    InvoiceState,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import charge_credit, plan_changes, plans, subscriptions, usage
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store.due_work import put_now
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import Action


async def bill(tx: Tx, locked: LockedSubscription, draft: Draft) -> Invoice:
    """Issues an invoice; one with nothing due takes effect at once."""
    invoice = await invoices.issue(tx, locked, draft)
    if invoice.state is InvoiceState.PAID:
        await _take_effect(tx, locked, invoice)
    return invoice


async def pay(
    tx: Tx, locked: LockedSubscription, invoice: Invoice, transaction_id: str | None, paid_with: str | None
) -> Invoice:
    """Marks the invoice as paid and applies its effects."""
    # Service that begins with the payment may begin after the next closing of the books.
    earn_at = invoice.earn_at or first_recognition(invoice.lines)
    invoice = await invoice_store.mark_paid(
        tx, invoice, transaction_id, locked.now, earn_at, paid_with, refunding=invoice.action is Action.TRIAL
    )
    await _take_effect(tx, locked, invoice)
    return invoice


async def fail(tx: Tx, locked: LockedSubscription, invoice: Invoice, code: str | None, hard: bool) -> Invoice:
    """The charge has definitely failed."""
    try_at_once = invoice.try_at_once
    invoice = await invoice_store.mark_failed(tx, invoice, code, hard, locked.now)
    await merchant_events.announce_invoice(tx, "payment_failed", invoice)
    if invoice.action in CHANGES:
        invoice = await _void_plan_change(tx, locked, invoice)
    elif try_at_once and await invoice_store.on_its_way_back(tx, invoice) is None:
        return await dunning.try_again(tx, locked, invoice)
    elif invoice.action is Action.RENEWAL:
        invoice = await dunning.follow_failure(tx, locked, invoice)
    else:
        await subscriptions.move(tx, locked.subscription, "payment_failed", locked.now, detail=_of(invoice))
    await wake(tx, locked.subscription.test_clock_id)
    return invoice


async def _void_plan_change(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> Invoice:
    subscription = locked.subscription
    invoice = await unpaid_invoices.void(tx, subscription, invoice, locked.now, "the plan change was not paid")
    reason = f"{invoice.due} of invoice {invoice.number} was not paid: {invoice.decline_code or 'no answer'}"
    change = await plan_changes.find(tx, invoice.id)
    detail = {**_of(invoice), "change_id": invoice.id, "reason": reason}
    moved = await subscriptions.move(tx, subscription, "plan_change_failed", locked.now, detail=detail)
    if change is not None and change.state is ChangeState.PENDING:
        after = subscriptions.with_subscription(locked, moved)
        change = await plan_changes.end(tx, after, change, ChangeState.FAILED, reason, timeline=False)
        described = merchant_events.described_change(change, moved)
        await merchant_events.announce_subscription(
            tx, "plan_change_failed", moved, has_webhooks=locked.has_webhooks, change=described
        )
    return invoice


async def _take_effect(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> None:
    await merchant_events.announce_invoice(tx, "paid", invoice, has_webhooks=locked.has_webhooks)
    kind, changes = _changes(locked.subscription, invoice, locked.now)
    changes |= await _windows(tx, locked, invoice, changes)
    if invoice.action in CHANGES:
        left = await _left_by(tx, invoice)
        await invoice_store.close_lines(tx, left, invoice.issued_at)
        await charge_credit.confirm(tx, invoice, left)
        await _carry_usage_over(tx, locked, invoice, changes["allowance_starts"])
    moved = await subscriptions.move(tx, locked.subscription, kind, locked.now, detail=_of(invoice), **changes)
    change = None
    if invoice.action in CHANGES:
        change = await _end_changes(tx, subscriptions.with_subscription(locked, moved), invoice)
    await merchant_events.announce_subscription(tx, kind, moved, has_webhooks=locked.has_webhooks, change=change)
    if invoice.action in CHANGES:
        moved = await plan_moves.follow(tx, await subscriptions.read_locked(tx, moved))
    if moved.due_at is not None and moved.due_at <= locked.now and not moved.test_clock_id:
        await put_now(tx, moved.id)
    await wake(tx, moved.test_clock_id)


async def _end_changes(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> dict[str, Any] | None:
    """Applies the paid change, and cancels a scheduled one."""
    found = await plan_changes.pending(tx, locked.subscription.id)
    if (later := found.get(ChangeTiming.PERIOD_END)) is not None:
        await plan_changes.end(tx, locked, later, ChangeState.CANCELED, f"replaced by change {invoice.id}")
    change = found.get(ChangeTiming.NOW)
    if change is None or change.id != invoice.id:
        return None
    change = await plan_changes.end(tx, locked, change, ChangeState.APPLIED, timeline=False)
    return merchant_events.described_change(change, locked.subscription)


async def _left_by(tx: Tx, change: Invoice) -> list[tuple[Invoice, InvoiceLine]]:
    """The lines that the change credited, as of its request: a period that ended before its issue counts too."""
    asked_at = min(line.service_start for line in change.lines)
    in_force = await invoice_store.in_force(tx, change.subscription_id, asked_at)
    return [(older, line) for older, line in in_force if older.id != change.id]


async def _windows(tx: Tx, locked: LockedSubscription, invoice: Invoice, changes: dict[str, Any]) -> dict[str, Any]:
    """The allowance windows of the invoice's period."""
    plan = locked.plan if invoice.plan_id == locked.plan.id else await plans.plan(tx, invoice.plan_id)
    anchor_at = changes.get("anchor_at", locked.subscription.anchor_at)
    if anchor_at is None or anchor_at > invoice.period_start:
        # The period is over, and the next one has a new anchor.
        return {}
    zone, allowance = locked.subscription.time_zone, plans.allowance_of(plan)
    starts = window_starts(anchor_at, zone, allowance, invoice.period_start, invoice.period_end)
    return {"allowance_starts": starts}


async def _carry_usage_over(
    tx: Tx, locked: LockedSubscription, change: Invoice, starts: tuple[datetime, ...] | None
) -> None:
    """Carries usage into the window that the change begins. Usage during a trial is not counted against the plan."""
    subscription = locked.subscription
    assert subscription.period_start is not None and subscription.period_end is not None
    asked_at = min(line.service_start for line in change.lines)
    left = window_at(subscription.allowance_starts, subscription.period_start, subscription.period_end, locked.now)
    begun, _ = window_at(starts, change.period_start, change.period_end, locked.now)
    if begun == left[0]:
        return
    if subscription.state is State.TRIALING:
        share = Fraction(0)
    else:
        # A longer window that began earlier includes all usage of the current one.
        share = share_left(*left, asked_at) if begun > left[0] else Fraction(1)
    await usage.carry_over(tx, subscription, left[0], begun, share)


def _changes(
    subscription: Subscription, invoice: Invoice, now: datetime
) -> tuple[merchant_events.SubscriptionEvent, dict[str, Any]]:
    """The event's name and the changes of the subscription."""
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
                # No service was provided meanwhile: the next period begins now and is charged at once.
                running |= {"anchor_at": now, "anchor_period": subscription.period + 1, "due_at": now}
            return "renewed", running


def _of(invoice: Invoice) -> dict[str, Any]:
    return {
        "invoice_id": invoice.id,
        "number": invoice.number,
        "amount": invoice.due.to_text(),
        "decline_code": invoice.decline_code,
    }
