"""Subscriptions in the database: reading, locking, and moving them with a timeline entry."""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.billing.subscriptions.domain.calendar import whole_second
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.model import MOVES, Due, Plan, State, Subscription
from payonce.services.billing.subscriptions.store import plans

REFERENCES: Final = {
    "billing_invoice": "select id from subscriptions.invoices where id = any($1::text[])",
    "billing_credit_payout": "select id from subscriptions.credit_payouts where id = any($1::text[])",
    "billing_credit_entry": """
        select entry_key as id from subscriptions.credit_entries where entry_key = any($1::text[])""",
}
"""Queries that return which of the given reference ids exist, by reference kind."""
APART_REFERENCES: Final = {
    "billing_transaction": """
        select transaction_id as id from subscriptions.unapplied_payments where transaction_id = any($1::text[])""",
}
"""In a database without payments: references to charges in our own postings, which payments verifies otherwise."""
NAMES: Final = """
    select id from subscriptions.subscriptions where id = $1
    union select subscription_id from subscriptions.invoices where id = $1 or number = upper($1)
    union select s.id from subscriptions.subscriptions s join subscriptions.accounts a on a.id = s.account_id
        where a.email = lower($1) or a.external_id = $1"""
"""The correlation ids of a subscription, found by its id, an invoice, or its customer's e-mail address or external
id."""
LISTED_MAX: Final = 200


@dataclass(frozen=True)
class Subscriber:
    """The account data with which a subscription begins."""

    id: str
    time_zone: str
    test_clock_id: str | None
    now: datetime


@dataclass(frozen=True)
class LockedSubscription:
    """A locked subscription with the data that decides its next step, all read behind the lock."""

    subscription: Subscription
    plan: Plan
    now: datetime
    """The customer's time, truncated to the second."""
    credit: Amount
    """The customer's credit in the plan's currency."""
    open_invoice: str | None
    """The invoice that awaits payment or the answer to a charge."""
    has_webhooks: bool = True
    """Whether any webhook endpoint exists; read here, so that renewals need no further query."""


async def find(read: Reader | Tx, subscription_id: str) -> Subscription | None:
    row = await read.fetchrow("select * from subscriptions.subscriptions where id = $1", subscription_id)
    return None if row is None else subscription_from(row)


async def of_account(read: Reader | Tx, account_id: str, limit: int = LISTED_MAX) -> list[Subscription]:
    """Newest first."""
    rows = await read.fetch(
        "select * from subscriptions.subscriptions where account_id = $1 order by created_at desc, id desc limit $2",
        account_id,
        min(limit, LISTED_MAX),
    )
    return [subscription_from(row) for row in rows]


async def running(read: Reader | Tx, account_id: str) -> Subscription | None:
    """The account's subscription that has not ended; there is at most one."""
    row = await read.fetchrow(
        """
        select * from subscriptions.subscriptions
        where account_id = $1 and state not in ('incomplete_expired', 'canceled')
        """,
        account_id,
    )
    return None if row is None else subscription_from(row)


async def events(
    read: Reader | Tx, subscription_id: str, after: int = 0, limit: int = LISTED_MAX
) -> list[dict[str, Any]]:
    """Its timeline in chronological order; `after` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select id, kind, from_state, to_state, detail, at from subscriptions.subscription_events
        where subscription_id = $1 and id > $2 order by id limit $3
        """,
        subscription_id,
        after,
        min(limit, LISTED_MAX),
    )
    return [{**dict(row), "detail": json.loads(row["detail"])} for row in rows]


async def subscriber(tx: Tx, account_id: str) -> Subscriber:
    """Locks the account against being put on a test clock until its subscription exists."""
    row = await tx.fetchrow(
        """
        select id, time_zone, test_clock_id, subscriptions.time_of(test_clock_id) as now
        from subscriptions.accounts where id = $1 for key share
        """,
        account_id,
    )
    if row is None:
        raise NotFound(f"there is no account {account_id!r}")
    return Subscriber(row["id"], row["time_zone"], row["test_clock_id"], whole_second(row["now"]))


async def locked(tx: Tx, subscription_id: str) -> LockedSubscription:
    """Locks the subscription until this transaction ends; usage can still be counted. Dependent data is read by a
    second statement: the one that waited for the lock would return older data."""
    row = await tx.fetchrow(
        "select * from subscriptions.subscriptions where id = $1 for no key update", subscription_id
    )
    if row is None:
        raise NotFound(f"there is no subscription {subscription_id!r}")
    return await read_locked(tx, subscription_from(row))


async def locked_of_account(tx: Tx, account_id: str) -> LockedSubscription | None:
    """The account's current subscription, locked."""
    row = await tx.fetchrow(
        """
        select * from subscriptions.subscriptions
        where account_id = $1 and state not in ('incomplete_expired', 'canceled') for no key update
        """,
        account_id,
    )
    return None if row is None else await read_locked(tx, subscription_from(row))


async def read_locked(tx: Tx, subscription: Subscription) -> LockedSubscription:
    """For a subscription that this transaction has locked or created."""
    row = await tx.fetchrow(
        """
        select p.*, subscriptions.time_of($2) as now, coalesce(c.minor, 0) as credit_minor, (
            select i.id from subscriptions.invoices i where i.subscription_id = $3 and i.state = 'open'
            order by i.issued_at limit 1) as open_invoice,
            exists (select from payonce.webhook_endpoints where state <> 'removed') as heard
        from subscriptions.plans p
        left join subscriptions.credits c
            on c.account_id = $4 and c.currency = p.currency and c.exponent = p.exponent
        where p.id = $1
        """,
        subscription.plan_id,
        subscription.test_clock_id,
        subscription.id,
        subscription.account_id,
    )
    plan = plans.plan_from(row)
    credit = Amount(row["credit_minor"], plan.price.asset)
    return LockedSubscription(subscription, plan, whole_second(row["now"]), credit, row["open_invoice"], row["heard"])


