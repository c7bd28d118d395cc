"""Invoices of immediate plan changes: payments holds the credit, then the difference is invoiced."""

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
"""Refunds in between that are tolerated before a change fails."""


async def begin(tx: Tx, locked: LockedSubscription, change: PlanChangeRecord, plan: Plan, changed_at: datetime) -> None:
    """Requests a hold for the credit of a pending change; without credit it is invoiced at once. Fails a change that is
    no longer possible."""
    if (reason := _obstacle(locked, plan)) is not None:
        await _fail(tx, locked, change, reason)
        return
    draft, shares = await _computed(tx, locked, change.id, plan, changed_at, {})
    if _are_zero(shares):
        await settlement.bill(tx, locked, draft)
    else:
        await charge_credit.request_hold(tx, locked.subscription, change.id, changed_at, 1, shares)


async def follow_answer(tx: Tx, notification: Notification) -> str | None:
    """Invoices a change whose credit payments holds, or recomputes it after an unknown refund. Returns a sentence about
    a mismatch, or None."""
    try:
        answer = msgspec.convert(notification.metadata, type=HoldAnswer)
        locked = await subscriptions.locked(tx, notification.subscription_id or "")
    except (msgspec.ValidationError, NotFound) as error:
        return f"the answer to a credit hold does not match: {error}"
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
        reason = "refunds of the same payments kept coming in between; request the change again"
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
    """The invoice draft at the time of the request, and the credit of each charge. `refunded` is the refunded amount of
    each charge as known to payments, in minor units, including refunds in progress."""
    subscription = locked.subscription
    assert subscription.anchor_at is not None and subscription.period_start is not None
    # After a renewal in between, the change belongs to the period that it began.
    at = max(whole_second(changed_at), subscription.period_start)
    in_force = await invoices.in_force(tx, subscription.id, at)
    refunded_minor = {
        # A trial's price is refunded, whatever payments has recorded so far.
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
    """Amounts that are refunded, or being refunded, are not credited."""
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
    """Why an accepted change is no longer possible."""
    subscription = locked.subscription
    if subscription.state not in RUNNING:
        return f"the subscription was {subscription.state} when the change was to be made"
    if subscription.cancel_at_period_end:
        return "the subscription was canceled before the change"
    if locked.open_invoice is not None:
        return "another invoice of the subscription was being charged at the time of the change; request it again"
    if plan.id == subscription.plan_id:
        return f"the subscription already had the plan {plan.id}"
    if plan.trial_days is not None or plan.price.asset != locked.plan.price.asset:
        return f"plan {plan.id} is a trial or is paid in another currency"
    return None
