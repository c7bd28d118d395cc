"""Plan migrations: subscriptions of one version of a plan are moved to another, each with its next renewal.

A new version is for new customers. Who has an older one keeps it until an operator orders a migration: then every
subscription that would be renewed on the older version has a scheduled change, which its customer and the merchant see
before it takes effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import asyncpg

from payonce.engine.audit import note
from payonce.engine.transaction import Reader, Tx
from payonce.engine.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.services.billing.messages import MIGRATE_PLAN
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import plan_changes, plans, store
from payonce.services.billing.subscriptions.model import ENDED, ChangeState, Plan, When
from payonce.services.billing.subscriptions.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.renewing import carry_out
from payonce.services.billing.subscriptions.store import Standing

BATCH: Final = 100
"""Subscriptions of one commit; the next ones have a message of their own."""
LISTED_MAX: Final = 200
WITHDRAWN: Final = "the operator canceled the move to this version"


class MigrationState(StrEnum):
    RUNNING = "running"
    """Changes are being scheduled."""
    DONE = "done"
    """Every change is scheduled; each is applied with the renewal of its subscription."""
    CANCELING = "canceling"
    CANCELED = "canceled"
    """What was still pending was withdrawn. What was applied stays."""


@dataclass(frozen=True)
class PlanMigration:
    id: str
    from_plan_id: str
    to_plan_id: str
    state: MigrationState
    note: str
    requested_by: str
    looked_to: str
    scheduled: int
    withdrawn: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class Preview:
    """What a migration would do at this moment."""

    older: Plan
    newer: Plan
    subscriptions: int
    by_state: Mapping[str, int]
    canceling: int
    """Not moved: they end with their period. Whoever takes the cancellation back keeps the older version."""
    first_at: datetime | None
    last_at: datetime | None
    """Between them are the renewals with which the changes take effect; None for those that have no period yet."""

    @property
    def before(self) -> Amount:
        """What one period of all of them costs."""
        return Amount(self.older.price.minor * self.subscriptions, self.older.price.asset)

    @property
    def after(self) -> Amount:
        return Amount(self.newer.price.minor * self.subscriptions, self.newer.price.asset)


async def preview(read: Reader | Tx, from_plan_id: str, to_plan_id: str | None = None) -> Preview:
    """Changes nothing. Raises Conflict where the migration would be refused."""
    older, newer = await _versions(read, from_plan_id, to_plan_id)
    rows = await read.fetch(
        f"""
        select s.state, s.cancel_at_period_end, count(*) as count, min(s.period_end) as first_at,
            max(s.period_end) as last_at
        {_RENEWED_ON} group by 1, 2
        """,
        older.id,
    )
    moved = [row for row in rows if not row["cancel_at_period_end"]]
    by_state: dict[str, int] = {row["state"]: row["count"] for row in moved}
    return Preview(
        older, newer, sum(by_state.values()), by_state,
        sum(row["count"] for row in rows if row["cancel_at_period_end"]),
        min((row["first_at"] for row in moved if row["first_at"] is not None), default=None),
        max((row["last_at"] for row in moved if row["last_at"] is not None), default=None),
    )  # fmt: skip


async def start(tx: Tx, from_plan_id: str, to_plan_id: str | None, by: str, why: str) -> PlanMigration:
    """Ordered, audited, and worked on in batches from now on."""
    older, newer = await _versions(tx, from_plan_id, to_plan_id)
    try:
        async with tx.connection.transaction():
            row = await tx.fetchrow(
                """
                insert into subscriptions.plan_migrations (id, from_plan_id, to_plan_id, note, requested_by)
                values ($1, $2, $3, $4, $5) returning *
                """,
                str(new_id()), older.id, newer.id, why, by,
            )  # fmt: skip
    except asyncpg.UniqueViolationError as error:
        raise Conflict(f"a migration from {older.id} is under way; look at GET /v1/plan-migrations") from error
    migration = migration_from(row)
    text = f"subscriptions of {older.id} at {older.price} move to {newer.id} at {newer.price} when they renew: {why}"
    await note(tx.connection, "billing.plan_migrations", migration.id, text, actor=by)
    await send_step(tx, migration.id)
    return migration


async def cancel(tx: Tx, migration_id: str, by: str, why: str) -> PlanMigration:
    """Withdraws what is still pending. Those that were renewed on the newer version stay there."""
    migration = await _locked(tx, migration_id)
    if migration.state in (MigrationState.CANCELING, MigrationState.CANCELED):
        return migration
    try:
        async with tx.connection.transaction():
            row = await tx.fetchrow(
                """
                update subscriptions.plan_migrations set state = 'canceling', updated_at = payonce.due_now()
                where id = $1 and state = $2 returning *
                """,
                migration.id, migration.state,
            )  # fmt: skip
    except asyncpg.UniqueViolationError as error:
        raise Conflict(f"another migration from {migration.from_plan_id} is under way; wait for its end") from error
    assert row is not None
    text = f"no longer from {migration.from_plan_id} to {migration.to_plan_id}: {why}"
    await note(tx.connection, "billing.plan_migrations", migration.id, text, actor=by)
    if migration.state is MigrationState.DONE:
        await send_step(tx, migration.id)
    return migration_from(row)


@handles(BILLING_CLOCK, MIGRATE_PLAN)
async def migrate_plan(work: Work) -> None:
    """Schedules or withdraws one batch of changes. A repetition goes on from where the last commit came to."""
    await carry_out(work, lambda tx, step: advance(tx, step.migration_id))


async def advance(tx: Tx, migration_id: str) -> None:
    migration = await _locked(tx, migration_id)
    match migration.state:
        case MigrationState.RUNNING:
            await _schedule_batch(tx, migration)
        case MigrationState.CANCELING:
            await _withdraw_batch(tx, migration)


async def held(tx: Tx, migration_id: str | None) -> PlanMigration | None:
    """One that is not canceled, and cannot be until this transaction ends."""
    row = await tx.fetchrow(
        "select * from subscriptions.plan_migrations where id = $1 and state in ('running', 'done') for share",
        migration_id,
    )
    return None if row is None else migration_from(row)


async def request(tx: Tx, standing: Standing, migration: PlanMigration, older: Plan, newer: Plan) -> None:
    """Of a subscription whose next plan is the newer version already. Merchants are told both prices."""
    notice = {
        "price": newer.price.to_text(), "previous_price": older.price.to_text(), "currency": newer.price.asset.code,
        "note": migration.note,
    }  # fmt: skip
    await plan_changes.request(tx, standing, newer, When.PERIOD_END, migration_id=migration.id, notice=notice)


async def find(read: Reader | Tx, migration_id: str) -> PlanMigration | None:
    row = await read.fetchrow("select * from subscriptions.plan_migrations where id = $1", migration_id)
    return None if row is None else migration_from(row)


async def listed(read: Reader | Tx, limit: int = LISTED_MAX) -> list[PlanMigration]:
    """The newest first."""
    rows = await read.fetch(
        "select * from subscriptions.plan_migrations order by created_at desc, id desc limit $1", min(limit, LISTED_MAX)
    )
    return [migration_from(row) for row in rows]


def migration_from(row: Any) -> PlanMigration:
    return PlanMigration(
        row["id"], row["from_plan_id"], row["to_plan_id"], MigrationState(row["state"]), row["note"],
        row["requested_by"], row["looked_to"], row["scheduled"], row["withdrawn"], row["created_at"],
        row["updated_at"],
    )  # fmt: skip


async def _schedule_batch(tx: Tx, migration: PlanMigration) -> None:
    older = await plans.plan(tx, migration.from_plan_id)
    newer = await plans.plan(tx, migration.to_plan_id)
    rows = await tx.fetch(
        f"select s.id {_RENEWED_ON} and not s.cancel_at_period_end and s.id > $2 order by s.id limit $3",
        older.id, migration.looked_to, BATCH,
    )  # fmt: skip
    scheduled = 0
    for row in rows:
        scheduled += await _schedule(tx, migration, row["id"], older, newer)
    done = len(rows) < BATCH
    await tx.execute(
        """
        update subscriptions.plan_migrations
        set looked_to = $2, scheduled = scheduled + $3, state = $4, updated_at = payonce.due_now() where id = $1
        """,
        migration.id, rows[-1]["id"] if rows else migration.looked_to, scheduled,
        MigrationState.DONE if done else MigrationState.RUNNING,
    )  # fmt: skip
    if not done:
        await send_step(tx, migration.id)


async def _schedule(tx: Tx, migration: PlanMigration, subscription_id: str, older: Plan, newer: Plan) -> bool:
    """Unless the subscription is no longer one of those, which is known behind its lock alone."""
    standing = await store.locked(tx, subscription_id)
    subscription = standing.subscription
    trial = standing.plan.trial_days is not None
    renewed_on = subscription.next_plan_id or (subscription.converts_to_plan_id if trial else None)
    if (
        subscription.state in ENDED or subscription.cancel_at_period_end
        or (renewed_on or subscription.plan_id) != older.id
    ):  # fmt: skip
        return False
    await plan_changes.end_scheduled(
        tx, standing, ChangeState.CANCELED, f"replaced by plan migration {migration.id} to {newer.id}"
    )
    moved = await store.move(
        tx, subscription, "next_plan_chosen", standing.now,
        detail={"next_plan_id": newer.id, "migration_id": migration.id}, next_plan_id=newer.id,
    )  # fmt: skip
    await request(tx, store.with_subscription(standing, moved), migration, older, newer)
    return True


async def _withdraw_batch(tx: Tx, migration: PlanMigration) -> None:
    rows = await tx.fetch(
        """
        select subscription_id from subscriptions.plan_changes where migration_id = $1 and state = 'pending'
        order by subscription_id limit $2
        """,
        migration.id, BATCH,
    )  # fmt: skip
    withdrawn = 0
    for row in rows:
        standing = await store.locked(tx, row["subscription_id"])
        later = (await plan_changes.pending(tx, standing.subscription.id)).get(When.PERIOD_END)
        if later is None or later.migration_id != migration.id:
            continue
        moved = await store.move(
            tx, standing.subscription, "next_plan_chosen", standing.now, detail={"next_plan_id": None},
            next_plan_id=None,
        )  # fmt: skip
        after = store.with_subscription(standing, moved)
        await plan_changes.end(tx, after, later, ChangeState.CANCELED, WITHDRAWN)
        withdrawn += 1
    done = len(rows) < BATCH
    await tx.execute(
        """
        update subscriptions.plan_migrations
        set withdrawn = withdrawn + $2, state = $3, updated_at = payonce.due_now() where id = $1
        """,
        migration.id, withdrawn, MigrationState.CANCELED if done else MigrationState.CANCELING,
    )  # fmt: skip
    if not done:
        await send_step(tx, migration.id)


async def send_step(tx: Tx, migration_id: str) -> None:
    """The next batch."""
    await tx.send(BILLING_CLOCK, {"migration_id": migration_id}, action=MIGRATE_PLAN, correlation_id=migration_id)


async def _locked(tx: Tx, migration_id: str) -> PlanMigration:
    row = await tx.fetchrow("select * from subscriptions.plan_migrations where id = $1 for update", migration_id)
    if row is None:
        raise NotFound(f"there is no plan migration {migration_id!r}")
    return migration_from(row)


async def _versions(read: Reader | Tx, from_plan_id: str, to_plan_id: str | None) -> tuple[Plan, Plan]:
    """The older one by its id, since its code names the version that is for sale."""
    older = await plans.plan(read, from_plan_id)
    newer = await plans.plan_for_sale(read, to_plan_id or older.code)
    if older.trial_days is not None:
        raise Conflict(f"plan {older.id} is a trial, which is not renewed; migrate the plan that it leads to")
    if older.id == newer.id:
        raise Conflict(f"{older.id} is the version that is for sale; name an older one by its id")
    if older.code != newer.code:
        raise Conflict(f"{newer.id} is no version of {older.code}; customers change to another plan themselves")
    if older.price.asset != newer.price.asset:
        raise Conflict(f"{newer.id} is paid in {newer.price.asset}, and {older.id} in {older.price.asset}")
    return older, newer


_RENEWED_ON: Final = """
    from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
    where s.state not in ('incomplete_expired', 'canceled')
      and coalesce(s.next_plan_id, case when p.trial_days is not null then s.converts_to_plan_id end, s.plan_id) = $1"""
"""Subscriptions whose next period would be one of this version: chosen for it, promised by a trial, or the same."""
