"""What PostgreSQL knows of every queue, wherever its messages lie: its policy, its limit, and whether it is paused."""

from collections.abc import Sequence

import asyncpg
import msgspec

from payonce.engine.audit import note
from payonce.engine.database import Connection
from payonce.engine.policy import Policy
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid

log = get_logger(__name__)


def check_limits(policies: Sequence[Policy]) -> None:
    """Queues that share a limit must agree on its numbers; which of two should hold cannot be guessed."""
    stated: dict[str, Policy] = {}
    for policy in policies:
        if policy.limit_name is None or (policy.concurrency is None and policy.rate is None):
            continue
        other = stated.setdefault(policy.limit_name, policy)
        if (other.concurrency, other.rate, other.burst) != (policy.concurrency, policy.rate, policy.burst):
            raise Invalid(
                f"queues {other.queue} and {policy.queue} share the limit {policy.limit_name} and state different "
                "numbers for it; state them once, or the same in both"
            )


async def declare_queue(connection: Connection, policy: Policy, backend: str) -> None:
    """What an operator set (paused) stays. The queue's row is locked until the caller's transaction ends."""
    if policy.limit_name is not None:
        changed = await connection.fetchval(
            """
            insert into payonce.limits as known (name, concurrency, rate, burst) values ($1, $2, $3, $4)
            on conflict (name) do update
                set concurrency = excluded.concurrency, rate = excluded.rate, burst = excluded.burst
                where (known.concurrency, known.rate, known.burst) is distinct from ($2, $3, $4)
                    and ($2::integer is not null or $3::float8 is not null)
            returning xmax <> 0
            """,
            policy.limit_name, policy.concurrency, policy.rate, policy.burst,
        )  # fmt: skip
        if changed:
            # Meant after a change of settings; told, because another process may still state the old numbers.
            log.warning("limit_changed", limit=policy.limit_name, queue=policy.queue,
                        concurrency=policy.concurrency, rate=policy.rate, burst=policy.burst)  # fmt: skip
    await connection.execute(
        """
        insert into payonce.queues as known (name, limit_name, lease_s, key_retention_s, log, policy, backend)
        values ($1, $2, $3, $4, $5, $6::json, $7)
        on conflict (name) do update set limit_name = excluded.limit_name, lease_s = excluded.lease_s,
            key_retention_s = excluded.key_retention_s, log = excluded.log, policy = excluded.policy,
            backend = excluded.backend
        """,
        policy.queue,
        policy.limit_name,
        policy.lease_s,
        policy.key_retention_s,
        policy.log,
        msgspec.json.encode(policy.described()).decode(),
        backend,
    )


async def queue_names(source: asyncpg.Pool | Connection) -> list[str]:
    return [row["name"] for row in await source.fetch("select name from payonce.queues order by name")]


async def claimed_queues(source: asyncpg.Pool | Connection) -> list[str]:
    """Those that workers take from; the others are brought by a task service, and lie nowhere else."""
    rows = await source.fetch("select name from payonce.queues where backend <> 'cloudtasks' order by name")
    return [row["name"] for row in rows]


async def check_known(source: asyncpg.Pool | Connection, queue: str) -> None:
    if not await source.fetchval("select exists (select from payonce.queues where name = $1)", queue):
        raise await unknown_queue(source, queue)


async def unknown_queue(source: asyncpg.Pool | Connection, queue: str) -> Invalid:
    names = await queue_names(source)
    listed = f"known are: {', '.join(names)}" if names else "none is declared yet: start a service first"
    return Invalid(f"there is no queue {queue!r}; {listed}")


async def set_paused(connection: Connection, queue: str, reason: str | None, by: str) -> None:
    """In the caller's transaction, until whose end nobody else changes or declares the queue. None: not paused."""
    await check_known(connection, queue)
    await connection.execute(
        "update payonce.queues set paused = $2, paused_reason = $3 where name = $1", queue, reason is not None, reason
    )
    said = "resumed" if reason is None else f"paused: {reason}"
    await note(connection, "queues.pause", queue, said, actor=by)
