"""Plan migrations: move the subscriptions of one plan version to another, each at a renewal after its notice.

A new version is for new customers; existing subscriptions keep theirs until an operator starts a migration. It
schedules a change for every subscription that would renew on the older version, which the customer and the merchant can
see before it takes effect. A period that ends before the notice is over is followed by another one on the older
version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.billing.messages import MIGRATE_PLAN
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions.domain.calendar import Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import plan_moves
from payonce.services.billing.subscriptions.handlers.plan_moves import MigrationState, PlanMigration, migration_from
from payonce.services.billing.subscriptions.handlers.renewals import carry_out
from payonce.services.billing.subscriptions.model import ENDED, ChangeState, ChangeTiming, Plan
from payonce.services.billing.subscriptions.store import plan_changes, plans
from payonce.services.billing.subscriptions.store import subscriptions as store

BATCH: Final = 100
"""Subscriptions per commit; the next batch has a message of its own."""
NOTICE_DAYS: Final = 14
"""Between the announcement and the first renewal at the new price, unless the order says otherwise."""
NOTICE_DAYS_MAX: Final = 366
WITHDRAWN: Final = "the operator canceled the migration to this version"


@dataclass(frozen=True)
class Preview:
    """The current effect of a migration."""

    older: Plan
    newer: Plan
    notice_days: int
    subscriptions: int
    by_state: Mapping[str, int]
    canceling: int
    """Canceled at the end of their period, and moved if the cancellation is withdrawn."""
    choosing: int
    """With a scheduled change to another plan, and moved if that is withdrawn."""
    first_at: datetime | None
    last_at: datetime | None
    """The range of the renewals at which the changes take effect; None without any period."""

    @property
    def before(self) -> Amount:
        """The current total for one period of all of them."""
        return Amount(self.older.price.minor * self.subscriptions, self.older.price.asset)

    @property
    def after(self) -> Amount:
        return Amount(self.newer.price.minor * self.subscriptions, self.newer.price.asset)


async def preview(
    read: Reader | Tx, from_plan_id: str, to_plan_id: str | None = None, notice_days: int = NOTICE_DAYS
) -> Preview:
    """Computes the effect without changes. Raises Conflict if the migration would be refused."""
    older, newer = await _versions(read, from_plan_id, to_plan_id)
    _check_notice(notice_days)
    interval = plans.interval_of(older)
    days, months = interval.count * _DAYS.get(interval.unit, 0), interval.count * _MONTHS.get(interval.unit, 0)
    steps = notice_days // (days or months * _MONTH_DAYS_MIN) + 1
    rows = await read.fetch(_PREVIEW, older.id, notice_days, months, days, steps, older.code)
    moved = [row for row in rows if not row["ends"] and not row["elsewhere"]]
    by_state: dict[str, int] = {row["state"]: row["count"] for row in moved}
    return Preview(
        older,
        newer,
        notice_days,
        sum(by_state.values()),
        by_state,
        sum(row["count"] for row in rows if row["ends"]),
        sum(row["count"] for row in rows if row["elsewhere"] and not row["ends"]),
        min((row["first_at"] for row in moved if row["first_at"] is not None), default=None),
        max((row["last_at"] for row in moved if row["last_at"] is not None), default=None),
    )


async def start(
    tx: Tx, from_plan_id: str, to_plan_id: str | None, by: str, why: str, notice_days: int = NOTICE_DAYS
) -> PlanMigration:
    """Starts a migration, which runs in batches and is audited. Each subscription moves at its first period end at or
    after its notice."""
    older, newer = await _versions(tx, from_plan_id, to_plan_id)
    _check_notice(notice_days)
    try:
        async with tx.savepoint():
            row = await tx.fetchrow(
                """
                insert into subscriptions.plan_migrations
                    (id, from_plan_id, to_plan_id, note, requested_by, notice_days)
                values ($1, $2, $3, $4, $5, $6) returning *
                """,
                str(new_id()),
                older.id,
                newer.id,
                why,
                by,
                notice_days,
            )
    except asyncpg.UniqueViolationError as error:
        raise Conflict(f"a migration from {older.id} is in progress; see GET /v1/plan-migrations") from error
    migration = migration_from(row)
    text = (
        f"subscriptions of {older.id} at {older.price} move to {newer.id} at {newer.price} at their renewal, with "
        f"{notice_days} days' notice: {why}"
    )
    await tx.audit("billing.plan_migrations", migration.id, text, actor=by)
    await send_step(tx, migration.id)
    return migration


async def cancel(tx: Tx, migration_id: str, by: str, why: str) -> PlanMigration:
    """Withdraws all pending changes. Subscriptions that already renewed on the newer version keep it."""
    migration = await _locked(tx, migration_id)
    if migration.state in (MigrationState.CANCELING, MigrationState.CANCELED):
        return migration
    try:
        async with tx.savepoint():
            row = await tx.fetchrow(
                """
                update subscriptions.plan_migrations set state = 'canceling', updated_at = payonce.due_now()
                where id = $1 and state = $2 returning *
                """,
                migration.id,
                migration.state,
            )
    except asyncpg.UniqueViolationError as error:
        raise Conflict(f"another migration from {migration.from_plan_id} is in progress; wait for its end") from error
    assert row is not None
    text = f"canceled the migration from {migration.from_plan_id} to {migration.to_plan_id}: {why}"
    await tx.audit("billing.plan_migrations", migration.id, text, actor=by)
    if migration.state is MigrationState.DONE:
        await send_step(tx, migration.id)
    return migration_from(row)


@handles(BILLING_CLOCK, MIGRATE_PLAN)
async def migrate_plan(work: Work) -> None:
    """Schedules or withdraws one batch of changes. A repetition continues after the last commit."""
    await carry_out(work, lambda tx, step: advance(tx, step.migration_id))


async def advance(tx: Tx, migration_id: str) -> None:
    migration = await _locked(tx, migration_id)
    match migration.state:
        case MigrationState.RUNNING:
            await _schedule_batch(tx, migration)
        case MigrationState.CANCELING:
            await _withdraw_batch(tx, migration)


async def _schedule_batch(tx: Tx, migration: PlanMigration) -> None:
    older = await plans.plan(tx, migration.from_plan_id)
    rows = await tx.fetch(
        f"select s.id {_RENEWED_ON} and not s.cancel_at_period_end and s.id > $2 order by s.id limit $3",
        older.id,
        migration.looked_to,
        BATCH,
    )
    scheduled = 0
    for row in rows:
        scheduled += await _schedule(tx, migration, row["id"], older)
    done = len(rows) < BATCH
    await tx.execute(
        """
        update subscriptions.plan_migrations
        set looked_to = $2, scheduled = scheduled + $3, state = $4, updated_at = payonce.due_now() where id = $1
        """,
        migration.id,
        rows[-1]["id"] if rows else migration.looked_to,
        scheduled,
        MigrationState.DONE if done else MigrationState.RUNNING,
    )
    if not done:
        await send_step(tx, migration.id)


async def _schedule(tx: Tx, migration: PlanMigration, subscription_id: str, older: Plan) -> bool:
    """Schedules the change unless the subscription no longer qualifies, which is only certain behind its lock."""
    locked = await store.locked(tx, subscription_id)
    subscription = locked.subscription
    chosen = subscription.next_plan_id
    if (
        subscription.state in ENDED
        or subscription.cancel_at_period_end
        or (chosen or plan_moves.kept_plan_id(locked) or subscription.plan_id) != older.id
    ):
        return False
    later = (await plan_changes.pending(tx, subscription.id)).get(ChangeTiming.PERIOD_END)
    if later is not None and subscription.period_end is not None:
        effective_at = await plan_moves.effective_at(tx, locked, migration, older)
        if max(effective_at, later.not_before or effective_at) > subscription.period_end:
            # The older version was chosen or announced and comes first; `follow` is called at that renewal.
            return False
    await plan_changes.end_scheduled(
        tx, locked, ChangeState.CANCELED, f"replaced by plan migration {migration.id} to {migration.to_plan_id}"
    )
    await plan_moves.schedule(tx, locked, migration, older)
    return True


async def _withdraw_batch(tx: Tx, migration: PlanMigration) -> None:
    rows = await tx.fetch(
        """
        select subscription_id from subscriptions.plan_changes where migration_id = $1 and state = 'pending'
        order by subscription_id limit $2
        """,
        migration.id,
        BATCH,
    )
    withdrawn = 0
    for row in rows:
        locked = await store.locked(tx, row["subscription_id"])
        later = (await plan_changes.pending(tx, locked.subscription.id)).get(ChangeTiming.PERIOD_END)
        if later is None or later.migration_id != migration.id:
            continue
        moved = await store.move(
            tx,
            locked.subscription,
            "next_plan_chosen",
            locked.now,
            detail={"next_plan_id": None},
            next_plan_id=None,
        )
        after = store.with_subscription(locked, moved)
        await plan_changes.end(tx, after, later, ChangeState.CANCELED, WITHDRAWN)
        withdrawn += 1
    done = len(rows) < BATCH
    await tx.execute(
        """
        update subscriptions.plan_migrations
        set withdrawn = withdrawn + $2, state = $3, updated_at = payonce.due_now() where id = $1
        """,
        migration.id,
        withdrawn,
        MigrationState.CANCELED if done else MigrationState.CANCELING,
    )
    if not done:
        await send_step(tx, migration.id)


async def send_step(tx: Tx, migration_id: str) -> None:
    """Sends the message for the next batch."""
    await tx.send(BILLING_CLOCK, {"migration_id": migration_id}, action=MIGRATE_PLAN, correlation_id=migration_id)


async def _locked(tx: Tx, migration_id: str) -> PlanMigration:
    row = await tx.fetchrow("select * from subscriptions.plan_migrations where id = $1 for update", migration_id)
    if row is None:
        raise NotFound(f"there is no plan migration {migration_id!r}")
    return migration_from(row)


async def _versions(read: Reader | Tx, from_plan_id: str, to_plan_id: str | None) -> tuple[Plan, Plan]:
    """Both versions; the older one is given by id, since its code names the version for sale."""
    older = await plans.plan(read, from_plan_id)
    newer = await plans.plan_for_sale(read, to_plan_id or older.code)
    if older.trial_days is not None:
        raise Conflict(f"plan {older.id} is a trial, which is not renewed; migrate the plan that it leads to")
    if older.id == newer.id:
        raise Conflict(f"{older.id} is the version for sale; give the id of an older one")
    if older.code != newer.code:
        raise Conflict(f"{newer.id} is not a version of {older.code}; only customers change to another plan")
    if older.price.asset != newer.price.asset:
        raise Conflict(f"{newer.id} is priced in {newer.price.asset}, but {older.id} in {older.price.asset}")
    return older, newer


def _check_notice(days: int) -> None:
    if not 0 <= days <= NOTICE_DAYS_MAX:
        raise Invalid(f"a notice of {days} days is not possible; give 0 to {NOTICE_DAYS_MAX}")


_RENEWED_ON: Final = """
    from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
    where s.state not in ('incomplete_expired', 'canceled')
      and coalesce(s.next_plan_id, case when p.trial_days is not null then s.converts_to_plan_id end, s.plan_id) = $1"""
"""Subscriptions whose next period would use this version: as a scheduled change, after a trial, or as their current
plan."""
_DAYS: Final = {Unit.DAY: 1, Unit.WEEK: 7}
_MONTHS: Final = {Unit.MONTH: 1, Unit.YEAR: 12}
_MONTH_DAYS_MIN: Final = 28
_PREVIEW: Final = """
    select s.state, s.cancel_at_period_end as ends, coalesce(n.code <> $6, false) as elsewhere, count(*) as count,
        min(e.effective_at) as first_at, max(e.effective_at) as last_at
    from subscriptions.subscriptions s
    join subscriptions.plans p on p.id = s.plan_id
    left join subscriptions.plans n on n.id = s.next_plan_id
    cross join lateral (
        select subscriptions.time_of(s.test_clock_id) + make_interval(days => $2::int) as over,
            case when s.plan_id = $1 then s.anchor_at else s.period_end end at time zone s.time_zone as begun,
            case when s.plan_id = $1 then s.period - s.anchor_period + 1 else 0 end as ended) notice
    cross join lateral (
        select case when s.period_end >= notice.over then s.period_end else (
            select min(at) from generate_series(notice.ended, notice.ended + $5::int) number,
                lateral (select (notice.begun + make_interval(months => number * $3::int, days => number * $4::int))
                    at time zone s.time_zone as at) later
            where at >= notice.over) end as effective_at) e
    where s.state not in ('incomplete_expired', 'canceled')
      and $1 in (s.next_plan_id, case when p.trial_days is null then s.plan_id else s.converts_to_plan_id end)
      and (s.next_plan_id is null or s.next_plan_id = $1 or n.code <> $6)
    group by 1, 2, 3"""
"""Subscriptions that would be moved, and those that would be if a cancellation or another change were withdrawn."""
