"""Operations on queues that all backends share."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import asyncpg

from payonce.engine.database.connections import Connection
from payonce.engine.messages.job_log import insert_runs
from payonce.engine.messages.model import State
from payonce.kit.outcomes import Invalid

COUNT_MAX: Final = 1_000_000
"""Depths and filters count up to this, so that inspecting a queue of ten million messages stays cheap."""
CHANGE_BATCH: Final = 1_000
"""Redrive and purge use transactions of this many rows."""
SAMPLES: Final = 5
PEEK_MAX: Final = 1_000

PURGED_TO_JOB_LOG: Final = (
    insert_runs("gone", "gone", status="'failed'", attempts="gone.attempts", last_error="'purged by ' || $2")
    + " returning message_id"
)
"""Logs each row deleted in the CTE `gone`; $2 is the operator's name."""


def check_page(limit: int) -> None:
    if not 1 <= limit <= PEEK_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {PEEK_MAX}")


def check_purged(state: State) -> None:
    if state is State.LEASED:
        raise Invalid("leased messages cannot be purged; pause the queue and let them finish")


def has_open_effects(table: str) -> str:
    return f"""exists (
    select from payonce.effects e where e.message_id = {table}.id and e.state in ('intended', 'unknown', 'review'))"""


def is_in_review(table: str) -> str:
    """An SQL condition: an effect of the message in this table's row waits for an operator."""
    return f"exists (select from payonce.effects e where e.message_id = {table}.id and e.state = 'review')"


async def in_parts(
    pool: asyncpg.Pool,
    some: Callable[[Connection, datetime], Awaitable[int | None]],
    limit: int | None = None,
    begun_at: datetime | None = None,
) -> int:
    """Calls `some` until it returns None or the limit is reached, each time in a new transaction, and passes it the
    time at which the whole operation began. Returns the sum of the results."""
    begun_at = begun_at or await pool.fetchval("select payonce.due_now()")
    count = 0
    async with pool.acquire() as connection:
        while limit is None or count < limit:
            done = await some(connection, begun_at)
            if done is None:
                break
            count += done
    return count
