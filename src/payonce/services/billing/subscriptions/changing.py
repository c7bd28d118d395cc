"""What a customer may change: the plan, now or at the end of the period; a cancellation, a pause and its end."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from payonce.engine.transaction import Tx
from payonce.engine.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.services.billing.policies import PLAN_CHANGE
from payonce.services.billing.subscriptions import (
    announcing,
    crediting,
    ending,
    invoice_store,
    plans,
    settling,
    store,
)
from payonce.services.billing.subscriptions.calendar import Anchor, whole_second
from payonce.services.billing.subscriptions.falling_due import put_now
from payonce.services.billing.subscriptions.issuing import Draft, new_line, on_day
from payonce.services.billing.subscriptions.model import (
    ENDED,
    Due,
    Invoice,
    InvoiceLine,
    LineKind,
    Plan,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.proration import Billed, Change, change_plan
from payonce.services.billing.subscriptions.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.renewing import carry_out
from payonce.services.billing.subscriptions.store import Standing
from payonce.services.billing.subscriptions.waking import wake
from payonce.services.billing.wire import Action

RUNNING = frozenset({State.ACTIVE, State.TRIALING})


class When(StrEnum):
    NOW = "now"
    PERIOD_END = "period_end"


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:sub:plan_change`."""

    subscription_id: str
    change_id: str
    """Becomes the id of its invoice: a repetition finds that."""
    plan_id: str
    at: datetime
    """When it was asked for, in the customer's time."""


async def ask_for_plan(
    tx: Tx, account_id: str | None, subscription_id: str, new_plan_id: str, when: When | None = None
) -> Subscription:
    """A dearer plan now, unless it is said otherwise, and a cheaper one at the end of the period. Now is: as soon as
    the difference is paid."""
    standing = await _locked(tx, account_id, subscription_id)
    subscription = standing.subscription
    plan = await plans.plan_for_sale(tx, new_plan_id)
    if subscription.state not in RUNNING:
        raise Conflict(f"the subscription is {subscription.state}: its plan changes only while it is active or a trial")
    if plan.price.asset != standing.plan.price.asset:
        raise Conflict(f"plan {plan.id} is paid in {plan.price.asset}, and the subscription in {standing.credit.asset}")
    dearer = plans.is_dearer(plan, standing.plan)
    if (when or (When.NOW if dearer else When.PERIOD_END)) is When.PERIOD_END:
        return await _change_later(tx, standing, plan)
    if plan.id == subscription.plan_id:
        raise Conflict(f"the subscription has the plan {plan.id} already")
    if standing.open_invoice is not None:
        raise Conflict("an invoice of the subscription is being charged; change the plan when that is answered")
    if subscription.due_at is not None and subscription.due_at <= standing.now:
        # Reckoned from here the change would jump over periods that are still to be invoiced.
        raise Conflict("a period of the subscription is over and the next one about to begin; ask again in a minute")
    change_id = str(new_id())
    await tx.send(
        PLAN_CHANGE, {"subscription_id": subscription.id, "change_id": change_id, "plan_id": plan.id,
                      "at": standing.now.isoformat()},
        action=Action.UPGRADE if dearer else Action.DOWNGRADE, key=f"change:{change_id}",
        correlation_id=subscription.id,
    )  # fmt: skip
    return subscription


@handles(PLAN_CHANGE)
async def process_plan_change(work: Work) -> None:
    """Issues the difference and asks for its charge; with nothing to pay the plan changes at once."""
    await carry_out(work, PlanChange, change_now)


async def change_now(tx: Tx, asked: PlanChange) -> None:
    """Or says in its story that it is no longer possible."""
    standing = await store.locked(tx, asked.subscription_id)
    subscription = standing.subscription
    if await invoice_store.find(tx, asked.change_id) is not None:
        return
    plan = await plans.plan(tx, asked.plan_id)
    if subscription.state not in RUNNING or standing.open_invoice is not None or plan.id == subscription.plan_id:
        await _drop(tx, standing, asked)
        return
    await settling.bill(tx, standing, await _draft(tx, standing, plan, asked))


