"""Plan changes in the database: an accepted change is pending until it is applied, fails or is canceled.

Each end is recorded in the subscription's events and announced to merchants' webhooks, in the same commit.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.services.billing.subscriptions.handlers import merchant_events
from payonce.services.billing.subscriptions.model import ChangeState, ChangeTiming, Plan, PlanChangeRecord, Subscription
from payonce.services.billing.subscriptions.store import subscriptions
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription

LISTED_MAX: Final = 200
REASON_MAX_LENGTH: Final = 1_000

_REQUESTED: Final[Mapping[ChangeTiming, merchant_events.SubscriptionEvent]] = {
    ChangeTiming.NOW: "plan_change_requested",
    ChangeTiming.PERIOD_END: "plan_change_scheduled",
}
_ENDED: Final[Mapping[ChangeState, merchant_events.SubscriptionEvent]] = {
    ChangeState.APPLIED: "plan_changed",
    ChangeState.FAILED: "plan_change_failed",
    ChangeState.CANCELED: "plan_change_canceled",
}


async def request(
    tx: Tx,
    locked: LockedSubscription,
    plan: Plan,
    timing: ChangeTiming,
    *,
    change_id: str | None = None,
    migration_id: str | None = None,
    notice: dict[str, Any] | None = None,
    not_before: datetime | None = None,
) -> PlanChangeRecord:
    """Accepts a change of a locked subscription. At most one change of each timing may be pending. `notice` is added to
    the merchants' event. A scheduled change is applied at the first period end at or after `not_before`."""
    subscription = locked.subscription
    row = await tx.fetchrow(
        """
        insert into subscriptions.plan_changes
            (id, subscription_id, from_plan_id, to_plan_id, at_period_end, migration_id, requested_at, trace_id,
                not_before)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning *
        """,
        change_id or str(new_id()),
        subscription.id,
        subscription.plan_id,
        plan.id,
        timing is ChangeTiming.PERIOD_END,
        migration_id,
        locked.now,
        tx.trace_id,
        not_before,
    )
    change = change_from(row)
    await _announce(tx, locked, change, _REQUESTED[timing], notice)
    return change


async def refuse(tx: Tx, locked: LockedSubscription, plan: Plan, change_id: str, reason: str) -> PlanChangeRecord:
    """Records an immediate change, requested by a raw message, as failed."""
    subscription = locked.subscription
    row = await tx.fetchrow(
        """
        insert into subscriptions.plan_changes
            (id, subscription_id, from_plan_id, to_plan_id, at_period_end, state, reason, requested_at, ended_at,
                trace_id)
        values ($1, $2, $3, $4, false, 'failed', $5, $6, $6, $7) returning *
        """,
        change_id,
        subscription.id,
        subscription.plan_id,
        plan.id,
        reason[:REASON_MAX_LENGTH],
        locked.now,
        tx.trace_id,
    )
    refused = change_from(row)
    await _announce(tx, locked, refused, _ENDED[ChangeState.FAILED])
    return refused


async def end(
    tx: Tx,
    locked: LockedSubscription,
    change: PlanChangeRecord,
    state: ChangeState,
    reason: str | None = None,
    *,
    timeline: bool = True,
) -> PlanChangeRecord:
    """Ends a pending change; a compare-and-set. `timeline` is False if the subscription's own move records and
    announces it."""
    row = await tx.fetchrow(
        """
        update subscriptions.plan_changes
        set state = $2, reason = $3, ended_at = $4, updated_at = payonce.due_now()
        where id = $1 and state = 'pending' returning *
        """,
        change.id,
        state,
        None if reason is None else reason[:REASON_MAX_LENGTH],
        locked.now,
    )
    if row is None:
        raise AssertionError(f"change {change.id} has already ended, although its subscription is locked")
    ended = change_from(row)
    if timeline:
        await _announce(tx, locked, ended, _ENDED[state])
    return ended


async def pending(tx: Reader | Tx, subscription_id: str) -> dict[ChangeTiming, PlanChangeRecord]:
    rows = await tx.fetch(
        "select * from subscriptions.plan_changes where subscription_id = $1 and state = 'pending'", subscription_id
    )
    return {change.timing: change for change in map(change_from, rows)}


