"""Refreshes the gauges that are read from the store. Every process may do it; the values are the same everywhere."""

from collections.abc import Iterable
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.database.durability import weaknesses
from payonce.engine.effects.model import OPEN
from payonce.engine.messages.ports import Admin, Depth
from payonce.engine.monitoring.metrics import (
    APPROVALS_WAITING,
    DATABASE_WEAKNESSES,
    DEPTH,
    FREEZES,
    OBSERVED_TIMESTAMP_SECONDS,
    OLDEST_OPEN_EFFECT_SECONDS,
    OLDEST_READY_SECONDS,
    OLDEST_SNAPSHOT_SECONDS,
    OPEN_EFFECTS,
    OPEN_EFFECTS_AMOUNT,
    OUTBOX_LAG_SECONDS,
    OUTBOX_PARKED,
    OUTBOX_WAITING,
    PAUSED,
)
from payonce.engine.outbox import Lag, lag
from payonce.kit.money import Amount, Asset

STATES: Final = ("ready", "delayed", "alone", "leased", "parked")


async def refresh_metrics(database: Database, admin: Admin) -> None:
    _set_queue_gauges([await admin.depth(queue) for queue in await admin.queues()])
    _set_outbox_gauges(await lag(database))
    OLDEST_SNAPSHOT_SECONDS.set(await oldest_snapshot_s(database))
    DATABASE_WEAKNESSES.set(len(await weaknesses(database.engine)))
    await refresh_effect_metrics(database)
    await refresh_control_metrics(database)
    # Set last, and only when all of it succeeded: gauges that are not refreshed look like a quiet day.
    OBSERVED_TIMESTAMP_SECONDS.set_to_current_time()


async def refresh_effect_metrics(database: Database) -> None:
    """Refreshes the gauges of open effects; ended effects are counted as they end. Even when there are many, one pass
    over their own index suffices."""
    rows = await database.engine.fetch(
        """
        select state, kind, asset, exponent, count(*) as count, coalesce(sum(amount_minor), 0) as minor,
            greatest(0, extract(epoch from payonce.due_now() - min(created_at)))::float8 as oldest_s
        from payonce.effects where state in ('intended', 'unknown', 'review') group by state, kind, asset, exponent
        """
    )
    for gauge in (OPEN_EFFECTS, OPEN_EFFECTS_AMOUNT):
        # Series that no longer exist must not keep their last value.
        gauge.clear()
    oldest_s = dict.fromkeys(sorted(OPEN), 0.0)
    for row in rows:
        OPEN_EFFECTS.labels(row["state"], row["kind"]).inc(row["count"])
        if row["asset"] is not None:
            amount = Amount(int(row["minor"]), Asset(row["asset"], row["exponent"]))
            OPEN_EFFECTS_AMOUNT.labels(row["state"], row["asset"]).inc(float(amount.to_decimal()))
        oldest_s[row["state"]] = max(oldest_s[row["state"]], row["oldest_s"])
    for state, age_s in oldest_s.items():
        OLDEST_OPEN_EFFECT_SECONDS.labels(state).set(age_s)


async def refresh_control_metrics(database: Database) -> None:
    row = await database.engine.fetchrow(
        """
        select (select count(*) from payonce.freezes
                where lifted_at is null and (until is null or until > payonce.due_now())) as freezes,
            (select count(*) from payonce.approvals
                where state = 'waiting' and expires_at > payonce.due_now()) as waiting
        """
    )
    assert row is not None
    FREEZES.set(row["freezes"])
    APPROVALS_WAITING.set(row["waiting"])


async def oldest_snapshot_s(database: Database) -> float:
    """Age of the oldest transaction in this database that keeps dead rows; 0 when there is none.

    Without pg_read_all_stats only sessions of this process's own login are visible. To include the others, an
    administrator grants it to that login.
    """
    age_s = await database.engine.fetchval(
        # The lease clock, because transactions begin by the real clock, and tests move only the due clock far.
        """
        select coalesce(max(greatest(0, extract(epoch from payonce.lease_now() - xact_start))), 0)::float8
        from pg_stat_activity
        where backend_xmin is not null and datname = current_database() and pid <> pg_backend_pid()
        """
    )
    return float(age_s)


def _set_queue_gauges(depths: Iterable[Depth]) -> None:
    for depth in depths:
        for state in STATES:
            DEPTH.labels(depth.queue, state).set(getattr(depth, state))
        OLDEST_READY_SECONDS.labels(depth.queue).set(depth.oldest_ready_s)
        PAUSED.labels(depth.queue).set(depth.paused)


def _set_outbox_gauges(relays: Iterable[Lag]) -> None:
    for each in relays:
        OUTBOX_WAITING.labels(each.relay).set(each.waiting)
        OUTBOX_PARKED.labels(each.relay).set(each.parked)
        OUTBOX_LAG_SECONDS.labels(each.relay).set(each.oldest_s)