def with_subscription(locked: LockedSubscription, subscription: Subscription) -> LockedSubscription:
    """After a move that changes neither plan, credit nor invoices."""
    return replace(locked, subscription=subscription)


async def insert(tx: Tx, new: Subscription, at: datetime) -> Subscription | None:
    """None if the account already has a subscription that has not ended."""
    row = await tx.fetchrow(
        """
        with made as (
            insert into subscriptions.subscriptions
                (id, account_id, plan_id, state, time_zone, test_clock_id, due_at, due_for, trace_id,
                    converts_to_plan_id)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $11)
            on conflict (account_id) where state not in ('incomplete_expired', 'canceled') do nothing returning *
        ), noted as (
            insert into subscriptions.subscription_events (subscription_id, kind, to_state, detail, at, trace_id)
            select id, 'created', state, jsonb_build_object('plan_id', plan_id), $10, trace_id from made
        )
        select * from made
        """,
        new.id,
        new.account_id,
        new.plan_id,
        new.state,
        new.time_zone,
        new.test_clock_id,
        new.due_at,
        new.due_for,
        new.trace_id,
        at,
        new.converts_to_plan_id,
    )
    return None if row is None else subscription_from(row)


async def move(
    tx: Tx, before: Subscription, kind: str, at: datetime, *, detail: dict[str, Any] | None = None, **changes: Any
) -> Subscription:
    """Writes the changes with a timeline entry `kind`; a compare-and-set, so that no stale read is written. A changed
    due time is enqueued anew."""
    after = replace(before, **changes)
    if after.state is not before.state and after.state not in MOVES[before.state]:
        raise AssertionError(f"a subscription cannot go from {before.state} to {after.state}")
    row = await tx.fetchrow(
        """
        with moved as (
            update subscriptions.subscriptions
            set plan_id = $3, state = $4, anchor_at = $5, anchor_period = $6, period = $7, period_start = $8,
                period_end = $9, trial_ends_at = $10, next_plan_id = $11, cancel_at_period_end = $12, paused_at = $13,
                ended_at = $14, due_at = $15, due_for = $16, reason = $17, allowance_starts = $23,
                put_for = case when (due_at, due_for) is not distinct from ($15, $16) then put_for end,
                revision = revision + 1, updated_at = payonce.due_now()
            where id = $1 and revision = $2 returning *
        ), noted as (
            insert into subscriptions.subscription_events
                (subscription_id, kind, from_state, to_state, detail, at, trace_id)
            select id, $18, $19, state, $20::jsonb, $21, $22 from moved
        )
        select * from moved
        """,
        before.id,
        before.revision,
        after.plan_id,
        after.state,
        after.anchor_at,
        after.anchor_period,
        after.period,
        after.period_start,
        after.period_end,
        after.trial_ends_at,
        after.next_plan_id,
        after.cancel_at_period_end,
        after.paused_at,
        after.ended_at,
        after.due_at,
        after.due_for,
        after.reason,
        kind,
        before.state,
        json.dumps(detail or {}),
        at,
        tx.trace_id,
        after.allowance_starts,
    )
    if row is None:
        raise Retry(f"subscription {before.id} was changed since it was read")
    return subscription_from(row)


async def add_timeline_entry(
    tx: Tx, subscription: Subscription, kind: str, at: datetime, detail: dict[str, Any]
) -> None:
    """A timeline entry without a change of the subscription."""
    await tx.execute(
        """
        insert into subscriptions.subscription_events
            (subscription_id, kind, from_state, to_state, detail, at, trace_id)
        values ($1, $2, $3, $3, $4::jsonb, $5, $6)
        """,
        subscription.id,
        kind,
        subscription.state,
        json.dumps(detail),
        at,
        tx.trace_id,
    )


async def put_again(tx: Tx, subscription: Subscription) -> None:
    """Lets a due step that was not possible yet be enqueued again."""
    await tx.execute(
        """
        update subscriptions.subscriptions set put_for = null, revision = revision + 1, updated_at = payonce.due_now()
        where id = $1 and revision = $2
        """,
        subscription.id,
        subscription.revision,
    )


def subscription_from(row: Any) -> Subscription:
    return Subscription(
        id=row["id"],
        account_id=row["account_id"],
        plan_id=row["plan_id"],
        state=State(row["state"]),
        time_zone=row["time_zone"],
        test_clock_id=row["test_clock_id"],
        anchor_at=row["anchor_at"],
        anchor_period=row["anchor_period"],
        period=row["period"],
        period_start=row["period_start"],
        period_end=row["period_end"],
        trial_ends_at=row["trial_ends_at"],
        next_plan_id=row["next_plan_id"],
        cancel_at_period_end=row["cancel_at_period_end"],
        paused_at=row["paused_at"],
        ended_at=row["ended_at"],
        due_at=row["due_at"],
        due_for=None if row["due_for"] is None else Due(row["due_for"]),
        reason=row["reason"],
        revision=row["revision"],
        trace_id=row["trace_id"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        converts_to_plan_id=row["converts_to_plan_id"],
        allowance_starts=None if row["allowance_starts"] is None else tuple(row["allowance_starts"]),
    )
