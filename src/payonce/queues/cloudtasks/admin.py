"""Operations on pushed queues: inspect, pause, redrive, purge. All use PostgreSQL, where the messages are stored."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.declarations import check_known, queue_names, set_paused
from payonce.engine.messages.model import State, clean_text
from payonce.engine.messages.ports import Depth, Filter, Preview, QueuedMessage
from payonce.engine.messages.rows import MESSAGE_COLUMNS, message_shown
from payonce.engine.outbox import wake_name
from payonce.engine.outbox.durable_copy import CONSUMER_PREFIX, STARTS_OVER
from payonce.kit.log import get_logger
from payonce.queues.cloudtasks.client import TaskService
from payonce.queues.cloudtasks.depths import HELD, IN_STATE, depth_of
from payonce.queues.cloudtasks.names import RELAY
from payonce.queues.cloudtasks.pushed import PushedQueue
from payonce.queues.operations import (
    CHANGE_BATCH,
    COUNT_MAX,
    PURGED_TO_JOB_LOG,
    SAMPLES,
    check_page,
    check_purged,
    has_open_effects,
    in_parts,
    is_in_review,
)

log = get_logger(__name__)


class CloudTasksAdmin:
    def __init__(
        self, database: Database, notifier: Notifier, service: TaskService, pushed: Mapping[str, PushedQueue]
    ) -> None:
        self._database = database
        self._pool = database.engine
        self._notifier = notifier
        self._service = service
        self._pushed = pushed

    async def queues(self) -> list[str]:
        return await queue_names(self._pool)

    async def depth(self, queue: str) -> Depth:
        return await depth_of(self._pool, queue)

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[QueuedMessage]:
        """Messages in the order they fall due; `after` names the last message of the previous page."""
        await check_known(self._pool, queue)
        check_page(limit)
        rows = await self._pool.fetch(
            f"""
            select {_STORED} from payonce.outbox
            where relay = '{RELAY}' and queue = $1 and {IN_STATE[state]} and ($3::uuid is null or ({_AT}, id) > (
                select {_AT}, id from payonce.outbox where relay = '{RELAY}' and id = $3))
            order by {_AT}, id limit $2
            """,
            queue,
            limit,
            after,
        )
        return [_stored(row, state) for row in rows]

    async def pause(self, queue: str, reason: str, by: str = "the application") -> None:
        """No run begins after the commit. Pausing the task service's queue only saves useless deliveries."""
        async with self._pool.acquire() as connection, connection.transaction():
            await set_paused(connection, queue, clean_text(reason), by)
        await self._pause_remote(queue, True)

    async def resume(self, queue: str, by: str = "the application") -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await set_paused(connection, queue, None, by)
        await self._pause_remote(queue, False)
        self._notifier.notify({queue})

    async def _pause_remote(self, queue: str, paused: bool) -> None:
        try:
            await self._service.set_paused(self._pushed[queue].remote_name, paused)
        except Exception as error:
            # A janitor in a process that reaches the task service repairs it.
            log.warning("task_queue_pause_failed", queue=queue, paused=paused, error=str(error))

    async def preview(self, queue: str, state: State, which: Filter) -> Preview:
        await check_known(self._pool, queue)
        rows = await self._pool.fetch(
            f"""
            select {_STORED},
                (select count(*) from (select from payonce.outbox where {_matching(state)} limit {COUNT_MAX}) counted)
                    as total,
                (select count(*) from (select from payonce.outbox where {_matching(state)} and {_HAS_OPEN_EFFECTS}
                    limit {COUNT_MAX}) counted) as with_open_effects,
                (select count(*) from (select from payonce.outbox where {_matching(state)} and {_IS_IN_REVIEW}
                    limit {COUNT_MAX}) counted) as in_review
            from payonce.outbox where {_matching(state)} order by {_AT}, id limit {SAMPLES}
            """,
            *_arguments(queue, which),
        )
        if not rows:
            return Preview(0)
        first = rows[0]
        return Preview(
            first["total"], [_stored(row, state) for row in rows], first["with_open_effects"], first["in_review"]
        )

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        await check_known(self._pool, queue)
        rows = await (self._pool if within is None else within).fetch(
            f"select id from payonce.outbox where {_matching(state)} order by {_AT}, id limit $8",
            *_arguments(queue, which),
            limit,
        )
        return [row["id"] for row in rows]

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """Parked messages start over: attempts, crashes and age from zero. One that is parked again meanwhile stays
        parked."""
        await check_known(self._pool, queue)
        source = self._pool if within is None else within
        begun_at = await source.fetchval("select payonce.due_now()")
        count = 0
        while rows := await source.fetch(
            f"""
            with chosen as (
                select id from payonce.outbox where {_matching(State.PARKED)} and try_at <= $8
                order by id limit {CHANGE_BATCH} for update skip locked
            )
            update payonce.outbox entry set {STARTS_OVER}
            from chosen where entry.relay = '{RELAY}' and entry.id = chosen.id
            returning entry.id
            """,
            *_arguments(queue, which),
            begun_at,
        ):
            count += len(rows)
        if count and within is None:
            self._notifier.notify({queue, wake_name(RELAY)})
        return count

    async def purge(
        self,
        queue: str,
        state: State,
        which: Filter,
        by: str,
        *,
        limit: int | None = None,
        put_before: datetime | None = None,
    ) -> int:
        """Deletes the messages that are there at the beginning, except those with open effects. Each gets a row in the
        job log, and its id goes into the inbox, so that a later delivery of its task is recognised."""
        await check_known(self._pool, queue)
        check_purged(state)

        async def some(connection: Connection, begun_at: datetime) -> int | None:
            return await self._purge_some(connection, queue, state, which, by, begun_at)

        return await in_parts(self._pool, some, limit, put_before)

    async def _purge_some(
        self, connection: Connection, queue: str, state: State, which: Filter, by: str, begun_at: datetime
    ) -> int | None:
        """Purges one batch in one transaction; None when nothing is left. Rows are locked first and then checked again:
        an effect may begin, and its message be parked, between the query and the lock."""
        async with settled_transaction(self._database, connection):
            rows = await connection.fetch(
                f"""
                select id from payonce.outbox
                where {_matching(state)} and created_at <= $8 and not {_HAS_OPEN_EFFECTS}
                order by id limit {CHANGE_BATCH} for update skip locked
                """,
                *_arguments(queue, which),
                begun_at,
            )
            if not rows:
                return None
            return len(await connection.fetch(_PURGE, [row["id"] for row in rows], clean_text(by)))


