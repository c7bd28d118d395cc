"""Simultaneous calls ask the store once; each gets the turn that it would have got by itself."""

import asyncio

import asyncpg
import pytest

from payonce.engine.database.rate_limits import SharedBudget, Turn, declare_budget, take_turn, take_turns
from payonce.kit.outcomes import NotSent
from payonce.testing import OpenStage, Stage
from tests.conformance.wire import on_the_wire, without

ONE_BY_ONE, AT_ONCE = "one by one", "at once"
CALLS = 20


async def paid_for_s(s: Stage, name: str) -> float:
    ahead_s: float = await s.read.fetchval(
        "select extract(epoch from arrival_at - payonce.due_now())::float8 from payonce.budgets where name = $1", name
    )
    return ahead_s


def waits_s(turns: list[Turn]) -> list[float]:
    return [turn.wait_s for turn in turns if turn.given]


@pytest.mark.parametrize(("rate_per_s", "burst", "wait_max_s"), [(10.0, 1, 0.55), (10.0, 4, 0.25), (3.0, 30, 0.0)])
async def test_turns_at_once_are_those_of_callers_one_by_one(
    stage: OpenStage, rate_per_s: float, burst: int, wait_max_s: float
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        for name in (ONE_BY_ONE, AT_ONCE):
            await declare_budget(s.database, name, rate_per_s, burst)
        for _ in range(2):
            one_by_one = [await take_turn(s.database, ONE_BY_ONE, 1, wait_max_s) for _ in range(CALLS)]
            at_once = await take_turns(s.database, AT_ONCE, CALLS, wait_max_s)
            assert waits_s(at_once) == pytest.approx(waits_s(one_by_one), abs=1e-5)
            assert await paid_for_s(s, AT_ONCE) == pytest.approx(await paid_for_s(s, ONE_BY_ONE), abs=1e-5)


async def test_calls_of_one_moment_are_one_statement(stage: OpenStage) -> None:
    async with stage() as s:
        budget = SharedBudget(s.database, AT_ONCE, 1_000.0, CALLS * 2)
        await budget.wait_turn()
        seen: list[str] = []

        def see(statement: str) -> str:
            seen.append(statement)
            return statement

        with on_the_wire(see):
            await asyncio.gather(*(budget.wait_turn() for _ in range(CALLS)))
        assert len([statement for statement in seen if "update payonce.budgets" in statement]) == 1


async def test_those_whose_turn_is_too_far_are_refused_and_spend_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, AT_ONCE, 1.0, 5, wait_max_s=0.0)
        came_to = await asyncio.gather(*(budget.wait_turn() for _ in range(CALLS)), return_exceptions=True)
        assert [type(each) for each in came_to if each is not None] == [NotSent] * (CALLS - 5)
        assert await paid_for_s(s, AT_ONCE) == pytest.approx(5.0)


async def test_without_a_store_nothing_is_sent(stage: OpenStage) -> None:
    async with stage() as s:
        budget = SharedBudget(s.database, AT_ONCE, 1_000.0, CALLS)
        await budget.wait_turn()
        with without("update payonce.budgets", "update payonce.no_such_table"):
            came_to = await asyncio.gather(*(budget.wait_turn() for _ in range(CALLS)), return_exceptions=True)
        assert all(isinstance(each, NotSent) for each in came_to)
        assert any(isinstance(each.__cause__, asyncpg.UndefinedTableError) for each in came_to)  # type: ignore[union-attr]
        await budget.wait_turn()


async def test_a_caller_who_goes_takes_no_turn_from_the_others(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        budget = SharedBudget(s.database, AT_ONCE, 1.0, 3, wait_max_s=0.0)
        await budget.wait_turn()
        calls = [asyncio.create_task(budget.wait_turn()) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        came_to = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(came_to[0], asyncio.CancelledError)
        assert came_to[1:] == [None, None]
