"""The benchmark runs from end to end for whatever is installed, and says what it could not do."""

import asyncio
import os
from pathlib import Path

import asyncpg
import pytest
import redis

from bench import queues, rounds
from bench.children import peer_process
from bench.databases import database_url
from bench.failure import BenchFailed
from bench.journal import Journal
from bench.peers import OURS, OURS_TRANSACTIONAL, SYSTEMS, System
from bench.peers.port import Address
from bench.queues import BOTH, Servers
from bench.rounds import Sizes
from bench.sites import PostgresSite, RedisSite, Site
from payonce.embedded.redis import Durability
from payonce.kit.outcomes import Invalid

TINY = Sizes(backlog=200, singles=20, idle_jobs=5, transactional=40, drain_limit_s=60.0, pickup_limit_s=0.1)


def installed_systems(backend: str) -> list[str]:
    return [system.name for system in SYSTEMS[backend] if system.is_installed]


def databases_of_the_benchmark(url: str) -> list[str]:
    async def fetch() -> list[str]:
        connection = await asyncpg.connect(url)
        try:
            return [
                name for (name,) in await connection.fetch("select datname from pg_database where datname ~ '^bench'")
            ]
        finally:
            await connection.close()

    return asyncio.run(fetch())


@pytest.fixture
def servers(server_url: str, tmp_path: Path) -> Servers:
    return Servers(server_url, tmp_path)


# Every system starts its processes several times, and imports much to do so; every check of a change runs the quick
# benchmark as well.
@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("backend", SYSTEMS)
def test_every_installed_system_is_measured(backend: str, servers: Servers) -> None:
    report = queues.run(backend, True, None, servers, lambda line: None, sizes=TINY)
    assert report.errors == []
    assert [row.system for row in report.rows] == installed_systems(backend)
    assert len(report.skipped) == len(SYSTEMS[backend]) - len(report.rows)
    for row in report.rows:
        figures = (row.drain_per_s, row.enqueue_per_s, row.bulk_per_s, row.idle_p50_ms, row.idle_p99_ms, row.rss_mb)
        assert all(figure is not None and figure > 0 for figure in figures), row
    assert all(row.per_s > 0 for row in report.transactional)
    assert bool(report.scaling.get("claim_ratio")) == (backend == "postgres")
    assert databases_of_the_benchmark(servers.postgres_url) == []
    assert os.listdir(servers.redis_folder) == []


def test_missing_peer_is_left_out_with_one_sentence(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {backend: (System("saq", f"{backend}.saq", ("a_module_nobody_has",)),) for backend in SYSTEMS}
    for backend, systems in missing.items():
        monkeypatch.setitem(SYSTEMS, backend, systems)
    report = queues.run(BOTH, True, ["saq"], servers, lambda line: None, sizes=TINY)
    assert report.rows == []
    assert report.skipped == ["saq is left out: it is not installed; install the group bench"] * 2
    assert report.ratios.keys() == {"postgres", "redis"}


@pytest.mark.full
def test_a_system_of_one_backend_may_be_asked_of_both(servers: Servers) -> None:
    report = queues.run(BOTH, True, [OURS_TRANSACTIONAL], servers, lambda line: None, sizes=TINY)
    assert report.errors == []
    assert [(row.backend, row.system) for row in report.rows] == [("redis", OURS_TRANSACTIONAL)]
    assert [(row.system, row.atomic) for row in report.transactional] == [(OURS_TRANSACTIONAL, True)]
    assert report.ratios.keys() == {"postgres", "redis"}
    assert report.conditions["appendfsync"] == "everysec"


def test_failing_system_is_named_and_the_rest_goes_on(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(system: System, site: Site, sizes: Sizes) -> rounds.Throughput:
        raise BenchFailed(f"{system.name} worker ended with code 1")

    monkeypatch.setattr(queues, "measure_throughput", fail)
    report = queues.run("postgres", True, [OURS], servers, lambda line: None, sizes=TINY)
    assert report.rows == []
    assert report.errors == ["payonce worker ended with code 1"]
    assert databases_of_the_benchmark(servers.postgres_url) == []


@pytest.mark.parametrize("durability", ["everysec", "always"])
def test_each_stage_has_a_redis_of_its_own_with_the_durability_asked_for(
    durability: Durability, server_url: str, tmp_path: Path
) -> None:
    site = RedisSite(tmp_path, durability, beside=PostgresSite(server_url))
    peer = System("any", "redis.any", ())
    with site.fresh(peer, "one") as first:
        with redis.Redis.from_url(first.url) as client:
            client.set("left", "behind")
            assert client.config_get("appendfsync") == {"appendfsync": durability}
        site.settle()
    with site.fresh(peer, "two") as second, redis.Redis.from_url(second.url) as client:
        assert client.dbsize() == 0
    assert site.conditions()["appendfsync"] == durability


def test_worker_that_cannot_start_is_an_error_with_its_reason(server_url: str, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal")
    at = Address(database_url(server_url, "bench_gone"))
    with (
        peer_process(SYSTEMS["postgres"][0], "worker", at, tmp_path / "journal", tmp_path / "log") as worker,
        pytest.raises(BenchFailed, match="payonce worker ended with code 1") as failure,
    ):
        worker.must(lambda: journal.handled > 0, "its first job", limit_s=30)
    assert "bench_gone" in str(failure.value)


@pytest.mark.parametrize(("backend", "systems"), [("tape", None), ("postgres", ["celery"]), ("redis", ["dbos"])])
def test_unknown_names_are_refused_with_the_known_ones(backend: str, systems: list[str] | None) -> None:
    servers = Servers("postgresql://nowhere/none", Path("/nowhere"))
    with pytest.raises(Invalid, match="there are: "):
        queues.run(backend, True, systems, servers, lambda line: None)
