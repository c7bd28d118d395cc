"""Billing a change of plan now: its credit is computed and held at payments, then the difference is invoiced."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from payonce.engine.messages.transaction import Tx
from payonce.kit.money import Amount
from payonce.services.billing.subscriptions.domain.calendar import Anchor, whole_second
from payonce.services.billing.subscriptions.domain.proration import BilledLine, Proration, change_plan
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers import settlement
from payonce.services.billing.subscriptions.handlers.invoices import Draft, new_line, on_day
from payonce.services.billing.subscriptions.model import (
    ChangeState,
    Invoice,
    InvoiceLine,
    InvoiceState,
    LineKind,
    Plan,
    PlanChangeRecord,
    State,
)
from payonce.services.billing.subscriptions.store import charge_credit, invoices, plan_changes, plans, subscriptions
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import Action, HeldCredit, HoldAnswer, Notification, Status

RUNNING: Final = frozenset({State.ACTIVE, State.TRIALING})
ROUNDS_MAX: Final = 10
"""So many refunds may come in between before a change is given up."""


async def begin(tx: Tx, locked: LockedSubscription, change: PlanChangeRecord, plan: Plan, changed_at: datetime) -> None:
    """Asks payments to hold the credit of a pending change; without credit it is billed at once. Ends a change that is
    no longer possible as failed."""
    if (reason := _obstacle(locked, plan)) is not None:
        await _fail(tx, locked, change, reason)
        return
    draft, shares = await _computed(tx, locked, change.id, plan, changed_at, {})
    if _are_zero(shares):
        await settlement.bill(tx, locked, draft)
    else:
        await charge_credit.request_hold(tx, locked.subscription, change.id, changed_at, 1, shares)


async def follow_answer(tx: Tx, notification: Notification) -> str | None:
    """Bills a change whose credit payments holds; computes it anew after a refund that we did not know of. Returns what
    does not fit."""
    try:
        answer = msgspec.convert(notification.metadata, type=HoldAnswer)
        locked = await subscriptions.locked(tx, notification.subscription_id or "")
    except (msgspec.ValidationError, NotFound) as error:
        return f"the answer to a credit hold does not fit: {error}"
    change = await plan_changes.find(tx, answer.change_id)
    invoice = await invoices.find(tx, answer.change_id)
    if invoice is not None:
        if invoice.state is InvoiceState.VOID:
            await charge_credit.release(tx, answer.change_id, locked.subscription.id)
        return None
    if change is None or change.state is not ChangeState.PENDING:
        await charge_credit.release(tx, answer.change_id, locked.subscription.id)
        return None
    await _go_on(tx, locked, change, answer, held=notification.status is Status.SUCCESS)
    return None


async def _go_on(
    tx: Tx, locked: LockedSubscription, change: PlanChangeRecord, answer: HoldAnswer, *, held: bool
) -> None:
    plan = await plans.plan(tx, change.to_plan_id)
    reason = _obstacle(locked, plan)
    if reason is None and answer.round >= ROUNDS_MAX and not held:
        reason = "refunds of the same payments came in between over and over; ask again"
    if reason is not None:
        await charge_credit.release(tx, change.id, change.subscription_id)
        await _fail(tx, locked, change, reason)
        return
    refunded = {each.transaction_id: each.refunded_minor for each in answer.credits}
    draft, shares = await _computed(tx, locked, change.id, plan, answer.changed_at, refunded)
    if held and shares == list(answer.credits):
        await settlement.bill(tx, locked, draft)
    else:
        await charge_credit.request_hold(
            tx, locked.subscription, change.id, answer.changed_at, answer.round + 1, shares
        )


async def _fail(tx: Tx, locked: LockedSubscription, change: PlanChangeRecord, reason: str) -> None:
    await plan_changes.end(tx, locked, change, ChangeState.FAILED, reason)
    await wake(tx, locked.subscription.test_clock_id)


def _are_zero(shares: Sequence[HeldCredit]) -> bool:
    return not any(each.minor for each in shares)


async def _computed(
    tx: Tx, locked: LockedSubscription, change_id: str, plan: Plan, changed_at: datetime, refunded: Mapping[str, int]
) -> tuple[Draft, list[HeldCredit]]:
    """The lines in force at their own price against the rest of the new plan, at the moment of asking; and the credit
    of each charge. `refunded` is what payments says of charges, in minor units: it knows of refunds that are under
    way."""
    subscription = locked.subscription
    assert subscription.anchor_at is not None and subscription.period_start is not None
    # A renewal may have come in between: then the change is one of the period that it began.
    at = max(whole_second(changed_at), subscription.period_start)
    in_force = await invoices.in_force(tx, subscription.id, at)
    refunded_minor = {
        # A trial's price goes back, whatever payments has on record of that by now.
        invoice.id: invoice.due.minor
        if invoice.refunding
        else refunded.get(invoice.transaction_id or "", invoice.refunded.minor)
        for invoice, _ in in_force
    }
    anchor = Anchor(subscription.anchor_at, subscription.time_zone, plans.interval_of(locked.plan))
    change = change_plan(_billed(in_force, refunded_minor), plan.price, plans.interval_of(plan), anchor, at)
    action = Action.UPGRADE if plans.is_dearer(plan, locked.plan) else Action.DOWNGRADE
    draft = Draft(
        action, plan.id, None, change.period.start, change.period.end, _lines(change, locked, plan), id=change_id
    )
    return draft, charge_credit.credits_of(draft.lines, in_force, refunded_minor)


def _billed(in_force: Sequence[tuple[Invoice, InvoiceLine]], refunded_minor: Mapping[str, int]) -> list[BilledLine]:
    """What was given back of an invoice in money, or is on its way back, is not given back in credit."""
    billed, rest = [], dict(refunded_minor)
    for invoice, line in in_force:
        if line.amount.minor > 0:
            back = min(rest[invoice.id], line.amount.minor)
            rest[invoice.id] -= back
            billed.append(BilledLine(line.amount, line.service_start, line.service_end, back))
    return billed


def _lines(change: Proration, locked: LockedSubscription, plan: Plan) -> list[InvoiceLine]:
    zone, old = locked.subscription.time_zone, locked.plan
    lines = [
        new_line(
            number,
            LineKind.UNUSED,
            f"Unused time of {old.name} from {on_day(back.start, zone)}",
            old,
            back.amount,
            back.start,
            back.end,
        )
        for number, back in enumerate(change.credits, start=1)
    ]
    if change.debit is not None:
        debit = change.debit
        text = f"{plan.name}, {on_day(debit.start, zone)} to {on_day(debit.end, zone)}"
        lines.append(new_line(len(lines) + 1, LineKind.REMAINING, text, plan, debit.amount, debit.start, debit.end))
    if not lines:
        zero = Amount.zero(plan.price.asset)
        lines.append(new_line(1, LineKind.REMAINING, plan.name, plan, zero, change.period.start, change.period.end))
    return lines


def _obstacle(locked: LockedSubscription, plan: Plan) -> str | None:
    """Why a change that was accepted cannot be any more."""
    subscription = locked.subscription
    if subscription.state not in RUNNING:
        return f"the subscription was {subscription.state} when the change was to begin"
    if subscription.cancel_at_period_end:
        return "the subscription was canceled before the change began"
    if locked.open_invoice is not None:
        return "another invoice of the subscription was being charged when the change was to begin; ask again"
    if plan.id == subscription.plan_id:
        return f"the subscription had the plan {plan.id} already"
    if plan.trial_days is not None or plan.price.asset != locked.plan.price.asset:
        return f"plan {plan.id} is a trial or is paid in another currency"
    return None
