"""Starts subscriptions: with a first payment, or with a trial whose price is refunded."""

from datetime import timedelta

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.ids import new_id
from payonce.services.billing.messages import FirstInvoice
from payonce.services.billing.policies import PAYMENT_INITIATION, TRIAL_PAYMENT
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import merchant_events
from payonce.services.billing.subscriptions.handlers.renewals import bill_first, carry_out
from payonce.services.billing.subscriptions.model import (
    INCOMPLETE_EXPIRES_S,
    Due,
    Plan,
    State,
    Subscription,
)
from payonce.services.billing.subscriptions.store import plans, subscriptions
from payonce.services.billing.wire import Action


async def start(tx: Tx, account_id: str, plan_id: str, subscription_id: str | None = None) -> Subscription:
    """Creates an incomplete subscription, which begins with its first payment and expires after 23 hours without
    one."""
    plan = await plans.plan_for_sale(tx, plan_id)
    subscription = await _insert(tx, account_id, plan, subscription_id)
    await tx.send(
        PAYMENT_INITIATION,
        {"subscription_id": subscription.id},
        action=Action.INITIAL,
        key=f"initial:{subscription.id}",
        correlation_id=subscription.id,
    )
    return subscription


async def start_trial(
    tx: Tx, account_id: str, plan_id: str, subscription_id: str | None = None, *, again: bool = False
) -> Subscription:
    """Starts a trial: its price is charged to verify the card, and then refunded. A customer gets one trial, since
    otherwise canceling in time would always be free; `again` allows another one. The trial converts to the version that
    is for sale now."""
    plan = await plans.plan_for_sale(tx, plan_id, trial=True)
    subscription = await _insert(tx, account_id, plan, subscription_id, await _following(tx, plan))
    # Checked after the insert, which lets only one of two concurrent requests through.
    if not again and await _had_a_trial(tx, account_id):
        raise Conflict("the account has already had a trial; subscribe to a plan, or ask an operator for another trial")
    await tx.send(
        TRIAL_PAYMENT,
        {"subscription_id": subscription.id},
        action=Action.TRIAL,
        key=f"trial:{subscription.id}",
        correlation_id=subscription.id,
    )
    return subscription


@handles(TRIAL_PAYMENT)
async def process_trial_payment(work: Work) -> None:
    """Issues the trial's invoice and requests its charge, once."""

    async def step(tx: Tx, asked: FirstInvoice) -> None:
        await bill_first(tx, await subscriptions.locked(tx, asked.subscription_id), Action.TRIAL)

    await carry_out(work, step)


async def _had_a_trial(tx: Tx, account_id: str) -> bool:
    """Whether a trial has begun. After a declined card the trial is still available."""
    found: bool = await tx.fetchval(
        """
        select exists (
            select from subscriptions.invoices where account_id = $1 and action = 'trial' and state = 'paid')
        """,
        account_id,
    )
    return found


async def _following(tx: Tx, trial: Plan) -> Plan:
    assert trial.renews_to is not None
    found = await plans.find(tx, trial.renews_to)
    if found is None or found.retired_at is not None or found.trial_days is not None:
        raise Conflict(f"trial {trial.id} converts to {trial.renews_to}, which is not for sale; choose another plan")
    return found


async def _insert(
    tx: Tx, account_id: str, plan: Plan, subscription_id: str | None, following: Plan | None = None
) -> Subscription:
    account = await subscriptions.subscriber(tx, account_id)
    new = Subscription(
        id=subscription_id or str(new_id()),
        account_id=account.id,
        plan_id=plan.id,
        state=State.INCOMPLETE,
        time_zone=account.time_zone,
        test_clock_id=account.test_clock_id,
        anchor_at=None,
        anchor_period=0,
        period=0,
        period_start=None,
        period_end=None,
        trial_ends_at=None,
        converts_to_plan_id=None if following is None else following.id,
        next_plan_id=None,
        cancel_at_period_end=False,
        paused_at=None,
        ended_at=None,
        due_at=account.now + timedelta(seconds=INCOMPLETE_EXPIRES_S),
        due_for=Due.EXPIRE,
        reason=None,
        revision=0,
        trace_id=tx.trace_id,
        created_at=account.now,
        updated_at=account.now,
    )
    made = await subscriptions.insert(tx, new, account.now)
    if made is None:
        raise Conflict("the account already has a subscription: change its plan, or cancel it first")
    await merchant_events.announce_subscription(tx, "created", made)
    return made
