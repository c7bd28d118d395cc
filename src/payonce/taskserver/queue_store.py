"""The SQL of queues: created, changed, paused, purged, deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg
from asyncpg import Record

from payonce.engine.database.connections import Database
from payonce.taskserver.arithmetic import PACE_RECOVERY_S, Retrying
from payonce.taskserver.queues import Config, QueueRow

NAME_LOCK_S: Final = 3 * 86_400.0
"""How long Google may refuse the name of a deleted queue."""
PURGE_BATCH: Final = 5_000
_COLUMNS: Final = """id, name, state, rate, concurrency, max_attempts, max_retry_duration_s, min_backoff_s,
    max_backoff_s, max_doublings, logging_ratio, purged_at"""


@dataclass(frozen=True)
class QueueStore:
    database: Database

    async def find(self, name: str) -> QueueRow | None:
        row = await self.database.engine.fetchrow(
            f"select {_COLUMNS} from cloudtasks.queues where name = $1 and deleted_at is null", name
        )
        return None if row is None else queue_of(row)

    async def live(self) -> list[QueueRow]:
        """Every queue, for dispatchers."""
        rows = await self.database.work.fetch(
            f"select {_COLUMNS} from cloudtasks.queues where deleted_at is null order by id"
        )
        return [queue_of(row) for row in rows]

    async def page(self, location: str, states: Sequence[str], after: str, limit: int) -> list[QueueRow]:
        rows = await self.database.engine.fetch(
            f"""
            select {_COLUMNS} from cloudtasks.queues
            where name > $2 and starts_with(name, $1) and state = any ($3) and deleted_at is null
            order by name limit $4
            """,
            f"{location}/queues/",
            after,
            list(states),
            limit,
        )
        return [queue_of(row) for row in rows]

    async def create(self, name: str, config: Config, lock_s: float) -> QueueRow | None:
        """Creates a queue. None if the name is taken, or belonged to a queue deleted less than `lock_s` ago."""
        try:
            row = await self.database.engine.fetchrow(
                f"""
                insert into cloudtasks.queues (name, rate, burst, concurrency, max_attempts, max_retry_duration_s,
                    min_backoff_s, max_backoff_s, max_doublings, logging_ratio)
                select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10
                where not exists (
                    select from cloudtasks.queues
                    where name = $1 and deleted_at > payonce.due_now() - make_interval(secs => $11::float8))
                returning {_COLUMNS}
                """,
                name,
                *_values(config),
                lock_s,
            )
        except asyncpg.UniqueViolationError:
            return None
        return None if row is None else queue_of(row)

    async def change(self, queue: QueueRow, config: Config) -> QueueRow | None:
        """Updates a queue; None if it is gone."""
        row = await self.database.engine.fetchrow(
            f"""
            update cloudtasks.queues
            set rate = $2, burst = $3, concurrency = $4, max_attempts = $5, max_retry_duration_s = $6,
                min_backoff_s = $7, max_backoff_s = $8, max_doublings = $9, logging_ratio = $10
            where id = $1 and deleted_at is null
            returning {_COLUMNS}
            """,
            queue.id,
            *_values(config),
        )
        return None if row is None else queue_of(row)

    async def set_state(self, name: str, state: str) -> QueueRow | None:
        row = await self.database.engine.fetchrow(
            f"""
            update cloudtasks.queues set state = $2 where name = $1 and deleted_at is null returning {_COLUMNS}
            """,
            name,
            state,
        )
        return None if row is None else queue_of(row)

    async def delete(self, name: str) -> bool:
        """Deletes a queue; its tasks are no longer dispatched, and are deleted later."""
        gone = await self.database.engine.fetchval(
            """
            update cloudtasks.queues set deleted_at = payonce.due_now()
            where name = $1 and deleted_at is null returning true
            """,
            name,
        )
        return gone is not None

    async def purge(self, name: str) -> QueueRow | None:
        """Deletes all tasks that exist at the time of the call; running attempts continue, and their results are
        ignored."""
        row = await self.database.engine.fetchrow(
            f"""
            update cloudtasks.queues set purged_at = payonce.due_now()
            where name = $1 and deleted_at is null returning {_COLUMNS}
            """,
            name,
        )
        if row is None:
            return None
        queue = queue_of(row)
        after = ""
        while after is not None:
            after = await self.database.engine.fetchval(_PURGE, queue.id, after, queue.purged_at, PURGE_BATCH)
        return queue

    async def slow_down(self, queue_id: int, least: float, once_in_s: float) -> bool:
        """Halves the pace, at most once in `once_in_s`: a batch of bad responses counts as one sign."""
        return bool(
            await self.database.engine.fetchval(
                """
            update cloudtasks.queues
            set paced_at = payonce.due_now(), pace = greatest($2, least(1.0,
                    pace * 2 ^ least(20, floor(extract(epoch from payonce.due_now() - paced_at) / $3))) / 2)
            where id = $1 and paced_at <= payonce.due_now() - make_interval(secs => $4::float8)
            returning true
            """,
                queue_id,
                least,
                PACE_RECOVERY_S,
                once_in_s,
            )
        )


_PURGE: Final = """
    with purged as (
        select id, named from cloudtasks.tasks where queue_id = $1 and id > $2 and created_at <= $3
        order by id limit $4 for update
    ), gone as (
        delete from cloudtasks.tasks t using purged where t.queue_id = $1 and t.id = purged.id
    ), kept as (
        insert into cloudtasks.tombstones (queue_id, id, until)
        select $1, id, payonce.due_now() + interval '1 day' from purged where named
        on conflict (queue_id, id) do update set until = excluded.until
    )
    select max(id) from purged
"""


def queue_of(row: Record) -> QueueRow:
    retrying = Retrying(
        row["max_attempts"],
        row["max_retry_duration_s"],
        row["min_backoff_s"],
        row["max_backoff_s"],
        row["max_doublings"],
    )
    config = Config(row["rate"], row["concurrency"], retrying, row["logging_ratio"])
    return QueueRow(row["id"], row["name"], row["state"], config, row["purged_at"])


def _values(config: Config) -> tuple[object, ...]:
    retrying = config.retrying
    return (
        config.rate,
        config.burst,
        config.concurrency,
        retrying.max_attempts,
        retrying.max_retry_duration_s,
        retrying.min_backoff_s,
        retrying.max_backoff_s,
        retrying.max_doublings,
        config.logging_ratio,
    )


async def remember_key(database: Database, kid: str, public_key: str, keep_s: float) -> None:
    """Publishes the public half of a signing key. Repeated while its server lives: keys not renewed for `keep_s` are
    deleted."""
    await database.work.execute(
        "delete from cloudtasks.signing_keys where created_at < payonce.due_now() - make_interval(secs => $1::float8)",
        keep_s,
    )
    await database.work.execute(
        """
        insert into cloudtasks.signing_keys (kid, public_key) values ($1, $2)
        on conflict (kid) do update set created_at = payonce.due_now()
        """,
        kid,
        public_key,
    )