def _stored(row: Any, state: State) -> QueuedMessage:
    return QueuedMessage(
        message_shown(row), state, row["at"], row["run_crashes"], row["held_until"], row["worker"], row["last_error"]
    )


_AT: Final = "(case when state = 'parked' then try_at else ready_at end)"
_STORED: Final = f"{MESSAGE_COLUMNS}, {_AT} as at, run_crashes, held_until, worker, last_error"

_HAS_OPEN_EFFECTS: Final = has_open_effects("outbox")
_IS_IN_REVIEW: Final = is_in_review("outbox")


def _matching(state: State) -> str:
    return f"""relay = '{RELAY}' and queue = $1 and {IN_STATE[state]}
        and ($2::uuid[] is null or id = any($2)) and ($3::text is null or action = $3)
        and ($4::text is null or correlation_id = $4)
        and ($5::text is null or position($5 in coalesce(last_error, '')) > 0)
        and ($6::timestamptz is null or {_AT} >= $6) and ($7::timestamptz is null or {_AT} < $7)"""


def _arguments(queue: str, which: Filter) -> tuple[Any, ...]:
    ids = list(which.ids) or None
    return (
        queue,
        ids,
        which.action,
        which.correlation_id,
        which.error_contains,
        which.parked_after,
        which.parked_before,
    )


_PURGE: Final = f"""
    with gone as (
        delete from payonce.outbox where relay = '{RELAY}' and id = any($1) and not {_HAS_OPEN_EFFECTS} and not {HELD}
        returning *
    ), ended as (
        insert into payonce.inbox (consumer, id) select '{CONSUMER_PREFIX}' || queue, id::text from gone
        on conflict do nothing
    )
    {PURGED_TO_JOB_LOG}"""
