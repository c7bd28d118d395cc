"""Queue history by minute: counted by workers, sampled by the leader, deleted after two days."""

from datetime import timedelta
from itertools import pairwise

import pytest

from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.history import (
    KEEP_S,
    MINUTES_MAX,
    QueueMinute,
    RunCounts,
    history,
    runs_by_queue,
    sample_depths,
)
from payonce.engine.monitoring.metrics import SETTLES
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage


async def test_what_workers_counted_is_added_to_the_minute_it_was_written_in(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        first, second = RunCounts(s.database), RunCounts(s.database)
        SETTLES.labels("work", "success").inc(5)
        SETTLES.labels("work", "retry").inc(2)
        SETTLES.labels("work", "released").inc(9)
        assert await first.tick() == 1
        assert await second.tick() == 1
        assert await first.tick() == 0
        [minute] = await history(s.read, 1, "work")
        assert (minute.success, minute.retry, minute.runs, minute.errors) == (10, 4, 14, 0)


async def test_what_could_not_be_written_is_written_at_the_next_tick(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        counts = RunCounts(s.database)
        SETTLES.labels("work", "success").inc(3)
        await s.owner.execute("revoke insert on payonce.queue_minutes from payonce_service")
        with pytest.raises(Exception, match="permission denied"):
            await counts.tick()
        await s.owner.execute("grant insert on payonce.queue_minutes to payonce_service")
        await counts.tick()
        [minute] = await history(s.read, 1, "work")
        assert minute.success == 3


async def test_minutes_have_no_gaps_and_nobody_looking_is_not_zero(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        await sample_depths(
            s.database, [Depth("work", ready=4, delayed=3, alone=1, leased=2, parked=7, oldest_ready_s=9)]
        )
        await s.clock.advance(180)
        minutes = await history(s.read, 5)
        assert [later.minute - earlier.minute for earlier, later in pairwise(minutes)] == [timedelta(minutes=1)] * 4
        assert [minute.waiting for minute in minutes] == [None, 5, None, None, None]
        seen = minutes[1]
        assert (seen.delayed, seen.leased, seen.lying, seen.oldest_s, seen.runs) == (3, 2, 7, 9.0, 0)


async def test_all_queues_are_added_up_and_each_is_told_apart(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        await sample_depths(s.database, [Depth("b", ready=1, oldest_ready_s=2), Depth("a", ready=2, oldest_ready_s=5)])
        [together] = await history(s.read, 1)
        assert (together.waiting, together.oldest_s) == (3, 5.0)
        apart = await runs_by_queue(s.read, 3)
        assert {queue: [minute.waiting for minute in minutes] for queue, minutes in apart.items()} == {
            "a": [None, None, 2],
            "b": [None, None, 1],
        }


async def test_a_later_sample_of_a_minute_replaces_the_earlier_and_keeps_the_counts(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        counts = RunCounts(s.database)
        SETTLES.labels("work", "parked").inc()
        await counts.tick()
        await sample_depths(s.database, [Depth("work", parked=1)])
        await sample_depths(s.database, [Depth("work", parked=2)])
        [minute] = await history(s.read, 1, "work")
        assert (minute.parked, minute.lying) == (1, 2)


async def test_what_is_older_than_is_kept_is_forgotten(stage: OpenStage) -> None:
    async with stage() as s:
        await sample_depths(s.database, [Depth("work")])
        await s.clock.advance(KEEP_S + 61)
        await sample_depths(s.database, [Depth("work")])
        assert await s.read.fetchval("select count(*) from payonce.queue_minutes") == 1


@pytest.mark.parametrize("minutes", [0, -1, MINUTES_MAX + 1])
async def test_more_minutes_than_are_kept_are_refused(stage: OpenStage, minutes: int) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="minutes is"):
            await history(s.read, minutes)
        with pytest.raises(Invalid, match="minutes is"):
            await runs_by_queue(s.read, minutes)


async def test_an_empty_history_is_empty_minutes(stage: OpenStage) -> None:
    async with stage() as s:
        assert await runs_by_queue(s.read) == {}
        [minute] = await history(s.read, 1)
        assert minute == QueueMinute(minute.minute)
