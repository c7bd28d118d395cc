"""Vendor health as pages show it: quantiles, recorded attempts, and budget usage."""

import math

import pytest

from payonce.engine.database.rate_limits import declare_budget, penalise, take_turn
from payonce.engine.monitoring.metrics import VENDOR_CALL_SECONDS
from payonce.engine.monitoring.vendor_health import attempt_stats, budgets, call_stats, quantile
from payonce.testing import OpenStage
from tests.engine.controls_stage import open_till

INF = math.inf


@pytest.mark.parametrize(
    ("below", "share", "seconds"),
    [
        ({}, 0.5, None),
        ({1.0: 0, INF: 0}, 0.5, None),
        ({1.0: 10, INF: 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, INF: 10}, 0.95, 1.95),
        ({1.0: 5, 2.0: 10, INF: 10}, 0.5, 1.0),
        ({1.0: 5, INF: 10}, 0.95, 1.0),
    ],
)
def test_a_share_of_counts_is_reckoned_within_its_bounds(
    below: dict[float, float], share: float, seconds: float | None
) -> None:
    assert quantile(below, share) == seconds


def test_calls_of_this_process_are_added_up_over_their_answers() -> None:
    for outcome, seconds in (("ok", 0.2), ("ok", 0.3), ("error", 4.0)):
        VENDOR_CALL_SECONDS.labels("a test's vendor", "ask", outcome).observe(seconds)
    [found] = [each for each in call_stats() if each.vendor == "a test's vendor"]
    assert (found.count, found.by_outcome) == (3, {"ok": 2, "error": 1})
    assert found.p50_s is not None
    assert found.p95_s is not None
    assert found.p50_s < 1 < found.p95_s


async def test_tries_are_counted_by_their_end_with_the_time_they_took(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        assert await attempt_stats(till.s.read) == []
        [work] = await till.claim()
        await till.pay(work, "p-1", 700)
        # An attempt of four seconds, by its rows; anything older than a day is not counted.
        await till.s.owner.execute("alter table payonce.effect_attempts disable trigger user")
        await till.s.owner.execute(
            "update payonce.effect_attempts set created_at = created_at - interval '4 seconds' where event = 'started'"
        )
        [found] = await attempt_stats(till.s.read)
        assert (found.vendor, found.count, found.by_ending["performed"]) == ("bank", 1, 1)
        assert found.p95_s is not None
        assert 4 <= found.p95_s < 60
        await till.s.clock.advance(2 * 86_400)
        assert await attempt_stats(till.s.read) == []


async def test_a_budget_tells_how_much_of_it_is_used_and_when_its_rest_ends(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await declare_budget(s.database, "bank", 2.0, 10)
        [idle] = await budgets(s.read)
        assert (idle.used_percent, idle.held_until) == (0, None)
        for _ in range(5):
            await take_turn(s.database, "bank", 1, 0.0)
        assert [each.used_percent for each in await budgets(s.read)] == [50]
        await penalise(s.database, "bank", 30.0)
        [resting] = await budgets(s.read)
        assert resting.used_percent == 100
        assert resting.held_until is not None
        await s.clock.advance(60)
        [rested] = await budgets(s.read)
        assert (rested.used_percent, rested.held_until) == (0, None)
