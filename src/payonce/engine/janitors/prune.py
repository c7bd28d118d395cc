"""Creates and drops the daily partitions of the job log, and removes expired idempotency keys, commit tokens, inbox
ids, stored HTTP answers and webhook events. Runs in the leader only, but would do no harm elsewhere."""

from dataclasses import dataclass, field
from typing import Final

from payonce.engine.database.commits import forget_tokens
from payonce.engine.database.connections import Database
from payonce.engine.messages.idempotency import Walk, expire_keys, forget_keys
from payonce.engine.messages.inbox import forget_accepted
from payonce.engine.messages.requests import forget_answers
from payonce.engine.webhooks.retention import forget_events
from payonce.kit.outcomes import Invalid

KEEP_DAYS_DEFAULT: Final = 30
KEEP_DAYS_MAX: Final = 3_660
DAYS_AHEAD: Final = 2
"""Two nights may pass without a janitor before rows go to the default partition."""
PARTITION_LOCK_WAIT_MS: Final = 500
"""Changing partitions locks the log, and settles queue up behind a wait for a long reader, so the wait is short."""


@dataclass
class Prune:
    """The work of one tick, and the position in the keys between ticks."""

    database: Database
    keep_days: int = KEEP_DAYS_DEFAULT
    walk: Walk = field(default_factory=Walk)

    def __post_init__(self) -> None:
        if not 1 <= self.keep_days <= KEEP_DAYS_MAX:
            raise Invalid(f"keep_days is {self.keep_days}; the job log is kept 1 to {KEEP_DAYS_MAX} days")

    async def tick(self) -> None:
        # Keys come first: they must not wait for a log that a long reader keeps locked.
        await expire_keys(self.database, self.walk)
        await forget_keys(self.database)
        await forget_tokens(self.database)
        await forget_accepted(self.database)
        await forget_answers(self.database)
        await forget_events(self.database, self.keep_days)
        await add_partitions(self.database)
        await drop_partitions(self.database, self.keep_days)


async def add_partitions(database: Database) -> int:
    """Creates partitions for today and the days ahead, by the due clock. Returns the number created."""
    async with database.engine.acquire() as connection:
        missing = await connection.fetch(
            """
            select today + ahead as day
            from (select (payonce.due_now() at time zone 'UTC')::date as today) clock, generate_series(0, $1) as ahead
            where to_regclass('payonce.job_logs_' || to_char(today + ahead, 'YYYYMMDD')) is null
            """,
            DAYS_AHEAD,
        )
        for row in missing:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = {PARTITION_LOCK_WAIT_MS}")
                await connection.execute("select payonce.add_job_log_partition($1)", row["day"])
    return len(missing)


async def drop_partitions(database: Database, keep_days: int) -> int:
    """Drops partitions of days older than `keep_days`. Returns their number."""
    async with database.engine.acquire() as connection, connection.transaction():
        await connection.execute(f"set local lock_timeout = {PARTITION_LOCK_WAIT_MS}")
        dropped = await connection.fetchval(
            "select payonce.drop_job_logs_before((payonce.due_now() at time zone 'UTC')::date - $1::integer)", keep_days
        )
    return int(dropped)
