"""Idempotency keys: taken with a message, marked to expire once the message is gone, and then deleted.

Settles do not touch keys, which keeps keys off the hot path. A key whose message is found gone late lives longer, never
shorter. The scan uses the primary key: an index of unexpired keys cost the database a quarter more in a bulk put,
measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Final
from uuid import UUID

from payonce.engine.database.batches import in_batches
from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.model import Message

RETENTION_DEFAULT_S: Final = 86_400.0
"""For keys of queues that are no longer declared."""
SLICE_KEYS: Final = 10_000
"""Keys per statement: 70 to 160 ms among a million keys of live messages, measured."""
SLICES_MAX: Final = 20
"""Slices in a row while many keys expire. 200,000 keys took 6 to 8 s, measured; with pauses this makes 10,000 a
second."""
SLICE_WORTHWHILE: Final = SLICE_KEYS // 100
"""A slice with fewer expired keys ends the tick, so that a million waiting messages cost one slice at a time."""
FORGET_KEYS: Final = 5_000
FORGET_BATCHES_MAX: Final = 40


def keyed(messages: Sequence[Message]) -> list[tuple[str, str, UUID]]:
    """Keys in order, so that two bulk puts with the same keys wait for each other instead of deadlocking. Messages with
    the same key keep their order: the first one counts."""
    rows = [
        (message.queue, message.idempotency_key, message.id)
        for message in messages
        if message.idempotency_key is not None
    ]
    rows.sort(key=itemgetter(0, 1))
    return rows


# The first message of a key counts, in the store and within this batch. An expired key is taken as if it were new.
TAKE_KEYS: Final = """
    insert into payonce.idempotency_keys as known (queue, key, message_id)
    select distinct on (queue, key) queue, key, message_id from {keyed}
    order by queue, key, position
    on conflict (queue, key) do update set message_id = excluded.message_id, expires_at = null
        where known.expires_at <= payonce.due_now()
    returning message_id"""
"""`{keyed}` stands for the columns queue, key, message_id and position."""


async def take_keys(connection: Connection, messages: Sequence[Message]) -> set[UUID]:
    """Ids of the messages with keys that were free and are now theirs, if the caller's transaction commits."""
    rows = keyed(messages)
    if not rows:
        return set()
    source = "unnest($1::text[], $2::text[], $3::uuid[]) with ordinality as keyed (queue, key, message_id, position)"
    taken = await connection.fetch(TAKE_KEYS.format(keyed=source), *map(list, zip(*rows, strict=True)))
    return {row["message_id"] for row in taken}


async def first_ids(connection: Connection, messages: Sequence[Message], inserted: set[UUID]) -> list[UUID]:
    """The ids under which repeated keys were first accepted. A repeated id without a key stands for itself."""
    repeated = [message for message in messages if message.id not in inserted and message.idempotency_key is not None]
    found = await connection.fetch(
        """
        select known.queue, known.key, known.message_id
        from unnest($1::text[], $2::text[]) as asked (queue, key)
        join payonce.idempotency_keys known using (queue, key)
        """,
        [message.queue for message in repeated],
        [message.idempotency_key for message in repeated],
    )
    # By name: with several runs, a row has one more column.
    first = {(row["queue"], row["key"]): row["message_id"] for row in found}
    return [
        message.id if message.id in inserted else first.get((message.queue, message.idempotency_key), message.id)
        for message in messages
    ]


@dataclass
class Walk:
    """The start of the next slice; empty at the beginning of a round.

    It is lost with the process, which costs one more round over keys already checked.
    """

    queue: str = ""
    key: str = ""


async def expire_keys(database: Database, walk: Walk | None = None) -> int:
    """Sets the expiry of keys whose message is gone, from the current position. Returns the number of keys."""
    walk = Walk() if walk is None else walk
    found = 0
    for _ in range(SLICES_MAX):
        expired = await _expire_slice(database, walk)
        found += expired
        if expired < SLICE_WORTHWHILE or walk == Walk():
            break
    return found


async def forget_keys(database: Database) -> int:
    """Deletes expired keys. Returns their number."""
    return await in_batches(partial(_forget_batch, database), FORGET_KEYS, FORGET_BATCHES_MAX)


async def _expire_slice(database: Database, walk: Walk) -> int:
    # A key and its message are inserted in one transaction and become visible together. So to the single snapshot of
    # this statement a key without a message belongs to a settled or purged message, never to one about to appear. A put
    # may meanwhile give an expired key to a new message; locking reads the newest row, which then has another message.
    # SKIP LOCKED: a put that checks the key is not waited for, so nothing can deadlock.
    row = await database.engine.fetchrow(
        """
        with slice as (
            select queue, key, message_id, expires_at from payonce.idempotency_keys
            where (queue, key) > ($1, $2)
            order by queue, key limit $3
        ), gone as (
            select queue, key, message_id from slice
            where expires_at is null and not exists (select from payonce.messages m where m.id = slice.message_id)
              and not exists (
                  select from payonce.relays r join payonce.outbox o on o.relay = r.name and o.id = slice.message_id)
        ), mine as (
            select known.queue, known.key from gone
            join payonce.idempotency_keys known on known.queue = gone.queue and known.key = gone.key
                and known.message_id = gone.message_id and known.expires_at is null
            for no key update of known skip locked
        ), expired as (
            update payonce.idempotency_keys known
            set expires_at = payonce.due_now() + make_interval(secs => coalesce(
                (select key_retention_s from payonce.queues where name = known.queue), $4))
            from mine where known.queue = mine.queue and known.key = mine.key
            returning true
        )
        select (select count(*) from expired) as expired, (select count(*) from slice) as seen, last.queue, last.key
        from (values (true)) as always left join (
            select queue, key from slice order by queue desc, key desc limit 1
        ) last on true
        """,
        walk.queue,
        walk.key,
        SLICE_KEYS,
        RETENTION_DEFAULT_S,
    )
    assert row is not None
    at_end = row["seen"] < SLICE_KEYS
    walk.queue, walk.key = ("", "") if at_end else (row["queue"], row["key"])
    return int(row["expired"])


async def _forget_batch(database: Database) -> int:
    # A put that takes over an expired key holds its row: it is skipped here, or seen as unexpired once the put has
    # committed. A put that meets a key deleted here inserts it anew.
    forgotten = await database.engine.fetchval(
        """
        with over as (
            select queue, key from payonce.idempotency_keys
            where expires_at <= payonce.due_now()
            order by expires_at limit $1 for update skip locked
        ), forgotten as (
            delete from payonce.idempotency_keys known using over
            where known.queue = over.queue and known.key = over.key
            returning true
        )
        select count(*) from forgotten
        """,
        FORGET_KEYS,
    )
    return int(forgotten)
