"""A job log from before the column `info`: its rows are read as they were meant, and workers of that version keep
writing to it until they are replaced."""

from collections.abc import Iterator
from datetime import UTC, datetime

import asyncpg
import pytest

from payonce.engine.database.migrate import migrate
from payonce.engine.messages import job_log
from payonce.engine.messages.maintenance import Task, synthetic_message, write_maintenance_run
from payonce.testing import ScratchDatabase, ScratchServer
from tests.upgrade.released import HEAD, make_database_at

BEFORE = 18
DAYS = ("2026-02-01", "2026-02-02")
WRITTEN_BEFORE = """
    insert into payonce.job_logs (queue, message_id, correlation_id, status, attempts, last_error, action, worker,
                                  created_at, updated_at)
    values ('pay', gen_random_uuid(), 'pump_delayed_queues', 'success', 1, $1, 'pump_delayed_queues', 'w-1', $2, $2)
"""
"""As the previous version writes it."""


@pytest.fixture
def empty(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    database = postgres.empty_database()
    yield database
    postgres.drop(database)


async def test_old_rows_are_read_and_old_workers_write_on_in_every_partition(empty: ScratchDatabase) -> None:
    owner = await asyncpg.connect(empty.owner_url)
    await make_database_at(owner, BEFORE)
    await owner.execute(f"select payonce.add_job_log_partition('{DAYS[0]}')")
    moments = [datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC) for day in DAYS]
    await owner.execute(WRITTEN_BEFORE, "before", moments[0])
    old_worker = await owner.prepare(WRITTEN_BEFORE)
    await migrate(owner, HEAD)
    # The first day has its partition; the second is in the default one and moves to its own with all its columns.
    for moment in moments:
        await old_worker.fetch("while it is replaced", moment)
    entry = synthetic_message("pay", Task.PUMP)
    await write_maintenance_run(owner, entry, "after", "w-2")
    await owner.execute("update payonce.job_logs set created_at = $2 where message_id = $1", entry.id, moments[1])
    await owner.execute(f"select payonce.add_job_log_partition('{DAYS[1]}')")
    assert await owner.fetchval("select count(*) from payonce.job_logs_20260202") == 2
    runs = await job_log.recent(owner, correlation_id=Task.PUMP.value)
    assert [(run.last_error, run.info) for run in runs] == [
        (None, "after"),
        (None, "while it is replaced"),
        (None, "while it is replaced"),
        (None, "before"),
    ]
    [waits] = await job_log.recent(owner, status="retry")
    assert (waits.last_error, waits.info) == ("timeout", None)
    await owner.close()
