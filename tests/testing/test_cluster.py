"""A primary and its standby: commits survive a failover, or are lost, as replication promises."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import pytest

from payonce.embedded import Installation
from payonce.engine.database.migrate import known_migrations
from payonce.testing import eventually
from payonce.testing.cluster import Cluster, replicating_installations

NONE_FOUND = "needs a PostgreSQL with pg_basebackup: install the distribution's postgresql"
UNANSWERED_S = 0.5
"""A COMMIT on these servers takes a few milliseconds."""


def oldest_and_newest() -> Sequence[Installation | None]:
    found = sorted(replicating_installations(), key=lambda each: each.version)
    return found[:: max(len(found) - 1, 1)] or [None]


@pytest.fixture(scope="module", params=oldest_and_newest(), ids=lambda each: each and each.label)
def installation(request: pytest.FixtureRequest) -> Installation:
    if request.param is None:
        pytest.skip(NONE_FOUND)
    chosen: Installation = request.param
    return chosen


@pytest.fixture(params=[True, False], ids=["synchronous", "asynchronous"])
def cluster(request: pytest.FixtureRequest, installation: Installation) -> Iterator[Cluster]:
    with Cluster.make(known_migrations(()), synchronous=request.param, installation=installation) as made:
        yield made


async def ask(url: str, statement: str, *arguments: object) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        connection.terminate()


async def note(url: str, number: int) -> None:
    await ask(url, "insert into notes values ($1)", number)


async def notes(url: str) -> list[int]:
    found: list[int] = await ask(url, "select coalesce(array_agg(number order by number), '{}') from notes")
    return found


async def test_a_synchronous_standby_has_every_commit_and_an_asynchronous_one_may_not(cluster: Cluster) -> None:
    url = cluster.database().superuser_url
    await ask(url, "create table notes (number bigint)")
    for number in range(20):
        await note(url, number)
    await asyncio.to_thread(cluster.hold_replication)
    if cluster.synchronous:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(note(url, 100), UNANSWERED_S)
    else:
        await note(url, 100)
    await asyncio.to_thread(cluster.crash_primary)
    with pytest.raises(OSError, match="refused"):
        await notes(url)
    await asyncio.to_thread(cluster.promote)
    kept = await notes(url)
    assert 100 not in kept, "it was never sent to the standby"
    # The last ones may have been on their way to an asynchronous standby.
    assert kept == list(range(20)) if cluster.synchronous else kept == list(range(len(kept)))


async def test_a_cluster_fails_over_again_and_again(cluster: Cluster) -> None:
    database = cluster.database()
    url = database.superuser_url
    await ask(url, "create table notes (number bigint)")
    for turn in range(1, 4):
        await note(url, turn)
        await caught_up(cluster, url)
        await asyncio.to_thread(cluster.crash_primary)
        await asyncio.to_thread(cluster.promote)
        assert await notes(url) == list(range(1, turn + 1)), "the same address leads to the new primary"
        await asyncio.to_thread(cluster.rejoin)
    cluster.drop(cluster.database())


async def test_a_killed_server_leaves_no_shared_memory_behind(cluster: Cluster) -> None:
    """It lies in the data folder, which the cluster deletes."""
    assert await ask(cluster.database().superuser_url, "select count(*) from pg_ls_dir('pg_dynshmem')") > 0


async def caught_up(cluster: Cluster, url: str) -> None:
    """An asynchronous standby is given the time that it needs."""

    async def has_all() -> bool:
        statement = "select bool_and(flush_lsn >= pg_current_wal_flush_lsn()) from pg_stat_replication"
        return bool(await ask(url, statement))

    if not cluster.synchronous:
        await eventually(has_all, what="the standby has everything")
