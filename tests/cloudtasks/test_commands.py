"""The operator's commands on pushed queues. Those that look and change need PostgreSQL alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import structlog

from payonce.app import registry
from payonce.cli.application import run_command
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.examples.tally import CHANGES
from payonce.queues.cloudtasks.tune import tune
from payonce.taskserver.server import open_server
from payonce.testing import ScratchDatabase
from tests.cloudtasks import pushing

Ask = Callable[..., Any]
SYNC = ("queues", "sync", "--to", "cloudtasks")


@pytest.fixture
def ask(
    scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Ask]:
    """A command in this process, where no task service is to be found."""
    monkeypatch.setattr(registry, "SERVICES", pushing.SERVICES)
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CLOUD_TASKS_ENDPOINT", "127.0.0.1:9")

    def asking(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        ended = run_command([*arguments, "--json"])
        told = capsys.readouterr()
        assert ended == code, told.err
        return json.loads(told.out) if code == 0 else told.err

    yield asking
    # A command sets up the log for its own process; this one has other tests before it.
    structlog.reset_defaults()


@asynccontextmanager
async def task_server(scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Our own, on the same database; commands find it."""
    async with (
        Database.open(scratch.service_url) as database,
        Notifier.open(database) as notifier,
        open_server(database, notifier, dispatching=False) as server,
    ):
        monkeypatch.setenv("CLOUD_TASKS_ENDPOINT", server.address)
        yield server.address


def test_looking_putting_pausing_and_purging_need_no_task_service(ask: Ask) -> None:
    put = ask("queues", "put", CHANGES.queue, '{"row_id": 7}')
    assert put["accepted"]
    [depth] = [each for each in ask("queues", "list")["queues"] if each["queue"] == CHANGES.queue]
    assert depth["ready"] == 1
    [shown] = ask("queues", "peek", CHANGES.queue)["messages"]
    assert shown["id"] == put["id"]
    assert ask("trace", put["id"])["entries"]
    assert ask("queues", "pause", CHANGES.queue)["paused"]
    assert ask("queues", "purge", CHANGES.queue, "--state", "ready", "--yes")["purged"] == 1
    assert not ask("queues", "peek", CHANGES.queue)["messages"]


def test_sync_without_a_task_service_says_so_in_one_sentence(ask: Ask) -> None:
    said = ask(*SYNC, code=1)
    assert "the task service at 127.0.0.1:9 answered UNAVAILABLE" in said
    assert "there is: cloudtasks" in ask("queues", "sync", "--to", "rabbit", code=2)


def test_sync_makes_the_queues_and_changes_nothing_the_second_time(
    ask: Ask, scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def with_server() -> list[Any]:
        async with task_server(scratch, monkeypatch):
            return [await asyncio.to_thread(ask, *SYNC, *more) for more in (["--dry-run"], [], [], ["--dry-run"])]

    dry, made, again, last = asyncio.run(with_server())
    assert dry["differences"] == made["differences"]
    assert {each["there"] for each in made["differences"]} == {None}
    assert not dry["changed"]
    assert again["differences"] == last["differences"] == []


def test_sync_leaves_the_server_of_another_payonce_alone(
    ask: Ask, scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def with_server() -> list[Any]:
        async with task_server(scratch, monkeypatch) as address:
            [owner] = await fetched(scratch, "select id::text from payonce.installation")
            # From here on the command's database is another than the server was opened on.
            await fetched(scratch, "update payonce.installation set id = gen_random_uuid() returning id")
            said = [await asyncio.to_thread(ask, *SYNC, *more, code=2) for more in (["--dry-run"], [])]
            [made] = await fetched(scratch, "select count(*) from cloudtasks.queues")
            return [owner["id"], address, made["count"], *said]

    owner, address, queues, *refusals = asyncio.run(with_server())
    for said in refusals:
        assert f"the Cloud Tasks server at {address} belongs to another payonce (installation {owner}" in said
        assert "CLOUD_TASKS_ENDPOINT" in said
    assert queues == 0


def test_tune_says_what_was_measured_and_keeps_it_when_told(ask: Ask, scratch: ScratchDatabase) -> None:
    [unmeasured] = ask("queues", "tune")["queues"]
    assert (unmeasured["rate"], unmeasured["concurrency"], unmeasured["p95_s"]) == (10.0, 50, None)
    asyncio.run(measured_runs(scratch, [0.1] * 95 + [2.0] * 105))
    [found] = ask("queues", "tune", CHANGES.queue, "--vendor-rate", "30", "--apply", "--by", "somebody")["queues"]
    assert (found["rate"], found["p95_s"], found["concurrency"]) == (24.0, 2.0, 72)
    kept = asyncio.run(fetched(scratch, "select tuned_rate, tuned_concurrency from payonce.queues"))
    assert (24.0, 72) in [tuple(row) for row in kept]
    [noted] = asyncio.run(fetched(scratch, "select actor, text from payonce.audit_log where location = 'queues.tune'"))
    assert noted["actor"] == "somebody"
    assert "p95 2.000 s of 200 runs" in noted["text"]
    shown = ask("queues", "show", CHANGES.queue)
    assert shown["policy"]["queue"] == CHANGES.queue
    assert (shown["policy"]["rate"], shown["policy"]["concurrency"]) == (24.0, 72)


def test_tune_reads_the_vendors_rate_as_the_services_do(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGENOW_REQUESTS_PER_S", "5")
    [found] = ask("queues", "tune")["queues"]
    assert found["rate"] == 4.0, "80 % of what the key is allowed"
    [given] = ask("queues", "tune", "--vendor-rate", "10")["queues"]
    assert given["rate"] == 8.0


def test_tune_refuses_what_it_cannot_measure(ask: Ask) -> None:
    assert "pushed are: tally-changes" in ask("queues", "tune", "other", code=2)
    assert "the vendor's rate is 0.0" in ask("queues", "tune", "--vendor-rate", "0", code=2)


def test_the_numbers_are_within_googles_bounds() -> None:
    assert tune("q", 10_000.0, 1_000, 60.0).rate == 500.0
    assert tune("q", 10_000.0, 1_000, 60.0).concurrency == 5_000
    assert tune("q", 0.1, 1_000, 0.001).concurrency == 1
    assert tune("q", 30.0, 99, 2.0).p95_s is None


def test_what_is_not_measured_is_within_the_vendors_limit_too() -> None:
    assert tune("q", 30.0, 0, None).rate == 10.0
    assert tune("q", 0.01, 99, 2.0).rate == 0.008


async def measured_runs(scratch: ScratchDatabase, durations_s: list[float]) -> None:
    connection = await asyncpg.connect(scratch.owner_url)
    now = await connection.fetchval("select payonce.due_now()")
    await connection.executemany(
        """
        insert into payonce.job_logs (queue, message_id, status, attempts, action, started_at, created_at, updated_at)
        values ($1, gen_random_uuid(), 'success', 1, '', $2, $3, $3)
        """,
        [(CHANGES.queue, now - timedelta(seconds=each), now) for each in durations_s],
    )
    await connection.close()


async def fetched(scratch: ScratchDatabase, query: str) -> list[Any]:
    connection = await asyncpg.connect(scratch.owner_url)
    rows = await connection.fetch(query)
    await connection.close()
    return list(rows)
