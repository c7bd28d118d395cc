"""Moves queues between backends: attempts, delays and reasons are kept, and no message is in both."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import PullQueue
from payonce.engine.outbox import declare_relays, relay_step
from payonce.engine.outbox.durable_copy import CONSUMER_PREFIX
from payonce.kit.outcomes import Invalid
from payonce.queues.declarations import claimed_queues
from payonce.queues.postgres import PostgresQueue
from payonce.queues.redis import RedisAdmin, RedisQueue, RedisRelay, RedisStore
from payonce.queues.redis.idempotency_keys import keys_to_postgres, keys_to_redis
from payonce.queues.redis.refill import refill
from payonce.queues.redis.withdrawal import Withdrawal

BATCH: Final = 1_000
WORKER: Final = "move"


async def move_to_redis(database: Database, notifier: Notifier, store: RedisStore) -> int:
    """Moves messages into the outbox, one batch per transaction; the relay then delivers them to Redis. Returns their
    number."""
    relay = RedisRelay(store)
    await declare_relays(database, [relay])
    for queue in await claimed_queues(database.engine):
        await _reap(PostgresQueue(database, notifier, await _policy(database, queue), WORKER))
    await _refuse_leased(database)
    moved = 0
    async with database.engine.acquire() as connection:
        while count := await _move_batch(database, connection, _TO_OUTBOX):
            moved += count
        await keys_to_redis(database, store)
        await connection.execute("update payonce.queues set backend = 'redis' where backend <> 'cloudtasks'")
    for queue in await claimed_queues(database.engine):
        await store.declare(queue, unused_limit=True)
    while await relay_step(database, relay):
        pass
    await refill(store)
    return moved


async def move_to_postgres(database: Database, notifier: Notifier, store: RedisStore) -> int:
    """Gives each message that only Redis has a row in the outbox, then turns rows into messages. Returns their
    number."""
    relay, admin = RedisRelay(store), RedisAdmin(store, notifier)
    await declare_relays(database, [relay])
    queues = await claimed_queues(database.engine)
    for queue in queues:
        await _reap(RedisQueue(store, notifier, await _policy(database, queue), WORKER))
        depth = await admin.depth(queue)
        if depth.leased:
            raise Invalid(f"{depth.leased} messages of queue {queue} are leased; stop the workers and try again")
    moved = 0
    for queue in queues:
        await keys_to_postgres(store, queue)
        moved += await Withdrawal(database, store, admin, queue, _move_these).run()
    async with database.engine.acquire() as connection:
        # Messages that Redis has not received yet, or has lost.
        while count := await _move_batch(database, connection, _ANY_TO_MESSAGES):
            moved += count
        await connection.execute("update payonce.queues set backend = 'postgres' where backend <> 'cloudtasks'")
    notifier.notify(queues)
    return moved


async def _reap(queue: PullQueue) -> None:
    """Releases the leases of dead workers."""
    while await queue.reap():
        pass


async def _policy(database: Database, queue: str) -> Policy:
    """The parts of the policy that matter for releasing leases."""
    limit = await database.engine.fetchval("select limit_name from payonce.queues where name = $1", queue)
    return Policy(queue, limit=limit)


async def _move_these(connection: Connection, ids: Sequence[UUID]) -> int:
    return len(await connection.fetch(_THESE_TO_MESSAGES, list(ids)))


async def _refuse_leased(database: Database) -> None:
    row = await database.engine.fetchrow(
        "select queue, count(*) from payonce.messages where state = 'leased' group by queue order by queue limit 1"
    )
    if row is not None:
        raise Invalid(f"{row['count']} messages of queue {row['queue']} are leased; stop the workers and try again")


async def _move_batch(database: Database, connection: Connection, statement: str) -> int:
    async with settled_transaction(database, connection):
        return len(await connection.fetch(statement, BATCH))


_COLUMNS: Final = """id, queue, action, correlation_id, idempotency_key, trace_id, lane, created_at, attempts,
    max_attempts, payload, extra, last_error, first_attempt_at"""

_TO_OUTBOX: Final = f"""
    with gone as (
        delete from payonce.messages where id in (
            select id from payonce.messages where state <> 'leased' order by id limit $1 for update skip locked)
        returning {_COLUMNS}, state, ready_at
    )
    insert into payonce.outbox (relay, state, ready_at, try_at, {_COLUMNS})
    select 'redis', case state when 'parked' then 'parked' else 'waiting' end, ready_at,
           case state when 'parked' then ready_at else payonce.due_now() end, {_COLUMNS}
    from gone returning id"""

# Messages recorded in the inbox are settled: they only leave the outbox.
_TO_MESSAGES: Final = f"""
    with gone as (
        delete from payonce.outbox where relay = 'redis' and id = any(array({{chosen}}))
        returning {_COLUMNS}, state, ready_at, try_at
    ), moved as (
        insert into payonce.messages (state, ready_at, {_COLUMNS})
        select case state when 'parked' then 'parked' else 'ready' end,
               case state when 'parked' then try_at else ready_at end, {_COLUMNS}
        from gone where not exists (
            select from payonce.inbox known
            where known.consumer = '{CONSUMER_PREFIX}' || gone.queue and known.id = gone.id::text)
        on conflict (id) do nothing
    )
    select id from gone"""
_THESE_TO_MESSAGES: Final = _TO_MESSAGES.format(
    chosen="select id from payonce.outbox where relay = 'redis' and id = any($1::uuid[]) order by id for update"
)
_ANY_TO_MESSAGES: Final = _TO_MESSAGES.format(
    chosen="select id from payonce.outbox where relay = 'redis' order by id limit $1 for update skip locked"
)
