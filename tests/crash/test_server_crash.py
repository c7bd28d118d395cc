"""The explorer crashes the database server under a live process: the process finds out what became of its COMMIT."""

import asyncpg
import pytest

from payonce.kit.outcomes import Invalid
from payonce.testing import ScratchServer
from payonce.testing.crash import (
    ABLATIONS,
    BUILT_IN,
    ON_POSTGRES,
    SERVER_CRASH,
    Backend,
    Mode,
    explore,
    explore_without,
    parse_modes,
    parse_point,
)
from payonce.testing.crash.ablations import LOST_COMMIT
from payonce.testing.crash.on_redis import OnRedis
from payonce.testing.crash.scenarios import WIRE, payments
from payonce.testing.crash.scenarios.bank_scenario import BankScenario
from payonce.testing.crash.server_crash import Session, crash_server, crashable_servers, take_transaction_ids

BLIND = BankScenario(
    "blind", (payments.wire, payments.send_receipt), payments.WIRE, {"w-1": 10_000}, {"w-1": frozenset({"paid"})}
)
"""One payment that can neither be looked up nor repeated at the bank."""
COMMITS = {"engine.effects.send:Run.intent", "engine.messages.work:Work.commit"}


def test_money_moves_once_when_the_server_crashes_at_any_commit(postgres: ScratchServer) -> None:
    report = explore([BLIND], modes=SERVER_CRASH, server=postgres)
    assert report.sound, report.summary()
    crashed = report.coverage()
    assert set(crashed) > COMMITS
    assert all(set(by_mode) == set(SERVER_CRASH) for by_mode in crashed.values())
    # Each of these has a transaction open when the server crashes, whose id must come up again.
    assert report.figures()["ids_reused"] >= sum(crashed[site][Mode.SERVER_CRASH_BEFORE] for site in COMMITS)


@pytest.mark.parametrize(
    ("point", "reused"),
    [
        # The intent is lost, and its id belongs to somebody else's transaction when the process asks.
        ("wire @ w-1 engine.effects.send:Run.intent #1 @ server-crash-before", 1),
        # The intent is on record, and only the answer is lost.
        ("wire @ w-1 engine.effects.send:Run.intent #1 @ server-crash-after", 0),
        # A claim outside a transaction: it has no id yet that could be lost.
        ("wire @ - queues.postgres.pull:PostgresQueue._fused #1 @ server-crash-before", 0),
    ],
)
def test_the_process_lives_on_and_finds_out(postgres: ScratchServer, point: str, reused: int) -> None:
    report = explore([WIRE], server=postgres, only=parse_point(point))
    assert report.sound, report.summary()
    assert report.figures()["ids_reused"] == reused


@pytest.mark.parametrize(
    "point",
    [
        "wire @ w-1 engine.effects.send:Run.intent #1 @ server-crash-before",
        # Its effect does not reach the person: the message must not be parked without one.
        "wire @ w-2 engine.messages.work:Work.give_up #1 @ server-crash-before",
    ],
)
def test_money_moves_once_with_queues_in_redis(postgres: ScratchServer, point: str) -> None:
    report = explore([WIRE], server=postgres, backend=OnRedis(), only=parse_point(point))
    assert report.sound, report.summary()
    assert report.figures()["ids_reused"] == 1


@pytest.mark.parametrize("backend", [ON_POSTGRES, OnRedis()], ids=["postgres", "redis"])
def test_a_commit_that_is_looked_up_by_its_id_is_found_out(postgres: ScratchServer, backend: Backend) -> None:
    [caught] = explore_without([LOST_COMMIT], [WIRE], server=postgres, backend=backend)
    assert caught.at is not None
    assert "Run.intent" in caught.at
    assert caught.violation is not None
    assert caught.violation.kind == "happened twice"


@pytest.mark.parametrize("flushed", [False, True])
async def test_an_id_is_reused_unless_its_transaction_left_a_trace(flushed: bool) -> None:
    with crashable_servers(1) as [server]:
        superuser = await Session(server.server.superuser_url).open()
        lost = await asyncpg.connect(server.server.superuser_url)
        try:
            await superuser.execute("create table rows (id int)")
            await lost.execute("begin")
            await lost.execute("insert into rows values (1)")
            transaction_id = int(await lost.fetchval("select pg_current_xact_id()::text"))
            if flushed:
                await superuser.execute("insert into rows values (2)")
            await crash_server(superuser)
            assert await take_transaction_ids(superuser, transaction_id) is not flushed
            assert await superuser.fetchval("select count(*) from rows where id = 1") == 0
            with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
                await lost.execute("commit")
        finally:
            lost.terminate()
            await superuser.close()


def test_modes_are_chosen_by_name() -> None:
    assert parse_modes(["server-crash"]) == SERVER_CRASH
    assert parse_modes(["server-crash-after", "before"]) == (Mode.BEFORE, Mode.SERVER_CRASH_AFTER)
    with pytest.raises(Invalid, match="no mode 'crash'"):
        parse_modes(["crash"])


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_scenario(postgres: ScratchServer) -> None:
    report = explore(BUILT_IN, modes=SERVER_CRASH, server=postgres, ablations=ABLATIONS)
    assert report.sound, report.summary()