async def cancel(tx: Tx, account_id: str | None, subscription_id: str, when: When, reason: str = "") -> Subscription:
    """Now: what is open is taken back, what is paid is not given back. At the end of the period: until then it runs."""
    standing = await _locked(tx, account_id, subscription_id)
    subscription, now = standing.subscription, standing.now
    reason = reason or "as its customer wished"
    if subscription.state in ENDED:
        raise Conflict(f"the subscription is {subscription.state} already")
    if when is When.PERIOD_END and subscription.state in RUNNING | {State.PAST_DUE}:
        if subscription.cancel_at_period_end:
            return subscription
        return await store.move(
            tx, subscription, "cancel_asked", now, cancel_at_period_end=True, next_plan_id=None, reason=reason
        )
    await ending.close_books(tx, subscription, now, reason)
    moved = await store.move(
        tx, subscription, "canceled", now, detail={"reason": reason}, state=State.CANCELED, due_at=None, due_for=None,
        paused_at=None, ended_at=now, reason=reason,
    )  # fmt: skip
    await announcing.tell(tx, "canceled", moved)
    await wake(tx, moved.test_clock_id)
    return moved


async def pause(tx: Tx, account_id: str | None, subscription_id: str) -> Subscription:
    """No service and no renewals until it is resumed."""
    standing = await _locked(tx, account_id, subscription_id)
    subscription, now = standing.subscription, standing.now
    if subscription.state not in RUNNING:
        raise Conflict(f"the subscription is {subscription.state}: only an active one or a trial can be paused")
    if subscription.cancel_at_period_end:
        raise Conflict("the subscription ends with its period; take that back first with resume")
    if standing.open_invoice is not None:
        raise Conflict("an invoice of the subscription is being charged; pause it when that is answered")
    moved = await store.move(
        tx, subscription, "paused", now, state=State.PAUSED, paused_at=now, due_at=None, due_for=None
    )
    await announcing.tell(tx, "paused", moved)
    await wake(tx, moved.test_clock_id)
    return moved


async def resume(tx: Tx, account_id: str | None, subscription_id: str) -> Subscription:
    """Ends a pause, or takes a cancellation at the end of the period back. When the period is over, a new one begins
    now and is charged at once."""
    standing = await _locked(tx, account_id, subscription_id)
    subscription, now = standing.subscription, standing.now
    if subscription.cancel_at_period_end and subscription.state in RUNNING | {State.PAST_DUE}:
        return await store.move(tx, subscription, "cancel_taken_back", now, cancel_at_period_end=False, reason=None)
    if subscription.state is not State.PAUSED:
        raise Conflict(f"the subscription is {subscription.state}: there is no pause to end")
    assert subscription.period_end is not None
    trial = standing.plan.trial_days is not None
    state, due_for = (State.TRIALING, Due.TRIAL_END) if trial else (State.ACTIVE, Due.RENEW)
    over = subscription.period_end <= now
    anew: dict[str, Any] = {"anchor_at": now, "anchor_period": subscription.period + 1} if over else {}
    moved = await store.move(
        tx, subscription, "resumed", now, state=state, paused_at=None, due_for=due_for,
        due_at=now if over else subscription.period_end, **anew,
    )  # fmt: skip
    await announcing.tell(tx, "resumed", moved)
    if over:
        await put_now(tx, moved.id)
    await wake(tx, moved.test_clock_id)
    return moved


async def _change_later(tx: Tx, standing: Standing, plan: Plan) -> Subscription:
    """Or no longer, when it is the plan that it has."""
    subscription = standing.subscription
    following = None if plan.id == subscription.plan_id else plan.id
    if following == subscription.next_plan_id:
        return subscription
    return await store.move(
        tx, subscription, "plan_change_asked", standing.now, detail={"next_plan_id": following}, next_plan_id=following
    )


