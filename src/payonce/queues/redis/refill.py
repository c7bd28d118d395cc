"""Restores from PostgreSQL what Redis has lost: after a wipe, the loss of a server, or a failover."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from payonce.engine.messages.rows import MESSAGE_COLUMNS, message_of
from payonce.engine.outbox import OverdueEntry, overdue_entries, put_back
from payonce.kit.log import get_logger
from payonce.queues.declarations import claimed_queues
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import encode_bodies
from payonce.queues.redis.durable_copy import RELAY, known_copies
from payonce.queues.redis.keys import paused_key
from payonce.queues.redis.store import RedisStore

PAGE: Final = 1_000
MEND_MAX: Final = 200_000
"""Deleted lists are not searched for in larger queues: the search would block the server for too long."""
US: Final = 1_000_000
REFILL_EVERY_S: Final = 5.0
WAKE_NAME: Final = "*refill"
"""Notified when Redis turns out to have lost a queue."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Refilled:
    """What was missing in Redis: messages put back to run, and parked ones restored."""

    put_back: int = 0
    parked: int = 0


async def refill(store: RedisStore, late_s: float = 0.0) -> Refilled:
    """Puts lost messages back, with PostgreSQL's attempts and due times. Parked ones are restored as parked.

    An entry is in Redis before it is marked as delivered, and leaves Redis after its row has changed: a delivered one
    that is absent is lost. One that is parked only in Redis was woken here before Redis parked it.
    """
    queues = await claimed_queues(store.database.engine)
    for queue in queues:
        await _declare(store, queue)
        [forgotten] = await store.run(scripts.MEND, queue, MEND_MAX)
        if forgotten:
            log.warning("redis_lost_messages", queue=queue, messages=forgotten)
    for queue in queues:
        await _drop_ended(store, queue)
    return Refilled(await _put_back(store, late_s), await _park_again(store))


async def _declare(store: RedisStore, queue: str) -> None:
    """Restores pause and limits, also when Redis has lost only its last write."""
    async with store.database.engine.acquire() as connection, connection.transaction():
        await store.declare(queue, connection)
        if not await connection.fetchval("select paused from payonce.queues where name = $1", queue):
            await store.command("DEL", paused_key(queue))


async def _drop_ended(store: RedisStore, queue: str) -> None:
    """Deletes parked copies of messages that were settled, purged or discarded, so that nobody redrives them."""
    skip, over = 0, []
    while True:
        seen, *fields = await store.run(scripts.PARKED, queue, skip, PAGE)
        marks = {UUID(fields[at].decode()): fields[at + 1].decode() for at in range(0, len(fields), 2)}
        known = await known_copies(store.database.engine, queue, list(marks))
        over += [str(message_id) for message_id, mark in marks.items() if known.are_over(message_id, mark)]
        skip += PAGE
        if seen < PAGE:
            break
    for start in range(0, len(over), PAGE):
        [dropped] = await store.run(scripts.DROP_PARKED, queue, *over[start : start + PAGE])
        log.info("parked_copies_dropped", queue=queue, messages=dropped)


async def _put_back(store: RedisStore, late_s: float) -> int:
    count, last = 0, None
    while page := await overdue_entries(store.database, RELAY, late_s=late_s, limit=PAGE, after=last):
        last = page[-1]
        absent = await _absent(store, page)
        if absent:
            count += await put_back(store.database, RELAY, absent)
    return count


async def _absent(store: RedisStore, page: Sequence[OverdueEntry]) -> list[OverdueEntry]:
    """Messages that Redis will not run: absent, or parked there."""
    by_queue: defaultdict[str, list[OverdueEntry]] = defaultdict(list)
    for kept in page:
        by_queue[kept.queue].append(kept)
    absent = []
    for queue, those in by_queue.items():
        [letters] = await store.run(scripts.PRESENT, queue, *(str(kept.id) for kept in those))
        absent += [kept for kept, letter in zip(those, letters.decode(), strict=True) if letter != "L"]
    return absent


async def _park_again(store: RedisStore) -> int:
    count, after = 0, None
    while rows := await store.database.engine.fetch(
        f"""
        select {MESSAGE_COLUMNS}, try_at, last_error from payonce.outbox
        where relay = $1 and state = 'parked' and ($3::timestamptz is null or (try_at, id) > ($3, $4::uuid))
        order by try_at, id limit $2
        """,
        RELAY,
        PAGE,
        *((None, None) if after is None else after),
    ):
        after = rows[-1]["try_at"], rows[-1]["id"]
        by_queue: defaultdict[str, list[str | bytes]] = defaultdict(list)
        for row in rows:
            message = message_of(row)
            [body] = encode_bodies([message])
            parked_us = str(round(row["try_at"].timestamp() * US))
            by_queue[message.queue] += (body, parked_us, message.lane or "", row["last_error"] or "")
        for queue, arguments in by_queue.items():
            [copied] = await store.run(scripts.PARK_COPY, queue, *arguments)
            count += copied
    return count
