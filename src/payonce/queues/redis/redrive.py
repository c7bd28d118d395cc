"""Lets parked messages start over in both stores. PostgreSQL decides about kept messages; settled ones stay settled."""

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
from payonce.queues.redis.queries import StoredCopy
from payonce.queues.redis.store import RedisStore

ROWS_MAX: Final = 1_000_000
"""Limit of parked rows per redrive."""


@dataclass
class ParkedCopies:
    """Parked copies in Redis, by what a redrive does to them."""

    parked: list[StoredCopy] = field(default_factory=list)
    """Parked in PostgreSQL as well."""
    woken: list[StoredCopy] = field(default_factory=list)
    """Already woken in PostgreSQL, which Redis does not know."""
    direct: list[StoredCopy] = field(default_factory=list)
    """Only in Redis."""
    over: list[StoredCopy] = field(default_factory=list)


async def parked_rows(source: asyncpg.Pool | Connection, queue: str, which: Filter, begun_at: datetime) -> list[UUID]:
    """Ids of messages parked in PostgreSQL, whether or not Redis still has them."""
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


async def redrive_within(store: RedisStore, queue: str, page: Sequence[StoredCopy], within: Connection) -> set[UUID]:
    """Redrives in the caller's transaction; after its commit the relay delivers the messages. Returns the ids of those
    that start over."""
    copies = await _sort_copies(within, queue, page)
    started = await start_over(within, _ids(copies.parked))
    woken = await bring_again(within, _ids(copies.woken))
    await adopt(within, [found.stored.message for found in copies.direct])
    # Checked outside the caller's transaction, which may yet roll back.
    await drop_ended(store, queue, copies.over)
    return started | woken | set(_ids(copies.direct))


async def redrive_now(store: RedisStore, queue: str, page: Sequence[StoredCopy]) -> set[UUID]:
    async with store.database.engine.acquire() as connection:
        copies = await _sort_copies(connection, queue, page)
        started = await start_over(connection, _ids(copies.parked))
        woken = await bring_again(connection, _ids(copies.woken))
    moved = [found for found in (*copies.parked, *copies.woken) if found.stored.message.id in started | woken]
    # The relay may have delivered them first.
    await _redrive(store, queue, moved)
    direct = await _redrive(store, queue, copies.direct)
    await drop_ended(store, queue, copies.over)
    return started | woken | direct


async def drop_ended(store: RedisStore, queue: str, over: Sequence[StoredCopy]) -> None:
    if not over:
        return
    known = await known_copies(store.database.engine, queue, _ids(over))
    ended = [found.id for found in over if known.are_over(found.stored.message.id, found.mark)]
    if ended:
        await store.run(scripts.DROP_PARKED, queue, *ended)


async def _sort_copies(connection: Connection, queue: str, page: Sequence[StoredCopy]) -> ParkedCopies:
    known, copies = await known_copies(connection, queue, _ids(page)), ParkedCopies()
    for found in page:
        message_id = found.stored.message.id
        state = known.states.get(message_id)
        if known.are_over(message_id, found.mark):
            copies.over.append(found)
        elif state is None:
            copies.direct.append(found)
        else:
            (copies.parked if state is Entry.PARKED else copies.woken).append(found)
    return copies


async def _redrive(store: RedisStore, queue: str, page: Sequence[StoredCopy]) -> set[UUID]:
    words: list[str | bytes] = []
    for found in page:
        [fresh] = encode_bodies([msgspec.structs.replace(found.stored.message, attempts=0)])
        words += (found.id, found.body, fresh)
    if not words:
        return set()
    moved = {each.decode() for each in await store.run(scripts.REDRIVE, queue, *words)}
    return {found.stored.message.id for found in page if found.id in moved}


def _ids(page: Sequence[StoredCopy]) -> list[UUID]:
    return [found.stored.message.id for found in page]
