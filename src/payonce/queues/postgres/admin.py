"""Operations on queues in PostgreSQL: inspect, pause, redrive, purge."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.declarations import check_known, queue_names, set_paused, unknown_queue
from payonce.engine.messages.model import State, clean_text
from payonce.engine.messages.ports import Depth, Filter, Preview, QueuedMessage
from payonce.engine.messages.rows import MESSAGE_COLUMNS, MESSAGE_STARTS_OVER
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
from payonce.queues.postgres.rows import stored_of

_STORED_COLUMNS: Final = f"{MESSAGE_COLUMNS}, state, ready_at, crashes, lease_until, worker, last_error"


class PostgresAdmin:
    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._pool = database.engine
        self._notifier = notifier

    async def queues(self) -> list[str]:
        return await queue_names(self._pool)

    async def depth(self, queue: str) -> Depth:
        row = await self._pool.fetchrow(
            f"""
            select q.paused,
                (select count(*) from (select from payonce.messages where queue = q.name and state = 'ready'
                    and ready_at <= payonce.due_now() limit {COUNT_MAX}) counted) as ready,
                (select count(*) from (select from payonce.messages where queue = q.name and state = 'ready'
                    and ready_at > payonce.due_now() limit {COUNT_MAX}) counted) as delayed,
                (select count(*) from (select from payonce.messages where queue = q.name and state = 'alone'
                    limit {COUNT_MAX}) counted) as alone,
                (select count(*) from (select from payonce.messages where queue = q.name and state = 'leased'
                    limit {COUNT_MAX}) counted) as leased,
                (select count(*) from (select from payonce.messages where queue = q.name and state = 'parked'
                    limit {COUNT_MAX}) counted) as parked,
                coalesce((select extract(epoch from payonce.due_now() - ready_at)::float8 from payonce.messages
                    where queue = q.name and state = 'ready' and ready_at <= payonce.due_now()
                    order by ready_at, id limit 1), 0) as oldest_ready_s
            from payonce.queues q where q.name = $1
            """,
            queue,
        )
        if row is None:
            raise await unknown_queue(self._pool, queue)
        return Depth(
            queue,
            row["ready"],
            row["delayed"],
            row["alone"],
            row["leased"],
            row["parked"],
            row["oldest_ready_s"],
            row["paused"],
        )

    async def peek(self, queue: str, state: State, limit: int, after: UUID | None = None) -> list[QueuedMessage]:
        """Messages in the order they fall due; `after` names the last message of the previous page."""
        await check_known(self._pool, queue)
        check_page(limit)
        rows = await self._pool.fetch(
            f"""
            select {_STORED_COLUMNS} from payonce.messages
            where queue = $1 and state = $2 and ($4::uuid is null or (ready_at, id) >
                (select ready_at, id from payonce.messages where id = $4))
            order by ready_at, id limit $3
            """,
            queue,
            state.value,
            limit,
            after,
        )
        return [stored_of(row) for row in rows]

    async def pause(self, queue: str, reason: str, by: str = "the application") -> None:
        await self._set_paused(queue, clean_text(reason), by)

    async def resume(self, queue: str, by: str = "the application") -> None:
        await self._set_paused(queue, None, by)
        self._notifier.notify({queue})

    async def _set_paused(self, queue: str, reason: str | None, by: str) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await set_paused(connection, queue, reason, by)

    async def preview(self, queue: str, state: State, which: Filter) -> Preview:
        await check_known(self._pool, queue)
        rows = await self._pool.fetch(
            f"""
            select {_STORED_COLUMNS}, (
                    select count(*) from (select from payonce.messages where {_MATCHING} limit {COUNT_MAX}) counted
                ) as total, (
                    select count(*) from (select from payonce.messages where {_MATCHING} and {_HAS_OPEN_EFFECTS}
                        limit {COUNT_MAX}) counted
                ) as with_open_effects, (
                    select count(*) from (select from payonce.messages where {_MATCHING} and {_IS_IN_REVIEW}
                        limit {COUNT_MAX}) counted
                ) as in_review
            from payonce.messages where {_MATCHING} order by ready_at, id limit {SAMPLES}
            """,
            *_arguments(queue, state, which),
        )
        if not rows:
            return Preview(0)
        first = rows[0]
        return Preview(first["total"], [stored_of(row) for row in rows], first["with_open_effects"], first["in_review"])

    async def choose(
        self, queue: str, state: State, which: Filter, limit: int, within: Connection | None = None
    ) -> list[UUID]:
        await check_known(self._pool, queue)
        rows = await (self._pool if within is None else within).fetch(
            f"select id from payonce.messages where {_MATCHING} order by ready_at, id limit $9",
            *_arguments(queue, state, which),
            limit,
        )
        return [row["id"] for row in rows]

    async def redrive(self, queue: str, which: Filter, within: Connection | None = None) -> int:
        """Parked messages start over: attempts, crashes and age from zero. One that is parked again meanwhile stays
        parked."""
        await check_known(self._pool, queue)
        begun_at = await self._pool.fetchval("select payonce.due_now()")
        count = await _in_batches(
            self._pool if within is None else within,
            f"""
            with chosen as (
                select id from payonce.messages where {_MATCHING} and ready_at <= $9
                order by id limit $10 for update skip locked
            )
            update payonce.messages m set {MESSAGE_STARTS_OVER}
            from chosen where m.id = chosen.id
            returning m.id
            """,
            *_arguments(queue, State.PARKED, which),
            begun_at,
            # Within the caller's transaction batches have no advantage.
            CHANGE_BATCH if within is None else COUNT_MAX,
        )
        if count and within is None:
            self._notifier.notify({queue})
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
        """Deletes the messages that are there at the beginning, except those with open effects; each gets a row in the
        job log."""
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
        async with connection.transaction():
            rows = await connection.fetch(
                f"""
                select id from payonce.messages where {_MATCHING} and created_at <= $9 and not {_HAS_OPEN_EFFECTS}
                order by id limit {CHANGE_BATCH} for update skip locked
                """,
                *_arguments(queue, state, which),
                begun_at,
            )
            if not rows:
                return None
            return len(await connection.fetch(_PURGE, [row["id"] for row in rows], clean_text(by)))


async def _in_batches(source: asyncpg.Pool | Connection, sql: str, *arguments: Any) -> int:
    count = 0
    while rows := await source.fetch(sql, *arguments):
        count += len(rows)
    return count


_MATCHING: Final = """queue = $1 and state = $2
    and ($3::uuid[] is null or id = any($3))
    and ($4::text is null or action = $4)
    and ($5::text is null or correlation_id = $5)
    and ($6::text is null or position($6 in last_error) > 0)
    and ($7::timestamptz is null or ready_at >= $7)
    and ($8::timestamptz is null or ready_at < $8)"""


_HAS_OPEN_EFFECTS: Final = has_open_effects("messages")
_IS_IN_REVIEW: Final = is_in_review("messages")

_PURGE: Final = f"""
    with gone as (
        delete from payonce.messages where id = any($1) and not {_HAS_OPEN_EFFECTS}
        returning *
    )
    {PURGED_TO_JOB_LOG}"""


def _arguments(queue: str, state: State, which: Filter) -> tuple[Any, ...]:
    ids = list(which.ids) or None
    return (
        queue,
        state.value,
        ids,
        which.action,
        which.correlation_id,
        which.error_contains,
        which.parked_after,
        which.parked_before,
    )
