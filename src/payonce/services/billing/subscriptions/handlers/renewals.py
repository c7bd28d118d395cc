"""`process_payment_initiation`: first invoices, renewals and dunning days of subscriptions."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Unprocessable
from payonce.services.billing.messages import DunningRetry, ExpireIncomplete, FirstInvoice, NextPeriod
from payonce.services.billing.policies import BILLING_CLOCK, PAYMENT_INITIATION
from payonce.services.billing.subscriptions.domain.allowance import window_starts
from payonce.services.billing.subscriptions.domain.calendar import Anchor, Period, period
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers import (
    dunning,
    merchant_events,
    plan_moves,
    settlement,
    unpaid_invoices,
)
from payonce.services.billing.subscriptions.handlers.invoices import period_draft
from payonce.services.billing.subscriptions.model import (
    ChangeState,
    ChangeTiming,
    Due,
    InvoiceState,
    Plan,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import invoices, plan_changes, plans, subscriptions
from payonce.services.billing.subscriptions.store.due_work import EXPIRE
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import Action

NEVER_PAID: Final = "its first payment did not arrive in time"


@handles(PAYMENT_INITIATION)
async def process_payment_initiation(work: Work) -> None:
    """Issues what is due and requests its charge, once: a repetition finds nothing left to do."""

    async def step(tx: Tx, asked: FirstInvoice | NextPeriod | DunningRetry) -> None:
        locked = await subscriptions.locked(tx, asked.subscription_id)
        match asked:
            case FirstInvoice():
                await bill_first(tx, locked, Action.INITIAL)
            case NextPeriod(period=number):
                await _renew(tx, locked, number)
            case DunningRetry(invoice_id=str(invoice_id)):
                await _dun(tx, locked, invoice_id)

    await carry_out(work, step)


@handles(BILLING_CLOCK, EXPIRE)
async def expire_incomplete(work: Work) -> None:
    """Expires a subscription without a first payment for 23 hours."""

    async def step(tx: Tx, asked: ExpireIncomplete) -> None:
        locked = await subscriptions.locked(tx, asked.subscription_id)
        subscription, now = locked.subscription, locked.now
        if not is_due(subscription, now, Due.EXPIRE):
            return
        await unpaid_invoices.close_books(tx, subscription, now, NEVER_PAID)
        moved = await subscriptions.move(
            tx,
            subscription,
            "expired",
            now,
            state=State.INCOMPLETE_EXPIRED,
            due_at=None,
            due_for=None,
            ended_at=now,
            reason=NEVER_PAID,
            next_plan_id=None,
        )
        await merchant_events.announce_subscription(tx, "expired", moved)
        after = subscriptions.with_subscription(locked, moved)
        await plan_changes.fail_all(tx, after, f"the subscription ended: {NEVER_PAID}")
        await wake(tx, moved.test_clock_id)

    await carry_out(work, step)


async def carry_out(work: Work, step: Callable[[Tx, Any], Awaitable[None]]) -> None:
    """Runs the step in the message's commit. A message about an unknown object is parked."""
    try:
        async with work.commit() as tx:
            await step(tx, work.payload)
    except NotFound as refusal:
        raise Unprocessable(str(refusal)) from None


async def bill_first(tx: Tx, locked: LockedSubscription, action: Action) -> None:
    """Issues the invoice of period 0, which begins now; its payment starts the subscription."""
    subscription, plan, now = locked.subscription, locked.plan, locked.now
    if subscription.state is not State.INCOMPLETE or locked.open_invoice is not None:
        return
    anchor = Anchor.at(now, subscription.time_zone, plans.interval_of(plan))
    await settlement.bill(tx, locked, period_draft(action, plan, period(anchor, 0), 0, subscription.time_zone))


async def _renew(tx: Tx, locked: LockedSubscription, number: int) -> None:
    subscription, now = locked.subscription, locked.now
    if not 0 < number <= subscription.period + 1:
        raise NotFound(f"subscription {subscription.id} is in period {subscription.period}; no period {number} follows")
    if subscription.period + 1 != number or not is_due(subscription, now, Due.RENEW, Due.TRIAL_END):
        return
    if locked.open_invoice is not None:
        # A plan change is being charged; its answer comes first.
        await subscriptions.put_again(tx, subscription)
        return
    if subscription.cancel_at_period_end:
        await end_at_period_end(tx, locked)
        return
    chosen = await _chosen_plan_id(tx, subscription)
    plan = await _following_plan(tx, locked, chosen)
    if plan is None:
        await end_at_period_end(tx, locked, "the plan that its trial converts to is no longer for sale")
        return
    begun, anchor_at, anchor_period = _following_period(subscription, plan, number)
    moved = await subscriptions.move(
        tx,
        subscription,
        "period_begun",
        now,
        detail={"period": number, "plan_id": plan.id},
        plan_id=plan.id,
        next_plan_id=None if chosen is not None else subscription.next_plan_id,
        anchor_at=anchor_at,
        anchor_period=anchor_period,
        period=number,
        period_start=begun.start,
        period_end=begun.end,
        due_at=begun.end,
        due_for=Due.RENEW,
        allowance_starts=window_starts(
            anchor_at, subscription.time_zone, plans.allowance_of(plan), begun.start, begun.end
        ),
    )
    same_plan = moved.plan_id == subscription.plan_id
    after = replace(locked, subscription=moved, plan=plan) if same_plan else await subscriptions.read_locked(tx, moved)
    if chosen is not None:
        await plan_changes.end_scheduled(tx, after, ChangeState.APPLIED)
    if chosen is not None or subscription.due_for is Due.TRIAL_END:
        after = subscriptions.with_subscription(after, await plan_moves.follow(tx, after))
    await settlement.bill(tx, after, period_draft(Action.RENEWAL, plan, begun, number, moved.time_zone))


