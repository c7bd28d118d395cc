"""Plan migrations in the database, and the move of one subscription that a migration orders."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.services.billing.subscriptions.domain.calendar import Anchor, period_at
from payonce.services.billing.subscriptions.model import ChangeTiming, Plan, Subscription
from payonce.services.billing.subscriptions.store import plan_changes, plans, subscriptions
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription

LISTED_MAX: Final = 200
VERSIONS_MAX: Final = 1_000
"""Consecutive migrations of one plan that are followed."""


class MigrationState(StrEnum):
    RUNNING = "running"
    """Changes are being scheduled."""
    DONE = "done"
    """Every change is scheduled, and is applied at its subscription's renewal."""
    CANCELING = "canceling"
    CANCELED = "canceled"
    """Pending changes were withdrawn; applied ones stay."""


@dataclass(frozen=True)
class PlanMigration:
    id: str
    from_plan_id: str
    to_plan_id: str
    state: MigrationState
    note: str
    requested_by: str
    notice_days: int
    looked_to: str
    scheduled: int
    withdrawn: int
    created_at: datetime
    updated_at: datetime


async def find(read: Reader | Tx, migration_id: str) -> PlanMigration | None:
    row = await read.fetchrow("select * from subscriptions.plan_migrations where id = $1", migration_id)
    return None if row is None else migration_from(row)


async def listed(read: Reader | Tx, limit: int = LISTED_MAX) -> list[PlanMigration]:
    """Newest first."""
    rows = await read.fetch(
        "select * from subscriptions.plan_migrations order by created_at desc, id desc limit $1", min(limit, LISTED_MAX)
    )
    return [migration_from(row) for row in rows]


def kept_plan_id(locked: LockedSubscription) -> str | None:
    """The plan of the next period without a scheduled change."""
    subscription = locked.subscription
    return subscription.plan_id if locked.plan.trial_days is None else subscription.converts_to_plan_id


async def ordered(read: Reader | Tx, subscription_id: str, plan_id: str | None) -> PlanMigration | None:
    """The active migration that moves this subscription away from a version: the one that scheduled a change of it
    before, or else the newest migration of the version, followed through the versions that it leads to."""
    if plan_id is None:
        return None
    own = await plan_changes.ordered(read, subscription_id, plan_id)
    if own is not None and own.migration_id is not None:
        return await find(read, own.migration_id)
    found: PlanMigration | None = None
    for _ in range(VERSIONS_MAX):
        row = await read.fetchrow(
            """
            select * from subscriptions.plan_migrations where from_plan_id = $1 and state in ('running', 'done')
            order by created_at desc, id desc limit 1
            """,
            plan_id if found is None else found.to_plan_id,
        )
        if row is None:
            break
        found = migration_from(row)
    return found


async def follow(tx: Tx, locked: LockedSubscription) -> Subscription:
    """Schedules the move ordered by a migration unless another change is scheduled. For subscriptions that return to an
    older version after the migration passed them, from another plan or a cancellation."""
    subscription = locked.subscription
    kept = kept_plan_id(locked)
    if subscription.next_plan_id is not None or kept is None:
        return subscription
    found = await ordered(tx, subscription.id, kept)
    migration = None if found is None else await _held(tx, found.id)
    if migration is None:
        return subscription
    if await plan_changes.newest_of(tx, subscription.id, migration.id) is None:
        await tx.execute(
            """
            update subscriptions.plan_migrations set scheduled = scheduled + 1, updated_at = payonce.due_now()
            where id = $1
            """,
            migration.id,
        )
    return await schedule(tx, locked, migration, await plans.plan(tx, kept))


async def schedule(tx: Tx, locked: LockedSubscription, migration: PlanMigration, older: Plan) -> Subscription:
    """For a subscription that would renew on the older version and has no other scheduled change."""
    newer = await plans.plan(tx, migration.to_plan_id)
    not_before = await effective_at(tx, locked, migration, older)
    detail = {"next_plan_id": newer.id, "migration_id": migration.id}
    moved = await subscriptions.move(
        tx, locked.subscription, "next_plan_chosen", locked.now, detail=detail, next_plan_id=newer.id
    )
    notice = {
        "price": newer.price.to_text(),
        "previous_price": older.price.to_text(),
        "currency": newer.price.asset.code,
        "note": migration.note,
        "terms": plans.terms_of(newer, older),
        "previous_terms": plans.terms_of(older, newer),
    }
    await plan_changes.request(
        tx,
        subscriptions.with_subscription(locked, moved),
        newer,
        ChangeTiming.PERIOD_END,
        migration_id=migration.id,
        notice=notice,
        not_before=not_before,
    )
    return moved


async def effective_at(tx: Tx, locked: LockedSubscription, migration: PlanMigration, older: Plan) -> datetime:
    """The first period end that leaves the full notice. A subscription that this migration announced before is not
    moved later than announced."""
    subscription = locked.subscription
    earlier = await plan_changes.newest_of(tx, subscription.id, migration.id)
    if earlier is not None:
        return _first_end(subscription, older, earlier.not_before or earlier.requested_at)
    return _first_end(subscription, older, locked.now + timedelta(days=migration.notice_days))


def _first_end(subscription: Subscription, older: Plan, at: datetime) -> datetime:
    """The first period end at or after a time, if the subscription renews on the older version until then."""
    if subscription.period_end is None or subscription.anchor_at is None or subscription.period_end >= at:
        return subscription.period_end or at
    # After a trial, periods are counted from a new anchor.
    begun = subscription.anchor_at if older.id == subscription.plan_id else subscription.period_end
    found = period_at(Anchor.at(begun, subscription.time_zone, plans.interval_of(older)), at)
    return found.start if found.start == at else found.end


async def _held(tx: Tx, migration_id: str) -> PlanMigration | None:
    """Locks an active migration against cancellation until this transaction ends."""
    row = await tx.fetchrow(
        "select * from subscriptions.plan_migrations where id = $1 and state in ('running', 'done') for no key update",
        migration_id,
    )
    return None if row is None else migration_from(row)


def migration_from(row: Any) -> PlanMigration:
    return PlanMigration(
        row["id"],
        row["from_plan_id"],
        row["to_plan_id"],
        MigrationState(row["state"]),
        row["note"],
        row["requested_by"],
        row["notice_days"],
        row["looked_to"],
        row["scheduled"],
        row["withdrawn"],
        row["created_at"],
        row["updated_at"],
    )
