"""The background work of a process: each janitor runs on its own schedule, some only while this process is the
leader."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from payonce.engine.audit import LedgerSealer
from payonce.engine.database.connections import Database, is_transient
from payonce.engine.database.identity import notice_identity
from payonce.engine.database.leases import TTL_DEFAULT_S, Leadership
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors.gauges import refresh_metrics
from payonce.engine.janitors.orphans import review_orphans
from payonce.engine.janitors.prune import KEEP_DAYS_DEFAULT, Prune
from payonce.engine.janitors.reconcile import reconcile_when_due, refresh_reconciliation_metrics
from payonce.engine.janitors.relay import carry_on
from payonce.engine.janitors.schedule import Daily, Every, Schedule, Scheduler
from payonce.engine.janitors.seal import LedgerSeals, Sealer
from payonce.engine.janitors.snapshots import Snapshots
from payonce.engine.messages import bulk
from payonce.engine.messages.model import Lease
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import NotifyingFeed
from payonce.engine.monitoring.history import RunCounts, sample_depths
from payonce.engine.monitoring.vendor_calls import CallCounts, forget_old_calls
from payonce.engine.outbox import Relay, wake_name
from payonce.engine.reconcile import StatementSource
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Stale
from payonce.kit.redact import redact

__all__ = ["Daily", "Every", "Janitor", "Schedule", "Scheduler", "run_janitors", "run_ticks", "while_leading"]

PRUNE_EVERY_S: Final = 10.0
SCHEDULE_EVERY_S: Final = 1.0
OBSERVE_EVERY_S: Final = 5.0
HISTORY_EVERY_S: Final = 5.0
DEPTHS_EVERY_S: Final = 15.0
RELAY_EVERY_S: Final = 1.0
"""The longest time a due entry waits for its relay; a notification shortens it."""
SEAL_EVERY_S: Final = 10.0
ORPHANS_EVERY_S: Final = 30.0
SNAPSHOTS_EVERY_S: Final = 60.0
OPERATIONS_EVERY_S: Final = 1.0
IDENTITY_EVERY_S: Final = 5.0
RECONCILE_LOOK_S: Final = 10.0
"""How soon after it falls due a vendor's statement is requested."""
TICK_LIMIT_S: Final = 120.0
"""A tick that takes longer is considered hung; it is cancelled and retried."""
STANDBY_S: Final = 1.0
"""How soon a janitor that waits for leadership checks again."""
BACK_OFF_S: Final = 1.0
BACK_OFF_MAX_S: Final = 60.0
LEADER: Final = "janitors"
SCHEDULES_LEADER: Final = "schedules"
WAKE_NAME: Final = "*janitors"
"""Not a queue's name: only the notification for everybody, which follows a moved clock, reaches it."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Janitor:
    name: str
    every_s: float
    tick: Callable[[], Awaitable[object]]
    woken_by: str | None = None
    """A notification with this name triggers the next tick at once."""


async def run_janitors(
    database: Database,
    feed: NotifyingFeed,
    admin: Admin,
    *,
    holder: str,
    schedules: Mapping[str, Sequence[Schedule]] | None = None,
    relays: Iterable[Relay] = (),
    statements: Sequence[StatementSource] = (),
    keep_days: int = KEEP_DAYS_DEFAULT,
    notifier: Notifier | None = None,
    leader: str = LEADER,
    ttl_s: float = TTL_DEFAULT_S,
    anchor: Path | None = None,
    leader_janitors: Iterable[Janitor] = (),
    observers: Iterable[Callable[[Database], Awaitable[object]]] = (),
) -> None:
    """Runs until cancelled. `schedules` are those of each service. Each service has a leader of its own, so that a
    process that does not know a service cannot lead its schedules. `leader_janitors` run in the leader only;
    `observers` refresh the gauges of services.
    """
    prune = Prune(database, keep_days)
    sealer, snapshots, counts = Sealer(database, anchor), Snapshots(database), RunCounts(database)
    ledger_seals = LedgerSeals(LedgerSealer(database))
    reconciling = [
        Janitor(
            f"reconcile {source.vendor}", RECONCILE_LOOK_S, partial(reconcile_when_due, database, feed, source, holder)
        )
        for source in statements
    ]
    async with AsyncExitStack() as stack:
        leadership = await stack.enter_async_context(Leadership.open(database, leader, holder, ttl_s))
        scheduling = await _scheduling(stack, database, feed, schedules or {}, holder, ttl_s)
        await run_ticks(
            [
                Janitor("prune", PRUNE_EVERY_S, while_leading(leadership, lambda _: prune.tick())),
                *scheduling,
                Janitor("seal", SEAL_EVERY_S, while_leading(leadership, sealer.tick)),
                Janitor("seal ledger", SEAL_EVERY_S, while_leading(leadership, ledger_seals.tick)),
                Janitor("orphans", ORPHANS_EVERY_S, while_leading(leadership, lambda _: review_orphans(database))),
                Janitor(
                    "operations",
                    OPERATIONS_EVERY_S,
                    while_leading(leadership, lambda _: bulk.carry_on(database, admin, feed)),
                ),
                Janitor("snapshots", SNAPSHOTS_EVERY_S, while_leading(leadership, lambda _: snapshots.tick())),
                Janitor("observe", OBSERVE_EVERY_S, lambda: refresh_metrics(database, admin)),
                *(
                    Janitor(f"observe {number}", OBSERVE_EVERY_S, partial(each, database))
                    for number, each in enumerate(observers, start=1)
                ),
                Janitor("history", HISTORY_EVERY_S, counts.tick),
                Janitor("vendor calls", HISTORY_EVERY_S, CallCounts(database).tick),
                Janitor("depths", DEPTHS_EVERY_S, while_leading(leadership, lambda _: _sample(database, admin))),
                *(
                    Janitor(
                        f"relay {each.name}", RELAY_EVERY_S, partial(carry_on, database, each), wake_name(each.name)
                    )
                    for each in relays
                ),
                Janitor("identity", IDENTITY_EVERY_S, lambda: notice_identity(database, holder)),
                Janitor("unmatched", OBSERVE_EVERY_S, lambda: refresh_reconciliation_metrics(database)),
                *reconciling,
                *(replace(each, tick=while_leading(leadership, _without_lease(each.tick))) for each in leader_janitors),
            ],
            notifier,
        )


async def _scheduling(
    stack: AsyncExitStack,
    database: Database,
    feed: NotifyingFeed,
    schedules: Mapping[str, Sequence[Schedule]],
    holder: str,
    ttl_s: float,
) -> list[Janitor]:
    found = []
    for service, its in schedules.items():
        leadership = await stack.enter_async_context(
            Leadership.open(database, f"{SCHEDULES_LEADER} {service}", holder, ttl_s)
        )
        tick = while_leading(leadership, Scheduler(database, feed, its).tick)
        found.append(Janitor(f"schedule {service}", SCHEDULE_EVERY_S, tick))
    return found


async def _sample(database: Database, admin: Admin) -> None:
    await sample_depths(database, [await admin.depth(queue) for queue in await admin.queues()])
    await forget_old_calls(database)


def while_leading(
    leadership: Leadership, work: Callable[[Lease], Awaitable[object]]
) -> Callable[[], Awaitable[object]]:
    """A tick that raises Stale in a process that is not the leader."""

    async def tick() -> None:
        lease = leadership.lease
        if lease is None:
            raise Stale("this process is not the leader")
        await work(lease)

    return tick


def _without_lease(tick: Callable[[], Awaitable[object]]) -> Callable[[Lease], Awaitable[object]]:
    return lambda _: tick()


async def run_ticks(janitors: Iterable[Janitor], notifier: Notifier | None = None) -> None:
    """Runs each janitor on its own until cancelled; one that fails or hangs delays none of the others."""
    async with asyncio.TaskGroup() as group:
        for janitor in janitors:
            group.create_task(_tick_for_ever(janitor, notifier))


async def _tick_for_ever(janitor: Janitor, notifier: Notifier | None) -> None:
    """Ends only by cancellation: whatever failed may be repaired by the next tick."""
    moved = asyncio.Event()
    wake_names = {WAKE_NAME, janitor.woken_by or WAKE_NAME}
    if notifier is not None:
        for name in wake_names:
            notifier.subscribe(name, moved)
    failures = 0
    try:
        while True:
            # Cleared before the tick, so that a clock moved during the tick triggers another one.
            moved.clear()
            rest_s = janitor.every_s
            try:
                async with asyncio.timeout(TICK_LIMIT_S):
                    await janitor.tick()
                failures = 0
            except Stale:
                rest_s = min(rest_s, STANDBY_S)
            except Exception as error:
                failures += 1
                rest_s = max(rest_s, min(BACK_OFF_S * 2.0 ** min(failures - 1, 10), BACK_OFF_MAX_S))
                _log_failure(janitor, error, failures)
            await _rest(moved, rest_s)
    finally:
        if notifier is not None:
            for name in wake_names:
                notifier.unsubscribe(name, moved)


async def _rest(moved: asyncio.Event, rest_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(rest_s):
            await moved.wait()


def _log_failure(janitor: Janitor, error: Exception, failures: int) -> None:
    level = log.warning if is_transient(error) else log.error
    level("janitor_failed", janitor=janitor.name, failures=failures, error=redact(f"{type(error).__name__}: {error}"))
