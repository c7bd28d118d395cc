"""What a process does before it begins to work."""

import asyncpg
import pytest

from payonce.app.process import App
from payonce.http.health import detailed_of
from payonce.kit.outcomes import Unavailable
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


async def test_a_process_does_not_start_on_a_database_that_may_lose_commits(
    database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.service_url)
    monkeypatch.delenv("PAYONCE_ACCEPT_DATA_LOSS", raising=False)
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("create unlogged table tally.day (id int)")
    await owner.close()
    with pytest.raises(Unavailable, match=r"or start anyway with PAYONCE_ACCEPT_DATA_LOSS=true"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    async with App.open(load_settings()) as command:
        assert await command.admin.queues(), "somebody may have to freeze a vendor just now"
    monkeypatch.setenv("PAYONCE_ACCEPT_DATA_LOSS", "true")
    async with App.open(load_settings(), ["tally.worker"]) as app:
        assert "data_loss_accepted" in "".join(capsys.readouterr())
        parts = {part.name: part for part in (await detailed_of(app)).parts}
        assert parts["database"].well
        assert parts["durability"].well
        assert "PAYONCE_ACCEPT_DATA_LOSS is set" in str(parts["durability"].detail)
