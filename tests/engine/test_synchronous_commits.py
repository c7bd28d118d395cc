"""A COMMIT whose wait for the synchronous standby was cancelled: it exists on the primary only."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from payonce.engine.audit import note
from payonce.engine.database import commits, sessions
from payonce.engine.database.connections import Database
from payonce.engine.database.migrate import known_migrations
from payonce.kit.outcomes import Unavailable
from payonce.testing import ScratchDatabase
from payonce.testing.cluster import Cluster, replicating_installations

PATIENCE_S = 0.5
"""Instead of a minute: the driver cancels statements without an answer by then."""
LIMIT_S = 3.0
SAID = "select count(*) from payonce.audit_log where location = 'test'"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if not replicating_installations():
        pytest.skip("needs a PostgreSQL with pg_basebackup: install the distribution's postgresql")
    with Cluster.make(known_migrations(()), synchronous=True) as made:
        yield made


@pytest.fixture
def waiting(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> ScratchDatabase:
    monkeypatch.setattr("payonce.engine.database.connections.COMMAND_TIMEOUT_S", PATIENCE_S)
    defaults = cast(dict[str, Any], sessions.open_session.__kwdefaults__)
    monkeypatch.setitem(defaults, "command_timeout", PATIENCE_S)
    monkeypatch.setattr(commits, "FATE_LIMIT_S", LIMIT_S)
    return cluster.database()


async def say(database: Database) -> None:
    async with database.transaction() as connection:
        await note(connection, "test", "order-1", "paid", actor="ann")


async def test_a_commit_is_not_called_done_before_the_standby_has_it(
    cluster: Cluster, waiting: ScratchDatabase
) -> None:
    """Guards the write after the query: the primary alone would report the commit, and lose it when it dies."""
    async with Database.open(waiting.service_url) as database:
        await asyncio.to_thread(cluster.hold_replication)
        with pytest.raises(Unavailable, match="could not be determined"):
            await say(database)
        await asyncio.to_thread(cluster.crash_primary)
        await asyncio.to_thread(cluster.promote)
        connection = await database.connect()
        try:
            assert await connection.fetchval(SAID) == 0
        finally:
            await connection.close()


async def test_a_commit_is_done_once_the_standby_has_it(
    cluster: Cluster, waiting: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "FATE_LIMIT_S", 60.0)
    async with Database.open(waiting.service_url) as database:
        await asyncio.to_thread(cluster.hold_replication)
        saying = asyncio.create_task(say(database))
        done, _ = await asyncio.wait([saying], timeout=2 * PATIENCE_S)
        assert not done
        await asyncio.to_thread(cluster.resume_replication)
        await saying
        assert await database.engine.fetchval(SAID) == 1
