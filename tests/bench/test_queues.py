"""The benchmark runs from end to end for whatever is installed, and says what it could not do."""

import asyncio
import importlib.util
from pathlib import Path

import asyncpg
import pytest

from payonce.bench import queues, rounds
from payonce.bench.children import peer_process
from payonce.bench.databases import database_url
from payonce.bench.failure import BenchFailed
from payonce.bench.journal import Journal
from payonce.bench.peers import MODULES, OURS, SYSTEMS
from payonce.bench.rounds import Sizes
from payonce.kit.outcomes import Invalid

TINY = Sizes(backlog=200, singles=20, idle_jobs=5, transactional=40, drain_limit_s=10.0, pickup_limit_s=0.1)


def installed_systems() -> list[str]:
    return [
        system
        for system in SYSTEMS["postgres"]
        if all(importlib.util.find_spec(module) is not None for module in MODULES[system])
    ]


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


def test_every_installed_system_is_measured(server_url: str) -> None:
    report = queues.run("postgres", True, None, server_url, lambda line: None, sizes=TINY)
    assert report.errors == []
    assert [row.system for row in report.rows] == installed_systems()
    assert len(report.skipped) == len(SYSTEMS["postgres"]) - len(installed_systems())
    for row in report.rows:
        figures = (row.drain_per_s, row.enqueue_per_s, row.bulk_per_s, row.idle_p50_ms, row.idle_p99_ms, row.rss_mb)
        assert all(figure is not None and figure > 0 for figure in figures), row
    assert {row.system for row in report.transactional} == set(installed_systems())
    assert all(row.per_s > 0 for row in report.transactional)
    assert report.scaling["claim_ratio"]
    assert databases_of_the_benchmark(server_url) == []


def test_missing_peer_is_left_out_with_one_sentence(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODULES, "saq", ("a_module_nobody_has",))
    report = queues.run("postgres", True, ["saq"], server_url, lambda line: None, sizes=TINY)
    assert report.rows == []
    assert report.skipped == ["saq is left out: it is not installed; install the group bench"]


def test_failing_system_is_named_and_the_rest_goes_on(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(system: str, server_url: str, sizes: Sizes) -> rounds.Throughput:
        raise BenchFailed(f"{system} worker ended with code 1")

    monkeypatch.setattr(queues, "measure_throughput", fail)
    report = queues.run("postgres", True, [OURS], server_url, lambda line: None, sizes=TINY)
    assert report.rows == []
    assert report.errors == ["payonce worker ended with code 1"]
    assert databases_of_the_benchmark(server_url) == []


def test_worker_that_cannot_start_is_an_error_with_its_reason(server_url: str, tmp_path: Path) -> None:
    journal = Journal.create(tmp_path / "journal")
    url = database_url(server_url, "bench_gone")
    with (
        peer_process(OURS, "worker", url, tmp_path / "journal", tmp_path / "log") as worker,
        pytest.raises(BenchFailed, match="payonce worker ended with code 1") as failure,
    ):
        worker.must(lambda: journal.handled > 0, "its first job", limit_s=30)
    assert "bench_gone" in str(failure.value)


@pytest.mark.parametrize(("backend", "systems"), [("tape", None), ("postgres", ["celery"])])
def test_unknown_names_are_refused_with_the_known_ones(backend: str, systems: list[str] | None) -> None:
    with pytest.raises(Invalid, match="there are: "):
        queues.run(backend, True, systems, "postgresql://nowhere/none", lambda line: None)