async def _drop(tx: Tx, standing: Standing, asked: PlanChange) -> None:
    """What was asked for is no longer possible: its story says so, once."""
    subscription = standing.subscription
    why = f"it was {subscription.state}" if standing.open_invoice is None else "an invoice was being charged"
    known = await tx.fetchval(
        """
        select true from subscriptions.subscription_events
        where subscription_id = $1 and kind = 'plan_change_dropped' and detail ->> 'change_id' = $2 limit 1
        """,
        subscription.id, asked.change_id,
    )  # fmt: skip
    if not known:
        detail = {"plan_id": asked.plan_id, "change_id": asked.change_id, "why": why}
        await store.tell_story(tx, subscription, "plan_change_dropped", standing.now, detail)
    await wake(tx, subscription.test_clock_id)


async def _draft(tx: Tx, standing: Standing, plan: Plan, asked: PlanChange) -> Draft:
    """The lines in force at their own price against the rest of the new plan, at the moment of asking."""
    subscription = standing.subscription
    assert subscription.anchor_at is not None and subscription.period_start is not None
    # A renewal may have come in between: then the change is one of the period that it began.
    at = max(whole_second(asked.at), subscription.period_start)
    in_force = await invoice_store.in_force(tx, subscription.id, at)
    billed = _billed(in_force, await crediting.going_back(tx, in_force))
    anchor = Anchor(subscription.anchor_at, subscription.time_zone, plans.interval_of(standing.plan))
    change = change_plan(billed, plan.price, plans.interval_of(plan), anchor, at)
    action = Action.UPGRADE if plans.is_dearer(plan, standing.plan) else Action.DOWNGRADE
    return Draft(
        action, plan.id, None, change.period.start, change.period.end,
        _lines(change, standing, plan), id=asked.change_id,
    )  # fmt: skip


def _billed(in_force: Sequence[tuple[Invoice, InvoiceLine]], going_back: Mapping[str, int]) -> list[Billed]:
    """What was given back of an invoice in money, or is on its way back, is not given back in credit."""
    billed = []
    refunded_minor = {
        # A trial's price goes back, whatever payments has on record of that by now.
        invoice.id: invoice.due.minor if invoice.refunding else going_back.get(invoice.id, invoice.refunded.minor)
        for invoice, _ in in_force
    }
    for invoice, line in in_force:
        if line.amount.minor > 0:
            back = min(refunded_minor[invoice.id], line.amount.minor)
            refunded_minor[invoice.id] -= back
            billed.append(Billed(line.amount, line.service_start, line.service_end, back))
    return billed


def _lines(change: Change, standing: Standing, plan: Plan) -> list[InvoiceLine]:
    zone, old = standing.subscription.time_zone, standing.plan
    lines = [
        new_line(number, LineKind.UNUSED, f"Unused time of {old.name} from {on_day(back.start, zone)}", old,
                 back.amount, back.start, back.end)
        for number, back in enumerate(change.credits, start=1)
    ]  # fmt: skip
    if change.debit is not None:
        debit = change.debit
        text = f"{plan.name}, {on_day(debit.start, zone)} to {on_day(debit.end, zone)}"
        lines.append(new_line(len(lines) + 1, LineKind.REMAINING, text, plan, debit.amount, debit.start, debit.end))
    if not lines:
        zero = Amount.zero(plan.price.asset)
        lines.append(new_line(1, LineKind.REMAINING, plan.name, plan, zero, change.period.start, change.period.end))
    return lines


async def _locked(tx: Tx, account_id: str | None, subscription_id: str) -> Standing:
    """`account_id` is whose it must be; None for an operator."""
    standing = await store.locked(tx, subscription_id)
    if account_id not in (None, standing.subscription.account_id):
        raise NotFound(f"there is no subscription {subscription_id!r}")
    return standing
