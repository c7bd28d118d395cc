"""Recreates lost tasks: Google may silently delete tasks when its limits are reached.

Runs in every process that has the backend open, in one of them at a time, under a lease of its own: the leading process
may have no access to the task service.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from payonce.engine.database.connections import Database
from payonce.engine.database.leases import Leadership
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Janitor, run_ticks, while_leading
from payonce.engine.monitoring.metrics import TASKS_PUT_BACK
from payonce.engine.outbox import wake_name
from payonce.engine.outbox.durable_copy import CONSUMER_PREFIX
from payonce.kit.log import get_logger
from payonce.queues.cloudtasks.client import TaskService
from payonce.queues.cloudtasks.names import RELAY, is_named_here
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.cloudtasks.sync import differences, refuse_foreign, repair_pauses, sync

LATE_S: Final = 180.0
"""A message is checked for a lost task when it is unheld for so long after it fell due."""
REFILL_EVERY_S: Final = 60.0
QUEUES_EVERY_S: Final = 5.0
QUEUES_CHECK_S: Final = 60.0
"""Interval of comparing the queues' settings; a missing queue is reported at once by the relay that finds it
missing."""
PAGE: Final = 500
LOOKUPS_MAX: Final = 10
LEADER: Final = "cloudtasks"
WAKE_NAME: Final = "*cloudtasks"
"""Notified when the task service lacks a queue."""

log = get_logger(__name__)


class TaskMaintenance:
    """Keeps the task service's queues and tasks consistent with PostgreSQL."""

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        service: TaskService,
        pushed: Mapping[str, PushedQueue],
        own_address: Callable[[], str | None],
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._service = service
        self._pushed = pushed
        self._own_address = own_address
        self._missing = True
        """Whether a queue may be missing: true at start, and when a task finds none."""
        self._checked_at = float("-inf")

    def queue_missing(self) -> None:
        self._missing = True
        self._notifier.notify({WAKE_NAME})

    async def run(self, holder: str) -> None:
        """Until cancelled."""
        async with Leadership.open(self._database, LEADER, holder) as leadership:
            await run_ticks(
                [
                    Janitor("cloudtasks queues", QUEUES_EVERY_S, self.check_queues, WAKE_NAME),
                    Janitor("cloudtasks refill", REFILL_EVERY_S, while_leading(leadership, lambda _: self.refill())),
                ],
                self._notifier,
            )

    async def check_queues(self) -> None:
        """Creates and updates the queues of our own server. At Google's, differences are only logged: an operator
        decides."""
        now = asyncio.get_running_loop().time()
        if not self._missing and now < self._checked_at + QUEUES_CHECK_S:
            return
        pushed = list(self._pushed.values())
        await refuse_foreign(self._database, self._service)
        if self._service.config.local:
            changed = await sync(self._service, pushed)
            for queue in sorted({each.queue for each in changed}):
                log.info("task_queue_synced", queue=queue)
        else:
            for each in await differences(self._service, pushed):
                log.warning(
                    "task_queue_differs",
                    queue=each.queue,
                    field=each.field,
                    there=each.there,
                    here=each.here,
                    remedy="payonce queues sync --to cloudtasks",
                )
        for queue in await repair_pauses(self._database, self._service, pushed):
            log.warning("task_queue_pause_repaired", queue=queue)
        self._missing, self._checked_at = False, now

    async def refill(self, late_s: float = LATE_S) -> int:
        """Puts messages back whose task is gone, or goes to an address that no longer answers. Returns their number."""
        count, after = 0, None
        while page := await self._database.engine.fetch(
            _OVERDUE, RELAY, list(self._pushed), late_s, PAGE, *((None, None) if after is None else after)
        ):
            after = page[-1]["ready_at"], page[-1]["id"]
            lost = await self._lost(page)
            if lost:
                count += await self._put_back(lost)
        if count:
            self._notifier.notify({wake_name(RELAY)})
        return count

    async def _lost(self, page: Sequence[Any]) -> list[Any]:
        limit = asyncio.Semaphore(LOOKUPS_MAX)

        async def is_lost(row: Any) -> bool:
            task = row["delivered_as"]
            if task is None:
                return True
            async with limit:
                url = await self._service.find(task)
                reached = self._pushed[row["queue"]].reached_at(self._own_address())
                if url is None or reached is None or url == reached[1] or not is_named_here(row["id"], task):
                    # Tasks created by others are left alone, wherever they go.
                    return url is None
                # The process has moved to another address.
                await self._service.delete(task)
                return True

        lost = await asyncio.gather(*(is_lost(row) for row in page))
        return [row for row, gone in zip(page, lost, strict=True) if gone]

    async def _put_back(self, lost: Sequence[Any]) -> int:
        rows = await self._database.engine.fetch(
            _PUT_BACK,
            RELAY,
            [row["id"] for row in lost],
            [row["token"] for row in lost],
            [row["delivery"] for row in lost],
        )
        for row in rows:
            TASKS_PUT_BACK.labels(row["queue"]).inc()
            log.warning("task_lost", queue=row["queue"], message_id=str(row["id"]))
        return len(rows)


_UNHELD: Final = "(entry.holder is null or entry.held_until <= payonce.lease_now())"

_OVERDUE: Final = f"""
    select entry.id, entry.queue, entry.ready_at, entry.token, entry.delivery, entry.delivered_as
    from payonce.outbox entry
    where entry.relay = $1 and entry.state = 'delivered' and entry.queue = any($2)
      and entry.ready_at <= payonce.due_now() - make_interval(secs => $3::float8) and {_UNHELD}
      and ($5::timestamptz is null or (entry.ready_at, entry.id) > ($5, $6::uuid))
    order by entry.ready_at, entry.id limit $4"""

# Entries begun, settled, retried or redelivered since the check stay unchanged; attempts and times stay in any case. An
# entry whose message is in the inbox is settled, and is deleted.
_PUT_BACK: Final = f"""
    with lost as (
        select entry.id, exists (select from payonce.inbox known
            where known.consumer = '{CONSUMER_PREFIX}' || entry.queue and known.id = entry.id::text) as over
        from unnest($2::uuid[], $3::bigint[], $4::integer[]) as lost (id, token, delivery) cross join lateral (
            select entry.id, entry.queue from payonce.outbox entry
            where entry.relay = $1 and entry.id = lost.id and entry.state = 'delivered' and entry.token = lost.token
              and entry.delivery = lost.delivery and {_UNHELD}
            for update skip locked
        ) entry
    ), gone as (
        delete from payonce.outbox where relay = $1 and id = any(array(select id from lost where over))
    )
    update payonce.outbox entry
    set state = 'waiting', token = entry.token + 1, delivery = entry.delivery + 1, try_at = payonce.due_now()
    where entry.relay = $1 and entry.id = any(array(select id from lost where not over))
    returning entry.id, entry.queue"""
