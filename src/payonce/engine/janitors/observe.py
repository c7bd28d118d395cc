"""Refreshes the gauges that are read from the store. Every process may do it: what they say is the same everywhere."""

from collections.abc import Iterable
from typing import Final

from payonce.engine.database import Database
from payonce.engine.metrics import (
    DEPTH,
    OLDEST_READY_SECONDS,
    OLDEST_SNAPSHOT_SECONDS,
    OUTBOX_LAG_SECONDS,
    OUTBOX_PARKED,
    OUTBOX_WAITING,
    PAUSED,
)
from payonce.engine.outbox import Lag, lag
from payonce.engine.queue import Admin, Depth

STATES: Final = ("ready", "delayed", "alone", "leased", "parked")


async def observe(database: Database, admin: Admin) -> None:
    _show([await admin.depth(queue) for queue in await admin.queues()])
    _show_outbox(await lag(database))
    OLDEST_SNAPSHOT_SECONDS.set(await oldest_snapshot_s(database))


async def oldest_snapshot_s(database: Database) -> float:
    """Age of the oldest transaction in this database that keeps dead rows; 0 when there is none.

    Without pg_read_all_stats only sessions of this process's own login are seen: an administrator who wants the others
    counted grants it to that login.
    """
    age_s = await database.engine.fetchval(
        # The lease clock, because transactions begin by the real one, and only the due clock is moved far in tests.
        """
        select coalesce(max(greatest(0, extract(epoch from payonce.lease_now() - xact_start))), 0)::float8
        from pg_stat_activity
        where backend_xmin is not null and datname = current_database() and pid <> pg_backend_pid()
        """
    )
    return float(age_s)


def _show(depths: Iterable[Depth]) -> None:
    for depth in depths:
        for state in STATES:
            DEPTH.labels(depth.queue, state).set(getattr(depth, state))
        OLDEST_READY_SECONDS.labels(depth.queue).set(depth.oldest_ready_s)
        PAUSED.labels(depth.queue).set(depth.paused)


def _show_outbox(relays: Iterable[Lag]) -> None:
    for each in relays:
        OUTBOX_WAITING.labels(each.relay).set(each.waiting)
        OUTBOX_PARKED.labels(each.relay).set(each.parked)
        OUTBOX_LAG_SECONDS.labels(each.relay).set(each.oldest_s)
