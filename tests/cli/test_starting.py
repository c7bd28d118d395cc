"""What a process does before it begins to work."""

import asyncpg
import pytest

from payonce.app import App
from payonce.settings import load_settings
from payonce.testing import ScratchDatabase

PARTITIONS = """
    select count(*) from pg_inherits where inhparent = 'payonce.job_logs'::regclass
      and inhrelid = to_regclass('payonce.job_logs_' || to_char(payonce.due_now() at time zone 'UTC', 'YYYYMMDD'))
"""


async def test_the_job_log_has_todays_partition_before_work_begins(
    database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.service_url)
    owner = await asyncpg.connect(database.owner_url)
    try:
        assert await owner.fetchval(PARTITIONS) == 0
        async with App.open(load_settings()):
            assert await owner.fetchval(PARTITIONS) == 0, "a command that only looks makes none"
        async with App.open(load_settings(), ["tally.worker"]) as app:
            assert await owner.fetchval(PARTITIONS) == 1
            assert not app.loops, "nothing works yet"
    finally:
        await owner.close()
