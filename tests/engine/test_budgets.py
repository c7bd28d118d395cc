"""All processes together call a vendor no more often than allowed, and nobody waits for a turn that comes too late."""

import asyncio
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from payonce.engine.database import rate_limits
from payonce.engine.database.rate_limits import (
    PENALTY_MAX_S,
    SharedBudget,
    budget_share,
    declare_budget,
    late_max_s,
    penalise,
    take_turn,
)
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.budget import Budget
from payonce.kit.outcomes import Invalid, NotSent
from payonce.testing import OpenStage, Stage
from payonce.vendors.changenow import port as changenow
from payonce.vendors.gateway import port as gateway
from tests.conformance.wire import on_the_wire

NAME = "exchange"
ROUNDING_S = 0.000_1


def sleeping(monkeypatch: pytest.MonkeyPatch, during: Any = None) -> list[float]:
    """Waits take no time and are recorded; events may be injected into them."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if during is not None:
            await during()

    monkeypatch.setattr(rate_limits, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return slept


def check_every_window(turns: Sequence[tuple[datetime, int]], rate_per_s: float, burst: int) -> None:
    """Between any two turns, the cost of the turns in between, these included, is at most rate · w + burst."""
    ordered = sorted(turns)
    for first, (begin, _) in enumerate(ordered):
        spent = 0
        for at, cost in ordered[first:]:
            spent += cost
            window_s = (at - begin).total_seconds()
            assert spent <= rate_per_s * (window_s + ROUNDING_S) + burst, f"{spent} within {window_s} s"


async def turns_now(s: Stage, count: int, wait_max_s: float = 0.0) -> int:
    return sum([(await take_turn(s.database, NAME, 1, wait_max_s)).given for _ in range(count)])


async def test_a_burst_goes_at_once_and_then_calls_go_at_the_rate(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, 2.0, 3)
        turns = [await take_turn(s.database, NAME, 1, 10.0) for _ in range(6)]
        assert [turn.wait_s for turn in turns] == [0, 0, 0, 0.5, 1.0, 1.5]


async def test_a_turn_that_comes_too_late_is_refused_and_spends_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, 2.0, 1)
        assert await turns_now(s, 1) == 1
        now = await s.clock.now()
        for _ in range(5):
            refused = await take_turn(s.database, NAME, 1, 0.4)
            assert (refused.given, refused.at, refused.wait_s) == (False, now + timedelta(seconds=0.5), 0.5)
        assert (await take_turn(s.database, NAME, 1, 0.5)).given


async def test_unused_turns_lapse_and_never_add_up_to_more_than_the_burst(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, 10.0, 3)
        assert [(await take_turn(s.database, NAME, 1, 60.0)).given for _ in range(100)] == [True] * 100
        await s.clock.advance(3_600)
        assert await turns_now(s, 10) == 3


async def test_a_call_may_cost_more_than_one(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, 1.0, 5)
        turns = [await take_turn(s.database, NAME, cost, 10.0) for cost in (4, 2, 5)]
        assert [turn.wait_s for turn in turns] == [0, 1, 6]


@pytest.mark.parametrize("seed", range(8))
async def test_no_window_holds_more_than_rate_and_burst(stage: OpenStage, seed: int) -> None:
    """Random calls, costs, waits, pauses and penalties, measured by the store's own times."""
    roll = random.Random(seed)
    rate_per_s, burst = roll.choice([0.5, 3.0, 70.0]), roll.randint(1, 6)
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, rate_per_s, burst)
        given: list[tuple[datetime, int]] = []
        for _ in range(120):
            cost = roll.randint(1, burst)
            turn = await take_turn(s.database, NAME, cost, roll.choice([0.0, 1.0, 30.0]))
            if turn.given:
                given.append((turn.at, cost))
            if roll.random() < 0.4:
                await s.clock.advance(roll.choice([0.001, 0.5, 3.0, 40.0]))
            if roll.random() < 0.02:
                await penalise(s.database, NAME, roll.choice([0.5, 10.0]))
        assert len(given) > 20
        check_every_window(given, rate_per_s, burst)


async def test_processes_at_once_share_one_budget(stage: OpenStage) -> None:
    """The clock is frozen; the times given by the store are counted, so a slow machine makes no difference."""
    rate_per_s, burst = 200.0, 5
    async with stage() as one, stage() as two, stage() as three:
        stages = (one, two, three)
        await one.clock.freeze()
        await declare_budget(one.database, NAME, rate_per_s, burst)

        async def call(s: Stage) -> list[tuple[datetime, int]]:
            turns = [await take_turn(s.database, NAME, 1, 60.0) for _ in range(30)]
            assert all(turn.given for turn in turns)
            return [(turn.at, 1) for turn in turns]

        given = [turn for turns in await asyncio.gather(*(call(s) for s in stages * 4)) for turn in turns]
        assert len(given) == 360
        check_every_window(given, rate_per_s, burst)
        took_s = (max(given)[0] - min(given)[0]).total_seconds()
        assert took_s >= (360 - burst) / rate_per_s - ROUNDING_S


