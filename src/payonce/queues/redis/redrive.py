"""Letting parked messages start over in both stores. PostgreSQL decides about what it keeps; what ended stays so."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.database.connections import Connection
from payonce.engine.messages.ports import Filter
from payonce.engine.outbox import State as Entry
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import encode_bodies
from payonce.queues.redis.durable_copy import RELAY, adopt, bring_again, known_copies, start_over
from payonce.queues.redis.queries import Found
from payonce.queues.redis.store import RedisStore

ROWS_MAX: Final = 1_000_000
"""A redrive looks at no more parked rows than this."""


@dataclass
class Parts:
    """Copies in Redis, by what is to become of them."""

    parked: list[Found] = field(default_factory=list)
    """PostgreSQL has them parked as well."""
    woken: list[Found] = field(default_factory=list)
    """PostgreSQL has woken them already, and Redis does not know."""
    direct: list[Found] = field(default_factory=list)
    """Redis alone has them."""
    over: list[Found] = field(default_factory=list)


async def parked_rows(source: asyncpg.Pool | Connection, queue: str, which: Filter, begun_at: datetime) -> list[UUID]:
    """What PostgreSQL has parked, whether or not Redis still shows it."""
    rows = await source.fetch(
        """
        select id from payonce.outbox
        where relay = $1 and queue = $2 and state = 'parked' and try_at <= $3
          and ($4::uuid[] is null or id = any($4)) and ($5::text is null or action = $5)
          and ($6::text is null or correlation_id = $6)
          and ($7::text is null or position($7 in coalesce(last_error, '')) > 0)
          and ($8::timestamptz is null or try_at >= $8) and ($9::timestamptz is null or try_at < $9)
        order by try_at, id limit $10
        """,
        RELAY,
        queue,
        begun_at,
        list(which.ids) or None,
        which.action,
        which.correlation_id,
        which.error_contains,
        which.parked_after,
        which.parked_before,
        ROWS_MAX,
    )
    return [row["id"] for row in rows]


async def redrive_within(store: RedisStore, queue: str, page: Sequence[Found], within: Connection) -> set[UUID]:
    """With the commit of the caller's transaction the relay brings them. Answers those that start over."""
    parts = await _parts(within, queue, page)
    started = await start_over(within, _ids(parts.parked))
    woken = await bring_again(within, _ids(parts.woken))
    await adopt(within, [found.stored.message for found in parts.direct])
    # The caller's transaction may yet undo what it has done itself.
    await drop_ended(store, queue, parts.over)
    return started | woken | set(_ids(parts.direct))


async def redrive_now(store: RedisStore, queue: str, page: Sequence[Found]) -> set[UUID]:
    async with store.database.engine.acquire() as connection:
        parts = await _parts(connection, queue, page)
        started = await start_over(connection, _ids(parts.parked))
        woken = await bring_again(connection, _ids(parts.woken))
    moved = [found for found in (*parts.parked, *parts.woken) if found.stored.message.id in started | woken]
    # The relay may be first; then it has brought them.
    await _redrive(store, queue, moved)
    direct = await _redrive(store, queue, parts.direct)
    await drop_ended(store, queue, parts.over)
    return started | woken | direct


async def drop_ended(store: RedisStore, queue: str, over: Sequence[Found]) -> None:
    if not over:
        return
    known = await known_copies(store.database.engine, queue, _ids(over))
    ended = [found.id for found in over if known.are_over(found.stored.message.id, found.mark)]
    if ended:
        await store.run(scripts.DROP_PARKED, queue, *ended)


async def _parts(connection: Connection, queue: str, page: Sequence[Found]) -> Parts:
    known, parts = await known_copies(connection, queue, _ids(page)), Parts()
    for found in page:
        message_id = found.stored.message.id
        state = known.states.get(message_id)
        if known.are_over(message_id, found.mark):
            parts.over.append(found)
        elif state is None:
            parts.direct.append(found)
        else:
            (parts.parked if state is Entry.PARKED else parts.woken).append(found)
    return parts


async def _redrive(store: RedisStore, queue: str, page: Sequence[Found]) -> set[UUID]:
    words: list[str | bytes] = []
    for found in page:
        [fresh] = encode_bodies([msgspec.structs.replace(found.stored.message, attempts=0)])
        words += (found.id, found.body, fresh)
    if not words:
        return set()
    moved = {each.decode() for each in await store.run(scripts.REDRIVE, queue, *words)}
    return {found.stored.message.id for found in page if found.id in moved}


def _ids(page: Sequence[Found]) -> list[UUID]:
    return [found.stored.message.id for found in page]
