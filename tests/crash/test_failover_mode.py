"""The explorer fails over to a standby under a live process: it finds out what became of its COMMIT, and sends nothing
before a person has released the quarantine."""

import threading
from pathlib import Path

import asyncpg
import pytest

from payonce.cli.application import run_command
from payonce.cli.errors import EXIT_FAILED
from payonce.embedded import binaries
from payonce.embedded.postmaster import is_alive
from payonce.embedded.roles import DATABASE
from payonce.testing import ScratchServer
from payonce.testing.cluster import Cluster, replicating_installations
from payonce.testing.crash import (
    ABLATIONS,
    ALL_MODES,
    BUILT_IN,
    FAILOVER,
    ON_POSTGRES,
    USUAL_MODES,
    Ablation,
    Backend,
    Mode,
    explore,
    explore_without,
    parse_modes,
    parse_point,
)
from payonce.testing.crash.ablations import LOST_BY_A_FAILOVER, QUARANTINE
from payonce.testing.crash.failover import failover_cluster, folder_of_clusters
from payonce.testing.crash.on_redis import OnRedis
from payonce.testing.crash.scenarios import WIRE
from payonce.testing.crash.server_crash import Session, take_transaction_ids

needs_a_standby = pytest.mark.skipif(
    not replicating_installations(),
    reason="needs a PostgreSQL with pg_basebackup: install the distribution's postgresql",
)
INTENT = "wire @ w-1 engine.effects.send:Run.intent #1"


@needs_a_standby
@pytest.mark.parametrize(
    ("point", "backend", "reused"),
    [
        (f"{INTENT} @ failover-before", ON_POSTGRES, 1),
        # The intent is on the new primary, and only the answer is lost.
        (f"{INTENT} @ failover-after", ON_POSTGRES, 0),
        # Only the old primary committed the intent.
        (f"{INTENT} @ failover-unreplicated", ON_POSTGRES, 1),
        (f"{INTENT} @ failover-unreplicated", OnRedis(), 1),
        # A claim outside a transaction: it has its id only when it waits for the standby.
        ("wire @ - queues.postgres.pull:PostgresQueue._fused #1 @ failover-unreplicated", ON_POSTGRES, 1),
    ],
)
def test_money_moves_once(postgres: ScratchServer, point: str, backend: Backend, reused: int) -> None:
    report = explore([WIRE], server=postgres, backend=backend, only=parse_point(point))
    assert report.sound, report.summary()
    assert report.figures()["ids_reused"] == reused


# Every check of a change runs `./dev crash --mode failover` too, which takes both of them out.
@needs_a_standby
@pytest.mark.full
@pytest.mark.parametrize(
    ("ablation", "kind"), [(LOST_BY_A_FAILOVER, "happened twice"), (QUARANTINE, "sent in quarantine")]
)
def test_a_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer, ablation: Ablation, kind: str) -> None:
    [caught] = explore_without([ablation], [WIRE], server=postgres)
    assert caught.at is not None
    assert caught.at.endswith(ablation.mode)
    assert caught.violation is not None
    assert caught.violation.kind == kind


@needs_a_standby
@pytest.mark.parametrize("flushed", [False, True])
async def test_an_id_is_reused_unless_the_standby_has_heard_of_it(flushed: bool) -> None:
    threads = threading.active_count()
    with folder_of_clusters() as folder, failover_cluster(folder / "0") as cluster:
        url = cluster.urls(DATABASE).superuser_url
        superuser, lost = await Session(url).open(), await asyncpg.connect(url)
        try:
            await superuser.execute("create table rows (id int)")
            await lost.execute("begin")
            await lost.execute("insert into rows values (1)")
            transaction_id = int(await lost.fetchval("select pg_current_xact_id()::text"))
            if flushed:
                await superuser.execute("insert into rows values (2)")
            cluster.crash_primary()
            cluster.promote()
            await superuser.open()
            assert threading.active_count() == threads, "the explorer forks, which only one thread survives"
            assert await take_transaction_ids(superuser, transaction_id) is not flushed
            assert await superuser.fetchval("select count(*) from rows where id = 1") == 0
        finally:
            lost.terminate()
            await superuser.close()


@needs_a_standby
def test_what_a_killed_driver_leaves_behind_is_deleted() -> None:
    with folder_of_clusters() as folder:
        (folder / "0").mkdir()
        cluster = Cluster.make((), synchronous=True, folder=folder / "0")
        servers = [cluster.primary, cluster.standby]
    assert not folder.exists()
    assert not [server for server in servers if server is not None and is_alive(server.pid)]


def test_failovers_are_explored_when_they_are_named() -> None:
    assert parse_modes(()) == USUAL_MODES
    assert parse_modes(["failover"]) == FAILOVER
    assert parse_modes(["failover-after", "stopped"]) == (Mode.STOPPED, Mode.FAILOVER_AFTER)
    assert set(ALL_MODES) == set(Mode)


@pytest.mark.usefixtures("restored_logs")
@pytest.mark.parametrize(
    "arguments", [("wire", "--mode", "failover"), ("--only", f"{INTENT} @ failover-after")], ids=["modes", "one point"]
)
def test_a_machine_that_cannot_make_a_standby_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    monkeypatch.delenv("PAYONCE_PG_BIN", raising=False)
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "payonce_no_such_wheel")
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_command(["crash", *arguments]) == EXIT_FAILED
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert said.startswith("error: no PostgreSQL with pg_basebackup was found, which a standby needs: install ")


@needs_a_standby
@pytest.mark.full
@pytest.mark.timeout(2_400)
def test_every_scenario(postgres: ScratchServer) -> None:
    report = explore(BUILT_IN, modes=FAILOVER, server=postgres, ablations=ABLATIONS)
    assert report.sound, report.summary()
    assert all(set(struck) == set(FAILOVER) for struck in report.coverage().values())
