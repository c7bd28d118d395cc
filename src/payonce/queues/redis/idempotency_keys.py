"""Moves idempotency keys between the stores, so that accepted keys stay accepted."""

from collections import defaultdict
from typing import Final
from uuid import UUID

from payonce.engine.database.connections import Database
from payonce.engine.messages.idempotency import RETENTION_DEFAULT_S
from payonce.queues.redis import scripts
from payonce.queues.redis.store import RedisStore

PAGE: Final = 1_000
US: Final = 1_000_000


async def keys_to_postgres(store: RedisStore, queue: str) -> None:
    cursor = "0"
    while True:
        following, *fields = await store.run(scripts.LIST_KEYS, queue, cursor)
        keys = [field.decode("utf-8", "replace") for field in fields[0::3]]
        ids = [UUID(field.decode()) for field in fields[1::3]]
        left_s = [int(field) / US if field else None for field in fields[2::3]]
        await store.database.engine.execute(_TAKE, queue, keys, ids, left_s)
        cursor = following.decode()
        if cursor == "0":
            return


async def keys_to_redis(database: Database, store: RedisStore) -> None:
    after = "", ""
    while rows := await database.engine.fetch(_LIVE, *after, PAGE, RETENTION_DEFAULT_S):
        after = rows[-1]["queue"], rows[-1]["key"]
        by_queue: defaultdict[str, list[str]] = defaultdict(list)
        for row in rows:
            left = "" if row["left_s"] is None else str(max(0, round(row["left_s"] * US)))
            by_queue[row["queue"]] += (row["key"], str(row["message_id"]), left)
        for queue, words in by_queue.items():
            await store.run(scripts.TAKE_KEYS, queue, *words)


# Distinct keys: a scan may return one twice, and a statement cannot change a row twice.
_TAKE: Final = """
    insert into payonce.idempotency_keys as known (queue, key, message_id, expires_at)
    select distinct on (key) $1, key, message_id, payonce.due_now() + make_interval(secs => left_s)
    from unnest($2::text[], $3::uuid[], $4::float8[]) as taken (key, message_id, left_s) order by key
    on conflict (queue, key) do update set message_id = excluded.message_id, expires_at = excluded.expires_at
        where known.expires_at <= payonce.due_now()"""

# A key without an expiry whose message is gone expires after the retention time, counted from now.
_LIVE: Final = """
    select known.queue, known.key, known.message_id, extract(epoch from known.expires_at - payonce.due_now())::float8
           as left_s
    from (
        select slice.queue, slice.key, slice.message_id,
               case when expires_at is null
                     and not exists (select from payonce.messages m where m.id = slice.message_id)
                     and not exists (select from payonce.outbox o where o.relay = 'redis' and o.id = slice.message_id)
                    then payonce.due_now() + make_interval(secs => coalesce(
                        (select key_retention_s from payonce.queues where name = slice.queue), $4))
                    else expires_at end as expires_at
        from payonce.idempotency_keys slice
        where (slice.queue, slice.key) > ($1, $2) and exists (select from payonce.queues where name = slice.queue)
        order by slice.queue, slice.key limit $3
    ) known order by known.queue, known.key"""
