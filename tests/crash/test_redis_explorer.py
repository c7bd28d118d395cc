"""The explorer on queues in Redis: every command is a crossing, and a safeguard that is taken out there is missed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from payonce.queues.redis.keys import main_key
from payonce.testing import OpenStage, ScratchServer
from payonce.testing.crash import BUILT_IN, PROCESS_MODES, Mode, explore, explore_without, parse_point
from payonce.testing.crash.on_redis import OnRedis
from payonce.testing.crash.redis_ablations import REDIS_ABLATIONS
from payonce.testing.crash.redis_crossings import only_reads
from payonce.testing.crash.scenarios import ON_REDIS_ALONE, payments
from payonce.testing.crash.scenarios.bank_scenario import BankScenario
from payonce.testing.redis_clock import EPOCH

RECEIPT = BankScenario("receipt", (payments.send_receipt,), payments.RECEIPT, {"r-1": 1}, {"r-1": frozenset({"new"})})
SCENARIOS = (*BUILT_IN, *ON_REDIS_ALONE)
ON_REDIS = OnRedis()


@pytest.mark.full
def test_every_crossing_of_a_scenario_in_every_mode(postgres: ScratchServer) -> None:
    report = explore([RECEIPT], server=postgres, backend=ON_REDIS)
    assert report.sound, report.summary()
    crossed = report.coverage()
    scripts = [site for site in crossed if site.startswith(("queues.redis.pull:", "queues.redis.relay:"))]
    assert len(scripts) >= 3
    assert all(crossed[site][Mode.STOPPED] for site in scripts)
    assert set(crossed["queues.redis.relay:RedisRelay._deliver"]) == set(PROCESS_MODES)


@pytest.mark.parametrize(
    "point",
    [
        # PostgreSQL has the end, and Redis' own copy is left: the look at the outbox drops it.
        "charge @ c-1 engine.messages.work:Work.commit #1 @ after",
        # Delivered, and the relay does not know it: delivered again, and there once.
        "charge @ - queues.redis.relay:RedisRelay._deliver #1 @ after",
        # Claimed, but the response is lost: the lease ends.
        "charge @ - queues.redis.pull:RedisQueue._run #1 @ after",
        # Redis is wiped while a process is stopped inside its commit.
        "wiped @ c-1 engine.messages.work:Work.commit #1 @ stopped",
        # Parked in Redis, and the process dies before PostgreSQL's job log has its row.
        "misfits @ - engine.messages.job_log:write_runs #1 @ before",
        # Pushed by hand, given a row before anything is sent, and struck there.
        "by-hand @ h-1 engine.effects.send:Run.intent #1 @ before",
    ],
)
def test_money_moves_once(postgres: ScratchServer, point: str) -> None:
    strike = parse_point(point)
    scenarios = [each for each in SCENARIOS if each.name == strike.scenario]
    report = explore(scenarios, server=postgres, backend=ON_REDIS, only=strike)
    assert report.sound, report.summary()


@pytest.mark.parametrize("name", ["the refill", pytest.param("one script for every step", marks=pytest.mark.full)])
def test_a_safeguard_that_is_taken_out_is_missed(postgres: ScratchServer, name: str) -> None:
    [ablation] = [each for each in REDIS_ABLATIONS if each.name == name]
    scenarios = [each for each in SCENARIOS if each.name == ablation.scenario]
    [caught] = explore_without([ablation], scenarios, server=postgres, backend=ON_REDIS)
    assert caught.at is not None, f"without {name} the explorer finds nothing"


async def test_what_waits_in_redis_is_due_at_the_very_microsecond(stage: OpenStage, tmp_path: Path) -> None:
    storage: Any = ON_REDIS.storage(tmp_path)
    key = f"{main_key(payments.CHARGE.queue)}:delayed"
    try:
        async with stage() as on, storage.probe(on.owner, [payments.CHARGE]) as probe:
            await ON_REDIS.declare(on.database, [payments.CHARGE])
            for microsecond in range(20):
                # Seconds as a float, times 1,000, are below the score for some of these.
                moment = datetime(2026, 1, 1, 12, 1, 0, microsecond, tzinfo=UTC)
                await probe.client.delete(key)
                await probe.client.zadd(key, {"{}": int((moment - EPOCH) / timedelta(microseconds=1)) / 1_000})
                await probe.freeze(moment)
                assert (await probe.pending()).due == [payments.CHARGE.queue]
                await probe.freeze(moment - timedelta(microseconds=1))
                assert (await probe.pending()).due == []
                assert await probe.next_due() == moment
    finally:
        storage.server.close()


def test_only_what_surely_changes_nothing_counts_as_a_look() -> None:
    assert only_reads(("LLEN", "q:payments"))
    assert not only_reads(("EVALSHA", "0" * 40, 1, "q:payments"))
    assert not only_reads(("LPUSH", "q:payments", "{}"))


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_every_scenario_and_every_safeguard(postgres: ScratchServer) -> None:
    report = explore(SCENARIOS, server=postgres, backend=ON_REDIS, ablations=REDIS_ABLATIONS)
    assert report.sound, report.summary()