async def end_scheduled(
    tx: Tx, locked: LockedSubscription, state: ChangeState, reason: str | None = None, *, timeline: bool = True
) -> PlanChangeRecord | None:
    """Ends the change scheduled for a period end, if one is pending."""
    found = (await pending(tx, locked.subscription.id)).get(ChangeTiming.PERIOD_END)
    return None if found is None else await end(tx, locked, found, state, reason, timeline=timeline)


async def ordered(read: Reader | Tx, subscription_id: str, plan_id: str | None) -> PlanChangeRecord | None:
    """The active migration's change that moves a subscription away from this version or a later one. It is pending, or
    was replaced by the customer's choice."""
    row = await read.fetchrow(
        """
        select c.* from subscriptions.plan_changes c
        join subscriptions.plan_migrations m on m.id = c.migration_id
        join subscriptions.plans older on older.id = m.from_plan_id
        join subscriptions.plans kept on kept.code = older.code and kept.version <= older.version
        where c.subscription_id = $1 and kept.id = $2 and c.state in ('pending', 'canceled')
          and m.state in ('running', 'done')
        order by c.created_at desc, c.id desc limit 1
        """,
        subscription_id,
        plan_id,
    )
    return None if row is None else change_from(row)


async def newest_of(read: Reader | Tx, subscription_id: str, migration_id: str) -> PlanChangeRecord | None:
    """The last change of a subscription that this migration scheduled."""
    row = await read.fetchrow(
        """
        select * from subscriptions.plan_changes where subscription_id = $1 and migration_id = $2
        order by created_at desc, id desc limit 1
        """,
        subscription_id,
        migration_id,
    )
    return None if row is None else change_from(row)


async def fail_all(tx: Tx, locked: LockedSubscription, reason: str) -> None:
    """Fails all pending changes of an ended subscription."""
    for change in (await pending(tx, locked.subscription.id)).values():
        await end(tx, locked, change, ChangeState.FAILED, reason)


async def find(read: Reader | Tx, change_id: str) -> PlanChangeRecord | None:
    row = await read.fetchrow("select * from subscriptions.plan_changes where id = $1", change_id)
    return None if row is None else change_from(row)


async def of_subscription(read: Reader | Tx, subscription_id: str, limit: int = LISTED_MAX) -> list[PlanChangeRecord]:
    """Newest first."""
    rows = await read.fetch(
        """
        select * from subscriptions.plan_changes where subscription_id = $1
        order by created_at desc, id desc limit $2
        """,
        subscription_id,
        min(limit, LISTED_MAX),
    )
    return [change_from(row) for row in rows]


async def shown(read: Reader | Tx, subscription_ids: Sequence[str]) -> dict[str, PlanChangeRecord]:
    """By subscription: the pending change, an immediate one first, or else the last one that ended."""
    rows = await read.fetch(
        """
        select c.* from unnest($1::text[]) s (id) cross join lateral (
            select * from subscriptions.plan_changes p where p.subscription_id = s.id
            order by p.state = 'pending' desc, not p.at_period_end and p.state = 'pending' desc, p.created_at desc,
                p.id desc limit 1) c
        """,
        list(subscription_ids),
    )
    return {row["subscription_id"]: change_from(row) for row in rows}


def change_from(row: Any) -> PlanChangeRecord:
    return PlanChangeRecord(
        id=row["id"],
        subscription_id=row["subscription_id"],
        from_plan_id=row["from_plan_id"],
        to_plan_id=row["to_plan_id"],
        timing=ChangeTiming.PERIOD_END if row["at_period_end"] else ChangeTiming.NOW,
        state=ChangeState(row["state"]),
        reason=row["reason"],
        migration_id=row["migration_id"],
        requested_at=row["requested_at"],
        ended_at=row["ended_at"],
        not_before=row["not_before"],
    )


async def _announce(
    tx: Tx,
    locked: LockedSubscription,
    change: PlanChangeRecord,
    kind: merchant_events.SubscriptionEvent,
    notice: dict[str, Any] | None = None,
) -> None:
    subscription: Subscription = locked.subscription
    described = merchant_events.described_change(change, subscription)
    await subscriptions.add_timeline_entry(tx, subscription, kind, locked.now, {**described, **(notice or {})})
    await merchant_events.announce_subscription(
        tx, kind, subscription, has_webhooks=locked.has_webhooks, change={**described, **(notice or {})}
    )
