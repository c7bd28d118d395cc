"""Events are rolled into totals once, in batches, and removed when they are old."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.policies import USAGE_SYNC
from payonce.services.billing.subscriptions.handlers import usage_sync
from payonce.services.billing.subscriptions.handlers.usage_sync import (
    KEPT_DAYS,
    USAGE_SCHEDULES,
    process_usage_sync,
    prune,
    roll,
)
from payonce.services.billing.subscriptions.store.usage import PeriodTotal, totals, use
from payonce.testing import OpenStage, Stage
from tests.services.billing.usage.usage_stage import (
    CALLS,
    FIRST,
    PROJECTS,
    SECOND,
    broken,
    counter,
    events,
    renew,
    subscribe,
)


async def rolled_totals(s: Stage) -> dict[tuple[str, Any], tuple[int, int]]:
    rows = await s.read.fetch("select feature, period_start, total, events from subscriptions.usage_totals")
    return {(row["feature"], row["period_start"]): (row["total"], row["events"]) for row in rows}


async def used_in_two_periods(s: Stage) -> None:
    await subscribe(s)
    for number in range(4):
        await use(s.read, "anna", CALLS, 10, f"e-{number}")
    await use(s.read, "anna", PROJECTS, 1, "e-4")
    await renew(s)
    await use(s.read, "anna", CALLS, 7, "e-5")
    await use(s.read, "anna", CALLS, -3, "e-6")


EXPECTED = {(CALLS, FIRST): (40, 4), (PROJECTS, FIRST): (1, 1), (CALLS, SECOND): (4, 2)}


async def test_one_message_rolls_all_there_is_however_often_it_comes(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_sync, "ROLLED_MAX", 3)
    async with stage() as s:
        await used_in_two_periods(s)
        worker = await s.worker(process_usage_sync)
        for _ in range(2):
            async with s.begin() as tx:
                await tx.send(USAGE_SYNC, {})
            await s.run(worker)
            assert await rolled_totals(s) == EXPECTED
        # What the counters say is not touched by it.
        assert (await counter(s), await counter(s, PROJECTS)) == (4, 1)
        assert await broken(s) == {}


async def test_what_comes_later_is_added(stage: OpenStage) -> None:
    async with stage() as s:
        await used_in_two_periods(s)
        async with s.begin() as tx:
            assert await roll(tx, 100) == 7
        await use(s.read, "anna", CALLS, 5, "later")
        async with s.begin() as tx:
            assert await roll(tx, 100) == 1
            assert await roll(tx, 100) == 0
        assert await rolled_totals(s) == EXPECTED | {(CALLS, SECOND): (9, 3)}
        assert await broken(s) == {}


async def test_a_roll_that_is_not_committed_has_rolled_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        await used_in_two_periods(s)
        async with s.database.work.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            assert await roll(Tx(connection, s.feed), 100) == 7
            await transaction.rollback()
        assert await rolled_totals(s) == {}
        async with s.begin() as tx:
            await roll(tx, 100)
        assert await rolled_totals(s) == EXPECTED


async def test_rolls_at_once_share_the_events(stage: OpenStage) -> None:
    async with stage() as s:
        await used_in_two_periods(s)

        async def some() -> int:
            async with s.begin() as tx:
                return await roll(tx, 3)

        counts = await asyncio.gather(*(some() for _ in range(8)))
        async with s.begin() as tx:
            assert sum(counts) + await roll(tx, 100) == 7
        assert await rolled_totals(s) == EXPECTED


@pytest.mark.parametrize("rolled", [0, 3, 7])
async def test_totals_are_exact_however_much_is_rolled(stage: OpenStage, rolled: int) -> None:
    async with stage() as s:
        await used_in_two_periods(s)
        await subscribe(s, "berta")
        await use(s.read, "berta", CALLS, 1, "e-1")
        async with s.begin() as tx:
            await roll(tx, rolled)
        assert await totals(s.read, "anna") == [
            PeriodTotal("of-anna", CALLS, SECOND, 4, 2),
            PeriodTotal("of-anna", CALLS, FIRST, 40, 4),
            PeriodTotal("of-anna", PROJECTS, FIRST, 1, 1),
        ]
        assert await totals(s.read, "anna", PROJECTS) == [PeriodTotal("of-anna", PROJECTS, FIRST, 1, 1)]
        assert len(await totals(s.read, "anna", limit=2)) == 2


async def test_old_events_are_removed_when_they_are_in_their_total(stage: OpenStage) -> None:
    async with stage() as s:
        await used_in_two_periods(s)
        async with s.begin() as tx:
            await roll(tx, 3)
        shown = await totals(s.read, "anna")
        await s.clock.advance(timedelta(days=KEPT_DAYS, seconds=60).total_seconds())
        await use(s.read, "anna", CALLS, 1, "new")
        async with s.begin() as tx:
            assert await prune(tx, 2) == 2
            assert await prune(tx, 100) == 1
            await roll(tx, 100)
            assert await prune(tx, 100) == 4
        assert await events(s) == 1
        assert [each.total for each in await totals(s.read, "anna")] == [5, *(each.total for each in shown[1:])]
        assert await broken(s) == {}


async def test_younger_events_stay(stage: OpenStage) -> None:
    async with stage() as s:
        await used_in_two_periods(s)
        async with s.begin() as tx:
            await roll(tx, 100)
        await s.clock.advance(timedelta(days=KEPT_DAYS - 1).total_seconds())
        async with s.begin() as tx:
            assert await prune(tx, 100) == 0


def test_it_is_done_every_quarter_of_an_hour() -> None:
    [schedule] = USAGE_SCHEDULES
    assert (schedule.policy.queue, repr(schedule.every)) == ("q:sub:usage_sync", "Every(seconds=900)")
