"""Declares queues in PostgreSQL, whatever their backend: policy and limit."""

from collections.abc import Collection, Sequence
from typing import Final

import asyncpg
import msgspec

from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid

PUT_MAX_MESSAGES: Final = 100_000
"""One put is one transaction; a larger one would hold locks and a snapshot for too long."""

log = get_logger(__name__)


def check_put_size(messages: Sequence[Message]) -> None:
    """Raises Invalid for too many messages in one put."""
    if len(messages) > PUT_MAX_MESSAGES:
        raise Invalid(f"{len(messages):,} messages in one put; put at most {PUT_MAX_MESSAGES:,} at a time")


def undeclared(queues: Collection[str]) -> Invalid:
    """The error for messages of queues that were never declared."""
    return Invalid(f"there is no queue {min(queues)!r}; declare its policy and start its service first")


def check_limits(policies: Sequence[Policy]) -> None:
    """Raises Invalid if queues that share a limit state different numbers for it."""
    stated: dict[str, Policy] = {}
    for policy in policies:
        if policy.limit_name is None or (policy.concurrency is None and policy.rate is None):
            continue
        other = stated.setdefault(policy.limit_name, policy)
        if (other.concurrency, other.rate, other.burst) != (policy.concurrency, policy.rate, policy.burst):
            raise Invalid(
                f"queues {other.queue} and {policy.queue} share the limit {policy.limit_name} but state different "
                "numbers for it; state them in one policy, or equally in both"
            )


async def declare_queues(connection: Connection, policies: Sequence[Policy], backend: str) -> set[str]:
    """Declares queues and their limits; returns the names of new limits.

    An operator's pause stays in force, and so do the actions declared by other releases. The queues' rows stay locked
    until the caller's transaction ends.
    """
    # Limits before queues and each by name, so that two processes that start together cannot deadlock.
    new_limits: set[str] = set()
    for policy in sorted(policies, key=lambda policy: policy.limit_name or ""):
        if policy.limit_name is not None and await _declare_limit(connection, policy):
            new_limits.add(policy.limit_name)
    await connection.executemany(
        """
        insert into payonce.queues as known (name, limit_name, lease_s, key_retention_s, log, policy, backend, actions)
        values ($1, $2, $3, $4, $5, $6::json, $7, $8)
        on conflict (name) do update set limit_name = excluded.limit_name, lease_s = excluded.lease_s,
            key_retention_s = excluded.key_retention_s, log = excluded.log, policy = excluded.policy,
            backend = excluded.backend,
            actions = array(select distinct unnest(known.actions || excluded.actions) order by 1)
        """,
        [
            (
                policy.queue,
                policy.limit_name,
                policy.lease_s,
                policy.key_retention_s,
                policy.log,
                msgspec.json.encode(policy.described()).decode(),
                backend,
                [] if policy.contract is None else policy.contract.actions,
            )
            for policy in sorted(policies, key=lambda policy: policy.queue)
        ],
    )
    return new_limits


async def _declare_limit(connection: Connection, policy: Policy) -> bool:
    """Returns whether the limit is new."""
    changed: bool | None = await connection.fetchval(
        """
        insert into payonce.limits as known (name, concurrency, rate, burst) values ($1, $2, $3, $4)
        on conflict (name) do update
            set concurrency = excluded.concurrency, rate = excluded.rate, burst = excluded.burst
            where (known.concurrency, known.rate, known.burst) is distinct from ($2, $3, $4)
                and ($2::integer is not null or $3::float8 is not null)
        returning xmax <> 0
        """,
        policy.limit_name,
        policy.concurrency,
        policy.rate,
        policy.burst,
    )
    if changed:
        # Expected after a change of settings; logged because another process may still declare the old numbers.
        log.warning(
            "limit_changed",
            limit=policy.limit_name,
            queue=policy.queue,
            concurrency=policy.concurrency,
            rate=policy.rate,
            burst=policy.burst,
        )
    return changed is False


async def claimed_queues(source: asyncpg.Pool | Connection) -> list[str]:
    """Queues that workers claim from, as opposed to those pushed by a task service."""
    rows = await source.fetch("select name from payonce.queues where backend <> 'cloudtasks' order by name")
    return [row["name"] for row in rows]
