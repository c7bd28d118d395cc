"""Taking a queue out of Redis: everything gets its row in the outbox, and then the copies go."""

from collections.abc import Sequence
from typing import Final

import msgspec

from payonce.engine.database import Database, settled_transaction
from payonce.engine.idempotency import take_keys
from payonce.engine.model import State
from payonce.engine.outbox import put_out
from payonce.engine.queue import Filter
from payonce.queues.redis import scripts
from payonce.queues.redis.admin import RedisAdmin
from payonce.queues.redis.kept import RELAY
from payonce.queues.redis.looking import Found
from payonce.queues.redis.store import RedisStore

STATES: Final = (State.READY, State.ALONE, State.PARKED)
KEY_TTL_US: Final = 86_400 * 1_000_000


async def keep_all(database: Database, admin: RedisAdmin, queue: str) -> None:
    """What Redis alone has is from now on PostgreSQL's as well: attempts, time, reason and idempotency key."""
    for state in STATES:
        async for page in admin.matching(queue, state, Filter()):
            if page:
                await _keep(database, page, state)


async def _keep(database: Database, page: Sequence[Found], state: State) -> None:
    messages = [
        msgspec.structs.replace(found.stored.message, not_before=found.stored.ready_at, delay_s=0.0)
        for found in page
        if found.readable
    ]
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        await take_keys(connection, messages)
        await put_out(connection, RELAY, messages)
        if state is State.PARKED:
            await connection.execute(
                """
                update payonce.outbox entry
                set state = 'parked', try_at = parked.at, last_error = parked.reason, token = token + 1,
                    lease_until = null
                from unnest($2::uuid[], $3::timestamptz[], $4::text[]) as parked (id, at, reason)
                where entry.relay = $1 and entry.id = parked.id and entry.state <> 'parked'
                """,
                RELAY,
                [found.stored.message.id for found in page],
                [found.stored.ready_at for found in page],
                [found.stored.last_error for found in page],
            )


async def drop_all(store: RedisStore, admin: RedisAdmin, queue: str) -> None:
    """What cannot be read is in nobody else's hands, and stays."""
    for state in STATES:
        pages = [page async for page in admin.matching(queue, state, Filter())]
        for page in pages:
            words: list[str | bytes | int] = [state.value, KEY_TTL_US]
            for found in page:
                message = found.stored.message
                if found.readable:
                    words += (found.id, found.body, found.known, message.idempotency_key or "", "")
            await store.run(scripts.PURGE, queue, *words)
