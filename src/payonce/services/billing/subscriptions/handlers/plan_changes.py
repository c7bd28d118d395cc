"""Changes that customers request: another plan, now or at the end of the period; cancellation, pause and resumption."""

from collections.abc import Mapping
from typing import Any

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.services.billing.messages import PlanChange
from payonce.services.billing.policies import PLAN_CHANGE
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import (
    merchant_events,
    plan_change_invoices,
    plan_moves,
    unpaid_invoices,
)
from payonce.services.billing.subscriptions.handlers.plan_change_invoices import RUNNING
from payonce.services.billing.subscriptions.handlers.renewals import carry_out
from payonce.services.billing.subscriptions.model import (
    ENDED,
    ChangeState,
    ChangeTiming,
    Due,
    Plan,
    PlanChangeRecord,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import invoices, plan_changes, plans, subscriptions
from payonce.services.billing.subscriptions.store.due_work import put_now
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import Action

__all__ = [
    "RUNNING",
    "ChangeTiming",
    "PlanChange",
    "cancel",
    "change_now",
    "pause",
    "process_plan_change",
    "request_plan",
    "resume",
    "send_change",
]


async def request_plan(
    tx: Tx, account_id: str | None, subscription_id: str, new_plan_id: str, when: ChangeTiming | None = None
) -> Subscription:
    """Changes the plan: by default an upgrade takes effect now, as soon as the difference is paid, and a downgrade at
    the end of the period. An accepted change is recorded as pending until it ends. Raises Conflict for one that is not
    possible."""
    locked = await _locked(tx, account_id, subscription_id)
    subscription = locked.subscription
    plan = await _requested_plan(tx, locked, new_plan_id)
    waiting = await plan_changes.pending(tx, subscription.id)
    _check_changeable(locked, plan, waiting)
    dearer = plans.is_dearer(plan, locked.plan)
    if (when or (ChangeTiming.NOW if dearer else ChangeTiming.PERIOD_END)) is ChangeTiming.PERIOD_END:
        return await _change_later(tx, locked, plan, waiting.get(ChangeTiming.PERIOD_END))
    if plan.id == subscription.plan_id:
        raise Conflict(f"the subscription already has the plan {plan.id}")
    if locked.open_invoice is not None:
        raise Conflict("an invoice of the subscription is being charged; change the plan when the charge has ended")
    if subscription.due_at is not None and subscription.due_at <= locked.now:
        # A change computed now would skip periods that are not invoiced yet.
        raise Conflict("the subscription's period is over and the next one is about to begin; try again in a minute")
    change = await plan_changes.request(tx, locked, plan, ChangeTiming.NOW)
    await send_change(tx, change, dearer=dearer)
    return subscription


async def send_change(tx: Tx, change: PlanChangeRecord, *, dearer: bool, again: bool = False) -> None:
    """Sends the change in the commit that accepts it. Pass `again` if the message was lost: its key is remembered."""
    await tx.send(
        PLAN_CHANGE,
        {
            "subscription_id": change.subscription_id,
            "change_id": change.id,
            "plan_id": change.to_plan_id,
            "at": change.requested_at.isoformat(),
        },
        action=Action.UPGRADE if dearer else Action.DOWNGRADE,
        key=None if again else f"change:{change.id}",
        correlation_id=change.subscription_id,
    )


async def _requested_plan(tx: Tx, locked: LockedSubscription, new_plan_id: str) -> Plan:
    """The current plan need not be for sale: requesting it withdraws a change. For a trial, the code of the following
    plan means the promised version."""
    subscription = locked.subscription
    if new_plan_id == subscription.plan_id and locked.plan.trial_days is None:
        return locked.plan
    if (promised := await _promised(tx, locked)) is not None and new_plan_id in (promised.id, promised.code):
        return promised
    return await plans.plan_for_sale(tx, new_plan_id)


async def _promised(tx: Tx, locked: LockedSubscription) -> Plan | None:
    """The plan that the trial converts to, unless a migration replaces it."""
    subscription = locked.subscription
    if locked.plan.trial_days is None or subscription.converts_to_plan_id is None:
        return None
    promised = await plans.plan(tx, subscription.converts_to_plan_id)
    return None if await plan_moves.ordered(tx, subscription.id, promised.id) is not None else promised


def _check_changeable(locked: LockedSubscription, plan: Plan, waiting: Mapping[ChangeTiming, PlanChangeRecord]) -> None:
    subscription = locked.subscription
    if subscription.state not in RUNNING:
        raise Conflict(
            f"the subscription is {subscription.state}: its plan can only change while it is active or trialing"
        )
    if subscription.cancel_at_period_end:
        raise Conflict(
            "the subscription is canceled at the end of its period, so its plan cannot change; withdraw the "
            "cancellation first with resume"
        )
    if plan.price.asset != locked.plan.price.asset:
        raise Conflict(f"plan {plan.id} is priced in {plan.price.asset}, but the subscription in {locked.credit.asset}")
    if (change := waiting.get(ChangeTiming.NOW)) is not None:
        said = "is being charged" if locked.open_invoice is not None else "is pending"
        raise Conflict(f"change {change.id} to plan {change.to_plan_id} {said}; try again when it has ended")


@handles(PLAN_CHANGE)
async def process_plan_change(work: Work) -> None:
    """Invoices the difference and requests its charge; with nothing due the plan changes at once."""
    await carry_out(work, change_now)


async def change_now(tx: Tx, asked: PlanChange) -> None:
    """Starts the change, or fails it with the reason if it is no longer possible."""
    locked = await subscriptions.locked(tx, asked.subscription_id)
    plan = await plans.plan(tx, asked.plan_id)
    known = await plan_changes.find(tx, asked.change_id)
    if known is not None and (known.subscription_id, known.to_plan_id) != (asked.subscription_id, asked.plan_id):
        raise NotFound(
            f"change {asked.change_id!r} is not a change of subscription {asked.subscription_id} to {asked.plan_id}"
        )
    invoice = await invoices.find(tx, asked.change_id)
    if invoice is not None:
        if invoice.subscription_id != asked.subscription_id:
            raise NotFound(f"change {asked.change_id!r} is an invoice of another subscription")
        return
    change = known or await _adopted(tx, locked, plan, asked)
    if change.state is not ChangeState.PENDING:
        await wake(tx, locked.subscription.test_clock_id)
        return
    await plan_change_invoices.begin(tx, locked, change, plan, asked.at)


async def _adopted(tx: Tx, locked: LockedSubscription, plan: Plan, asked: PlanChange) -> PlanChangeRecord:
    """Records a change that arrived only by queue, from an earlier version or as a raw message. It fails while another
    one is pending."""
    if (other := (await plan_changes.pending(tx, locked.subscription.id)).get(ChangeTiming.NOW)) is None:
        return await plan_changes.request(tx, locked, plan, ChangeTiming.NOW, change_id=asked.change_id)
    return await plan_changes.refuse(tx, locked, plan, asked.change_id, f"change {other.id} was pending")


async def cancel(
    tx: Tx, account_id: str | None, subscription_id: str, when: ChangeTiming, reason: str = ""
) -> Subscription:
    """Cancels now, which voids open invoices without refunding paid ones; or at the end of the period."""
    locked = await _locked(tx, account_id, subscription_id)
    subscription, now = locked.subscription, locked.now
    reason = reason or "as the customer requested"
    if subscription.state in ENDED:
        raise Conflict(f"the subscription is already {subscription.state}")
    if when is ChangeTiming.PERIOD_END and subscription.state in RUNNING | {State.PAST_DUE}:
        if subscription.cancel_at_period_end:
            return subscription
        return await _cancel_later(tx, locked, reason)
    await unpaid_invoices.close_books(tx, subscription, now, reason)
    moved = await subscriptions.move(
        tx,
        subscription,
        "canceled",
        now,
        detail={"reason": reason},
        state=State.CANCELED,
        due_at=None,
        due_for=None,
        paused_at=None,
        ended_at=now,
        reason=reason,
        next_plan_id=None,
    )
    await merchant_events.announce_subscription(tx, "canceled", moved)
    await plan_changes.fail_all(tx, subscriptions.with_subscription(locked, moved), f"the subscription ended: {reason}")
    await wake(tx, moved.test_clock_id)
    return moved


async def _cancel_later(tx: Tx, locked: LockedSubscription, reason: str) -> Subscription:
    """Cancels at the end of the period. A change that is being charged continues. A change ordered by a migration
    stays, since otherwise canceling and resuming would keep the old price."""
    waiting = await plan_changes.pending(tx, locked.subscription.id)
    later = waiting.get(ChangeTiming.PERIOD_END)
    ordered = await plan_changes.ordered(tx, locked.subscription.id, plan_moves.kept_plan_id(locked))
    kept = later.to_plan_id if later is not None and ordered is not None and ordered.id == later.id else None
    moved = await subscriptions.move(
        tx,
        locked.subscription,
        "cancel_asked",
        locked.now,
        cancel_at_period_end=True,
        next_plan_id=kept,
        reason=reason,
    )
    after = subscriptions.with_subscription(locked, moved)
    if later is not None and kept is None:
        why = "the subscription is canceled at the end of its period"
        await plan_changes.end(tx, after, later, ChangeState.CANCELED, why)
    if (soon := waiting.get(ChangeTiming.NOW)) is not None and locked.open_invoice != soon.id:
        await plan_changes.end(tx, after, soon, ChangeState.FAILED, "the subscription was canceled before the change")
    return moved


async def pause(tx: Tx, account_id: str | None, subscription_id: str) -> Subscription:
    """No service and no renewals until it is resumed."""
    locked = await _locked(tx, account_id, subscription_id)
    subscription, now = locked.subscription, locked.now
    if subscription.state not in RUNNING:
        raise Conflict(f"the subscription is {subscription.state}: only an active or trialing one can be paused")
    if subscription.cancel_at_period_end:
        raise Conflict("the subscription is canceled at the end of its period; withdraw that first with resume")
    if locked.open_invoice is not None:
        raise Conflict("an invoice of the subscription is being charged; pause it when the charge has ended")
    if (change := (await plan_changes.pending(tx, subscription.id)).get(ChangeTiming.NOW)) is not None:
        raise Conflict(f"change {change.id} to plan {change.to_plan_id} is pending; pause when it has ended")
    moved = await subscriptions.move(
        tx, subscription, "paused", now, state=State.PAUSED, paused_at=now, due_at=None, due_for=None
    )
    await merchant_events.announce_subscription(tx, "paused", moved)
    await wake(tx, moved.test_clock_id)
    return moved


async def resume(tx: Tx, account_id: str | None, subscription_id: str) -> Subscription:
    """Ends a pause, or withdraws a cancellation at the end of the period. If the period is over, a new one begins now
    and is charged at once."""
    locked = await _locked(tx, account_id, subscription_id)
    subscription, now = locked.subscription, locked.now
    if subscription.cancel_at_period_end and subscription.state in RUNNING | {State.PAST_DUE}:
        return await _withdraw_cancellation(tx, locked)
    if subscription.state is not State.PAUSED:
        raise Conflict(f"the subscription is {subscription.state}: it is not paused")
    assert subscription.period_end is not None
    trial = locked.plan.trial_days is not None
    state, due_for = (State.TRIALING, Due.TRIAL_END) if trial else (State.ACTIVE, Due.RENEW)
    over = subscription.period_end <= now
    anew: dict[str, Any] = {"anchor_at": now, "anchor_period": subscription.period + 1} if over else {}
    moved = await subscriptions.move(
        tx,
        subscription,
        "resumed",
        now,
        state=state,
        paused_at=None,
        due_for=due_for,
        due_at=now if over else subscription.period_end,
        **anew,
    )
    await merchant_events.announce_subscription(tx, "resumed", moved)
    if over:
        await put_now(tx, moved.id)
    await wake(tx, moved.test_clock_id)
    return moved


async def _withdraw_cancellation(tx: Tx, locked: LockedSubscription) -> Subscription:
    """Schedules a move ordered by a migration, if none is scheduled."""
    moved = await subscriptions.move(
        tx, locked.subscription, "cancel_taken_back", locked.now, cancel_at_period_end=False, reason=None
    )
    return await plan_moves.follow(tx, subscriptions.with_subscription(locked, moved))


async def _change_later(
    tx: Tx, locked: LockedSubscription, plan: Plan, scheduled: PlanChangeRecord | None
) -> Subscription:
    """Schedules the change, or withdraws the scheduled one if the plan is the current one or the one that the trial
    converts to."""
    subscription = locked.subscription
    if plan.id == subscription.next_plan_id:
        return subscription
    kept = plan_moves.kept_plan_id(locked)
    following = None if plan.id == kept else plan.id
    if following == subscription.next_plan_id:
        return await plan_moves.follow(tx, locked)
    if following is None and (ordered := await plan_moves.ordered(tx, subscription.id, kept)) is not None:
        raise Conflict(
            f"a plan migration moves the subscription to {ordered.to_plan_id} at one of its next renewals, so it "
            f"cannot keep {kept}; choose a plan that is for sale, or cancel"
        )
    moved = await subscriptions.move(
        tx, subscription, "next_plan_chosen", locked.now, detail={"next_plan_id": following}, next_plan_id=following
    )
    after = subscriptions.with_subscription(locked, moved)
    if scheduled is not None:
        why = "it was withdrawn" if following is None else f"replaced by a change to {plan.id}"
        await plan_changes.end(tx, after, scheduled, ChangeState.CANCELED, why)
    if following is not None:
        await plan_changes.request(tx, after, plan, ChangeTiming.PERIOD_END)
    return moved


async def _locked(tx: Tx, account_id: str | None, subscription_id: str) -> LockedSubscription:
    """`account_id` is the required owner; None for an operator."""
    locked = await subscriptions.locked(tx, subscription_id)
    if account_id not in (None, locked.subscription.account_id):
        raise NotFound(f"there is no subscription {subscription_id!r}")
    return locked