async def test_waiting_for_a_turn_takes_as_long_as_the_store_says(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        slept = sleeping(monkeypatch)
        budget: Budget = SharedBudget(s.database, NAME, 2.0, 1, 5.0)
        for _ in range(3):
            await budget.wait_turn()
        assert slept == [0.5, 1.0]


async def test_a_wait_that_would_be_too_long_is_not_sent_and_names_budget_and_wait(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, NAME, 0.1, 1, 5.0)
        await budget.wait_turn()
        with pytest.raises(NotSent, match=r"budget exchange has its next turn in 10\.0 s, and the longest wait is 5 s"):
            await budget.wait_turn()
        await s.clock.advance(10)
        await budget.wait_turn()


async def test_a_penalty_holds_everybody_back(stage: OpenStage) -> None:
    async with stage() as s, stage() as other:
        await s.clock.freeze()
        mine, theirs = (SharedBudget(at.database, NAME, 10.0, 5, 1.0) for at in (s, other))
        await theirs.wait_turn()
        await mine.penalise(30)
        await mine.penalise(5)
        with pytest.raises(NotSent, match=r"next turn in 30\.0 s"):
            await theirs.wait_turn()
        await s.clock.advance(29)
        assert not (await take_turn(s.database, NAME, 1, 0.9)).given
        await s.clock.advance(1)
        await theirs.wait_turn()


async def test_a_penalty_that_cannot_be_written_does_not_cost_the_answer(stage: OpenStage) -> None:
    async with stage() as s:
        budget = SharedBudget(s.database, NAME, 10.0, 5, 1.0)
        await budget.wait_turn()
        await s.owner.execute("revoke update on payonce.budgets from payonce_service")
        with structlog.testing.capture_logs() as said:
            await budget.penalise(30)
        assert [line["event"] for line in said] == ["budget_penalised", "budget_penalty_not_stored"]


async def test_after_a_penalty_calls_go_one_by_one(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, NAME, 10.0, 5)
        await penalise(s.database, NAME, 30)
        await s.clock.advance(30)
        assert await turns_now(s, 5) == 1


async def test_a_penalty_voids_turns_that_are_being_waited_for(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s, stage() as other:
        await s.clock.freeze()
        slept = sleeping(monkeypatch, during=lambda: penalise(other.database, NAME, 60))
        budget = SharedBudget(s.database, NAME, 1.0, 1, 5.0)
        await budget.wait_turn()
        with pytest.raises(NotSent, match=r"next turn in 60\.0 s"):
            await budget.wait_turn()
        assert slept == [1.0]


async def test_a_process_that_was_stopped_loses_its_turn(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would send, together with all other stopped processes, in turns that others have by now."""
    async with stage() as s:
        await s.clock.freeze()
        elapsed_s = 0.0

        async def be_stopped() -> None:
            nonlocal elapsed_s
            elapsed_s += 100.0

        sleeping(monkeypatch, during=be_stopped)
        monkeypatch.setattr(rate_limits, "time", SimpleNamespace(monotonic=lambda: elapsed_s))
        budget = SharedBudget(s.database, NAME, 1.0, 1, 5.0)
        await budget.wait_turn()
        with pytest.raises(NotSent, match="this process could not use a turn"):
            await budget.wait_turn()


@pytest.mark.parametrize(("rate_per_s", "late_s", "sent"), [(24.0, 0.1, True), (24.0, 0.2, False), (0.5, 0.2, True)])
async def test_a_call_that_was_held_up_goes_out_or_asks_again(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, rate_per_s: float, late_s: float, sent: bool
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        elapsed_s = 0.0

        async def be_held_up() -> None:
            nonlocal elapsed_s
            elapsed_s += slept[-1] + late_s

        slept = sleeping(monkeypatch, during=be_held_up)
        monkeypatch.setattr(rate_limits, "time", SimpleNamespace(monotonic=lambda: elapsed_s))
        budget = SharedBudget(s.database, NAME, rate_per_s, 1, 3.0)
        await budget.wait_turn()
        if sent:
            await budget.wait_turn()
        else:
            with pytest.raises(NotSent):
                await budget.wait_turn()
        assert (len(slept) == 1) is sent, "who asks again waits again"


async def test_a_store_that_takes_its_time_with_every_answer_keeps_nobody_back_for_ever(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls are equally late then, and follow each other as before. Any further delay is still a stall."""
    async with stage() as s:
        await s.clock.freeze()
        elapsed_s = stall_s = 0.0

        def answer_slowly(statement: str) -> str:
            nonlocal elapsed_s
            elapsed_s += 0.3
            return statement

        async def pass_by() -> None:
            nonlocal elapsed_s, stall_s
            elapsed_s, stall_s = elapsed_s + slept[-1] + stall_s, 0.0

        slept = sleeping(monkeypatch, during=pass_by)
        monkeypatch.setattr(rate_limits, "time", SimpleNamespace(monotonic=lambda: elapsed_s))
        budget = SharedBudget(s.database, NAME, 24.0, 1, 5.0)
        with on_the_wire(answer_slowly):
            for _ in range(2):
                with pytest.raises(NotSent):
                    await budget.wait_turn()
            for held_up_s, turns in ((0.0, 1), (0.1, 1), (0.2, 2)):
                stall_s, before = held_up_s, len(slept)
                await budget.wait_turn()
                assert len(slept) - before == turns


@pytest.mark.parametrize("allowed_per_s", [1, 2, 5, 10, 30, 100, 1_000])
@pytest.mark.parametrize("port", [changenow, gateway])
def test_calls_that_were_held_up_are_still_within_what_the_vendor_allows(port: Any, allowed_per_s: int) -> None:
    """In any second: the calls with turns in it, and the calls that were due earlier and could not be sent."""
    rate_per_s, burst = budget_share(port, allowed_per_s)
    assert math.floor(rate_per_s * (1 + late_max_s(rate_per_s))) + burst <= allowed_per_s


async def test_a_store_that_does_not_answer_means_not_sent(stage: OpenStage) -> None:
    """Not unknown: the call was provably not made."""
    async with stage() as s:
        budget = SharedBudget(s.database, NAME, 1.0)
        s.database.engine.terminate()
        with pytest.raises(NotSent, match="budget exchange could not be read, so nothing was sent"):
            await budget.wait_turn()


async def test_of_two_that_state_different_numbers_the_last_one_holds_for_both(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        first, last = SharedBudget(s.database, NAME, 1.0, 1, 0.0), SharedBudget(s.database, NAME, 10.0, 3, 0.0)
        with structlog.testing.capture_logs() as lines:
            await first.wait_turn()
            await s.clock.advance(60)
            await last.wait_turn()
        [told] = [line for line in lines if line["event"] == "budget_changed"]
        assert (told["log_level"], told["budget"], told["rate_per_s"], told["burst"]) == ("warning", NAME, 10.0, 3)
        await s.clock.advance(60)
        for _ in range(3):
            await first.wait_turn()
        with pytest.raises(NotSent, match=r"next turn in 0\.1 s"):
            await first.wait_turn()


async def test_saying_the_same_numbers_again_changes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        for _ in range(2):
            budget = SharedBudget(s.database, NAME, 0.1, 2, 0.0)
            with structlog.testing.capture_logs() as lines:
                await budget.wait_turn()
            assert lines == []
        with pytest.raises(NotSent):
            await SharedBudget(s.database, NAME, 0.1, 2, 0.0).wait_turn()


async def test_a_turn_larger_than_anybodys_burst_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, NAME, 1.0, 5, 5.0)
        with pytest.raises(Invalid, match="costs 1 to its burst of 5"):
            await budget.wait_turn(6)
        await budget.wait_turn(5)
        await declare_budget(s.database, NAME, 1.0, 3)
        with pytest.raises(NotSent, match="burst of 3"):
            await budget.wait_turn(5)


async def test_a_budget_that_was_removed_is_declared_again(stage: OpenStage) -> None:
    async with stage() as s:
        budget = SharedBudget(s.database, NAME, 1.0)
        await budget.wait_turn()
        await s.owner.execute("delete from payonce.budgets")
        with pytest.raises(NotSent, match="there is no budget"):
            await budget.wait_turn()
        await budget.wait_turn()


async def test_waits_and_refusals_are_counted(stage: OpenStage) -> None:
    def sample(name: str) -> float:
        return REGISTRY.get_sample_value(f"payonce_budget_{name}", {"budget": "counted"}) or 0.0

    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, "counted", 0.1, 1, 0.0)
        await budget.wait_turn()
        with pytest.raises(NotSent):
            await budget.wait_turn()
        await budget.penalise(1)
        counted = [sample(name) for name in ("wait_seconds_count", "refusals_total", "penalties_total")]
        assert counted == [1, 1, 1]


async def test_a_turn_costs_one_round_trip(stage: OpenStage) -> None:
    async with stage() as s:
        budget = SharedBudget(s.database, NAME, 1_000.0, 100)
        await budget.wait_turn()
        statements: list[str] = []

        def see(statement: str) -> str:
            statements.append(statement)
            return statement

        with on_the_wire(see):
            await budget.wait_turn()
        assert len(statements) == 1


async def test_a_penalty_has_a_bound(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, NAME, 1.0)
        await budget.penalise(1e12)
        assert (await take_turn(s.database, NAME, 1, 0.0)).wait_s == PENALTY_MAX_S
        for wrong in (-1.0, float("nan"), float("inf")):
            with pytest.raises(Invalid, match="penalty"):
                await budget.penalise(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"rate_per_s": 0.0},
        {"rate_per_s": float("nan")},
        {"rate_per_s": 1e9},
        {"burst": 0},
        {"wait_max_s": -1.0},
        {"wait_max_s": 1e6},
    ],
)
def test_senseless_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        SharedBudget(**{"database": None, "name": NAME, "rate_per_s": 1.0, **wrong})