async def end_at_period_end(tx: Tx, locked: LockedSubscription, reason: str = "as the customer requested") -> None:
    """Ends the subscription without a further period; everything paid has been provided and earned."""
    subscription, now = locked.subscription, locked.now
    await unpaid_invoices.close_books(tx, subscription, now, reason)
    moved = await subscriptions.move(
        tx,
        subscription,
        "canceled",
        now,
        state=State.CANCELED,
        due_at=None,
        due_for=None,
        ended_at=min(now, subscription.period_end or now),
        reason=reason,
        next_plan_id=None,
    )
    await merchant_events.announce_subscription(tx, "canceled", moved)
    await plan_changes.fail_all(tx, subscriptions.with_subscription(locked, moved), f"the subscription ended: {reason}")
    await wake(tx, moved.test_clock_id)


async def _dun(tx: Tx, locked: LockedSubscription, invoice_id: str) -> None:
    invoice = await invoices.find(tx, invoice_id)
    if invoice is None or invoice.subscription_id != locked.subscription.id:
        raise NotFound(f"invoice {invoice_id!r} does not belong to subscription {locked.subscription.id}")
    if not is_due(locked.subscription, locked.now, Due.DUN):
        return
    if invoice.state is not InvoiceState.OPEN or invoice.charging:
        return
    invoice = await dunning.dun(tx, locked, invoice)
    if not invoice.charging:
        await wake(tx, locked.subscription.test_clock_id)


def is_due(subscription: Subscription, now: datetime, *what: Due) -> bool:
    """Whether a step is due; for a repeated message it no longer is."""
    return subscription.due_for in what and subscription.due_at is not None and subscription.due_at <= now


async def _chosen_plan_id(tx: Tx, subscription: Subscription) -> str | None:
    """The scheduled plan of the period that begins now; None if the change is scheduled for a later period."""
    if subscription.next_plan_id is None:
        return None
    change = (await plan_changes.pending(tx, subscription.id)).get(ChangeTiming.PERIOD_END)
    if change is None or change.not_before is None or subscription.due_at is None:
        return subscription.next_plan_id
    return subscription.next_plan_id if change.not_before <= subscription.due_at else None


async def _following_plan(tx: Tx, locked: LockedSubscription, chosen: str | None) -> Plan | None:
    """The scheduled plan, the version that a trial converts to, or the current plan."""
    subscription = locked.subscription
    if chosen is not None:
        return await plans.plan(tx, chosen)
    if locked.plan.renews_to is not None:
        if subscription.converts_to_plan_id is not None:
            return await plans.plan(tx, subscription.converts_to_plan_id)
        # Started by an earlier version, or when nothing was for sale.
        begun_with = await plans.for_sale_at(tx, locked.plan.renews_to, subscription.created_at)
        found = begun_with or await plans.find(tx, locked.plan.renews_to)
        return found if found is not None and found.trial_days is None else None
    return locked.plan


def _following_period(subscription: Subscription, plan: Plan, number: int) -> tuple[Period, datetime, int]:
    """The next period with its anchor. After a trial, and for a plan with another interval, periods are counted from a
    new anchor."""
    assert subscription.anchor_at is not None and subscription.due_at is not None
    anchor_at, anchor_period = subscription.anchor_at, subscription.anchor_period
    interval = plans.interval_of(plan)
    if subscription.due_for is Due.TRIAL_END or plan.id != subscription.plan_id:
        kept = Anchor(anchor_at, subscription.time_zone, interval)
        begun = period(kept, number - anchor_period) if number >= anchor_period else None
        if subscription.due_for is Due.TRIAL_END or begun is None or begun.start != subscription.due_at:
            anchor_at, anchor_period = subscription.due_at, number
    anchor = Anchor(anchor_at, subscription.time_zone, interval)
    return period(anchor, number - anchor_period), anchor_at, anchor_period
