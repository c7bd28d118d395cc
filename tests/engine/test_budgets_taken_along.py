"""A process that calls often asks the store once for several calls; nobody calls more often because of it."""

import asyncio
import math
import time
from types import SimpleNamespace

import pytest

from payonce.engine import budgets
from payonce.engine.budgets import SPARE_S, SharedBudget, declare_budget, late_max_s, penalise
from payonce.kit.outcomes import NotSent
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire

NAME = "exchange"
STORE_S = 0.1
"""What the store of a busy machine may take for every answer."""


class Clock:
    """Of the process alone: the store's stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: self.now))


class Statements:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, statement: str) -> str:
        self.count += 1
        return statement


async def often(budget: SharedBudget, clock: Clock, calls: int, every_s: float) -> int:
    """How many statements so many calls took."""
    with on_the_wire(seen := Statements()):
        for _ in range(calls):
            clock.now += every_s
            await budget.wait_turn()
    return seen.count


async def test_calls_that_follow_each_other_share_a_statement_and_rare_ones_do_not(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        clock = Clock(monkeypatch)
        budget = SharedBudget(s.database, NAME, 1_000.0, 1_000, 0.0)
        await budget.wait_turn()
        assert await often(budget, clock, 20, SPARE_S) == 20
        assert await often(budget, clock, 100, SPARE_S / 10) <= 40
        clock.now += 60
        assert await often(budget, clock, 20, SPARE_S * 2) == 20


async def test_no_more_is_taken_along_than_was_used_just_before(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's clock stands, so whatever was taken is missing in the end."""
    async with stage() as s:
        await s.clock.freeze()
        clock = Clock(monkeypatch)
        budget = SharedBudget(s.database, NAME, 1_000.0, 1_000, 0.0)
        for _ in range(10):
            await often(budget, clock, 10, SPARE_S / 10)
        taken = 1_000 * await s.read.fetchval(
            "select extract(epoch from arrival_at - payonce.due_now())::float8 from payonce.budgets"
        )
        assert 100 <= taken <= 150


@pytest.mark.parametrize("by_another", [False, True])
async def test_a_rest_that_the_vendor_asks_for_voids_what_was_taken_along(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, by_another: bool
) -> None:
    async with stage() as s, stage() as other:
        await s.clock.freeze()
        clock = Clock(monkeypatch)
        budget = SharedBudget(s.database, NAME, 1_000.0, 1_000, 0.0)
        await often(budget, clock, 25, SPARE_S / 10)
        if by_another:
            # Told by the store with the next question, and no turn is good for longer than this.
            await penalise(other.database, NAME, 30)
            clock.now += SPARE_S
        else:
            await budget.penalise(30)
        with pytest.raises(NotSent, match=r"next turn in 3\d\.\d s"):
            await budget.wait_turn()


async def test_where_turns_are_scarce_they_are_taken_one_by_one(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        clock = Clock(monkeypatch)
        budget = SharedBudget(s.database, NAME, 1_000.0, 30, 0.0)
        await often(budget, clock, 10, SPARE_S / 10)
        # Somebody states a smaller burst, and the store has it.
        await declare_budget(s.database, NAME, 1_000.0, 3)
        await s.clock.advance(60)
        clock.now += SPARE_S
        assert await often(budget, clock, 3, 0.0) >= 3
        with pytest.raises(NotSent, match="has its next turn in"):
            await budget.wait_turn()


async def test_in_no_window_go_more_calls_than_before(stage: OpenStage) -> None:
    """By the clock of whoever is called, with several processes at once and all the time that there is."""
    rate_per_s, burst, calls = 400.0, 40, 150
    sent: list[float] = []
    async with stage() as one, stage() as two:
        shared = [SharedBudget(s.database, NAME, rate_per_s, burst, 5.0) for s in (one, two)]

        async def call(budget: SharedBudget) -> None:
            for _ in range(calls // 6):
                await budget.wait_turn()
                sent.append(time.monotonic())
                await asyncio.sleep(0.002)

        await asyncio.gather(*(call(budget) for budget in shared * 6))
    sent.sort()
    assert len(sent) == 2 * 6 * (calls // 6)
    for first, begin in enumerate(sent):
        for last in range(first, len(sent)):
            most = rate_per_s * (sent[last] - begin + late_max_s(rate_per_s, STORE_S)) + burst
            assert last - first + 1 <= math.ceil(most)
