"""What the operators' hands on queues have in common, wherever the messages lie."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import asyncpg

from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import State
from payonce.kit.outcomes import Invalid

COUNT_MAX: Final = 1_000_000
"""Depths and filters stop here, so that looking at a queue of ten million stays cheap."""
CHANGE_BATCH: Final = 1_000
"""Redrive and purge work in transactions of this many rows."""
SAMPLES: Final = 5
PEEK_MAX: Final = 1_000

PURGED_TO_JOB_LOG: Final = """
    insert into payonce.job_logs (queue, message_id, correlation_id, idempotency_key, trace_id, status,
                                  attempts, last_error, action, created_at, updated_at)
    select queue, id, correlation_id, idempotency_key, trace_id, 'failed', attempts, 'purged by ' || $2,
           action, payonce.due_now(), payonce.due_now()
    from gone returning message_id"""
"""A row for each that was deleted in `gone`, so that nothing vanishes untold; $2 is who did it."""


def check_page(limit: int) -> None:
    if not 1 <= limit <= PEEK_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {PEEK_MAX}")


def check_purged(state: State) -> None:
    if state is State.LEASED:
        raise Invalid("messages that are being worked on cannot be purged; pause the queue and let them end")


def has_open_effects(table: str) -> str:
    """In SQL, of the message in a row of this table."""
    return f"""exists (
    select from payonce.effects e where e.message_id = {table}.id and e.state in ('intended', 'unknown', 'review'))"""


def is_in_review(table: str) -> str:
    """In SQL, of the message in a row of this table: whether an effect of it waits for a person."""
    return f"exists (select from payonce.effects e where e.message_id = {table}.id and e.state = 'review')"


async def in_parts(
    pool: asyncpg.Pool,
    some: Callable[[Connection, datetime], Awaitable[int | None]],
    limit: int | None = None,
    begun_at: datetime | None = None,
) -> int:
    """`some` until it says None or the limit is reached, each time in a transaction of its own, with the time at which
    it all began."""
    begun_at = begun_at or await pool.fetchval("select payonce.due_now()")
    count = 0
    async with pool.acquire() as connection:
        while limit is None or count < limit:
            done = await some(connection, begun_at)
            if done is None:
                break
            count += done
    return count
