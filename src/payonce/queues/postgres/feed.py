"""Puts messages: one statement per thousand; each idempotency key is accepted once."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import asyncpg

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.idempotency import TAKE_KEYS, first_ids, keyed
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.queues.declarations import check_limits, check_put_size, declare_queues, undeclared
from payonce.queues.postgres.columns import columns_of

STATEMENT_MAX_MESSAGES: Final = 1_000
COPY_MIN_MESSAGES: Final = 100
"""From this number on, COPY is worth its extra round trips."""


class PostgresFeed:
    """Puts messages into the database of the queue itself: a put inside a transaction is part of it."""

    def __init__(self, database: Database, notifier: Notifier) -> None:
        self._database = database
        self._notifier = notifier
        self._lanes_by_queue: dict[str, bool] = {}

    async def declare(self, policies: Sequence[Policy]) -> None:
        """Declares queues and their limits. An operator's pause stays in force."""
        check_limits(policies)
        async with self._database.engine.acquire() as connection, connection.transaction():
            await declare_queues(connection, policies, "postgres")
            for policy in sorted(policies, key=lambda policy: policy.queue):
                if policy.lanes:
                    await connection.execute(_SHARE_A_LANE, policy.queue)
        self._lanes_by_queue.update((policy.queue, policy.lanes) for policy in policies)

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        if not messages:
            return []
        check_put_size(messages)
        if within is not None:
            await self._know_queues(within, messages)
            return await self._insert(within, messages, _INSERT_ONCE)
        async with self._database.engine.acquire() as connection:
            await self._know_queues(connection, messages)
            try:
                if len(messages) >= COPY_MIN_MESSAGES and not any(map(_has_times, messages)):
                    ids = await self._copy(connection, messages)
                else:
                    ids = await self._insert_all(connection, messages, _INSERT_NEW)
            except asyncpg.UniqueViolationError:
                # Nothing was stored. Only now are repeated keys and ids searched for: it costs more than storing new
                # ones.
                ids = await self._insert_all(connection, messages, _INSERT_ONCE)
        self._notifier.notify({message.queue for message in messages})
        return ids

    def notify(self, queues: set[str]) -> None:
        """Call after the commit of a put within a transaction."""
        self._notifier.notify(queues)

    async def _copy(self, connection: Connection, messages: Sequence[Message]) -> list[UUID]:
        """For many new messages: 12 µs of CPU time each, against 17 µs by statement, measured."""
        columns = columns_of(messages, self._lanes_by_queue)
        keys = keyed(messages)
        async with settled_transaction(self._database, connection):
            if keys:
                await connection.copy_records_to_table(
                    "idempotency_keys", schema_name="payonce", records=keys, columns=("queue", "key", "message_id")
                )
            await connection.copy_records_to_table(
                "messages", schema_name="payonce", records=zip(*columns.values(), strict=True), columns=list(columns)
            )
        return columns["id"]

    async def _insert_all(self, connection: Connection, messages: Sequence[Message], statement: str) -> list[UUID]:
        if len(messages) <= STATEMENT_MAX_MESSAGES:
            return await self._insert(connection, messages, statement)
        async with settled_transaction(self._database, connection):
            return await self._insert(connection, messages, statement)

    async def _insert(self, connection: Connection, messages: Sequence[Message], statement: str) -> list[UUID]:
        ids: list[UUID] = []
        for start in range(0, len(messages), STATEMENT_MAX_MESSAGES):
            part = messages[start : start + STATEMENT_MAX_MESSAGES]
            columns = columns_of(part, self._lanes_by_queue)
            keys = zip(*keyed(part), strict=True) if "idempotency_key" in columns else (None, None, None)
            inserted = await connection.fetch(statement, *map(columns.get, _INPUT_COLUMNS), *keys)
            if len(inserted) == len(part) or statement is _INSERT_NEW:
                ids += columns["id"]
            else:
                ids += await first_ids(connection, part, {row[0] for row in inserted})
        return ids

    async def _know_queues(self, connection: Connection, messages: Sequence[Message]) -> None:
        unknown = {message.queue for message in messages} - self._lanes_by_queue.keys()
        if unknown:
            found = await connection.fetch(
                """
                select name, coalesce((policy->>'lanes')::boolean, false) as lanes
                from payonce.queues where name = any($1)
                """,
                list(unknown),
            )
            self._lanes_by_queue.update({row["name"]: row["lanes"] for row in found})
            if missing := unknown - self._lanes_by_queue.keys():
                raise undeclared(missing)


def _has_times(message: Message) -> bool:
    """Whether a message sets a time; COPY uses the columns' defaults, the store's current time."""
    return bool(message.delay_s) or message.not_before is not None or message.created_at is not None


# Messages put before the queue had lanes share one.
_SHARE_A_LANE: Final = """
    update payonce.messages set lane = '' where queue = $1 and state = 'ready' and lane is null"""

_INPUT_COLUMNS: Final = (
    "queue",
    "id",
    "action",
    "payload",
    "idempotency_key",
    "correlation_id",
    "trace_id",
    "lane",
    "delay_s",
    "not_before",
    "created_at",
    "attempts",
    "max_attempts",
    "extra",
)

_KEYS: Final = """unnest($15::text[], $16::text[], $17::uuid[])
            with ordinality as keyed (queue, key, message_id, position)"""

_INTO_MESSAGES: Final = """
    insert into payonce.messages (queue, id, action, payload, idempotency_key, correlation_id, trace_id, lane,
                                  ready_at, created_at, attempts, max_attempts, extra)
    select queue, id, action, payload, idempotency_key, correlation_id, trace_id, lane,
           greatest(payonce.due_now(), not_before) + make_interval(secs => coalesce(delay_s, 0)),
           coalesce(created_at, payonce.due_now()), coalesce(attempts, 0), max_attempts, extra
    from unnest(
        $1::text[], $2::uuid[], $3::text[], $4::json[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::float8[], $10::timestamptz[], $11::timestamptz[], $12::integer[], $13::integer[], $14::json[]
    ) as input (queue, id, action, payload, idempotency_key, correlation_id, trace_id, lane,
                delay_s, not_before, created_at, attempts, max_attempts, extra)"""

_INSERT_NEW: Final = f"""
    with keys as (
        insert into payonce.idempotency_keys (queue, key, message_id) select queue, key, message_id from {_KEYS}
    )
    {_INTO_MESSAGES}"""

_INSERT_ONCE: Final = f"""
    with fresh as ({TAKE_KEYS.format(keyed=_KEYS)})
    {_INTO_MESSAGES}
    where idempotency_key is null or id in (select message_id from fresh)
    on conflict (id) do nothing
    returning id"""
