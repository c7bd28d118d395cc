"""Schedules: regular times by the due clock, one message per due time, whoever is the leader and however long nothing
ran."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from payonce.engine.database.leases import acquire
from payonce.engine.janitors.schedule import Daily, Every, Schedule, Scheduler
from payonce.engine.messages.model import Lease
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Invalid, Stale
from payonce.testing import OpenStage, Stage

POLICY = Policy("q:test:scheduled")
START = datetime(2030, 1, 1, 12, 0, 20, tzinfo=UTC)
MINUTELY = Schedule("minutely", POLICY, {"report": 1}, every=Every(60), action="report")


def minute(number: int) -> datetime:
    return datetime(2030, 1, 1, 12, number, tzinfo=UTC)


async def led(s: Stage, holder: str = "a") -> Lease:
    await s.clock.freeze(START)
    await s.feed.declare([POLICY])
    lease = await acquire(s.database, "janitors", holder, 60.0)
    assert lease is not None
    return lease


async def keys(s: Stage) -> list[str]:
    rows = await s.owner.fetch("select idempotency_key from payonce.messages order by idempotency_key")
    return [row["idempotency_key"] for row in rows]


async def next_at(s: Stage) -> datetime:
    found: datetime = await s.owner.fetchval("select next_at from payonce.schedules")
    return found


async def test_a_new_schedule_waits_for_its_next_regular_time(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await led(s)
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        assert await scheduler.tick(lease) == 0
        assert await next_at(s) == minute(1)
        await s.clock.freeze(minute(1) - timedelta(microseconds=1))
        assert await scheduler.tick(lease) == 0
        await s.clock.freeze(minute(1))
        assert await scheduler.tick(lease) == 1
        assert await scheduler.tick(lease) == 0
        [row] = await s.owner.fetch("select * from payonce.messages")
        assert (row["queue"], row["action"], json.loads(row["payload"])) == (POLICY.queue, "report", {"report": 1})
        assert row["idempotency_key"] == "schedule:minutely:2030-01-01T12:01:00+00:00"
        assert await next_at(s) == minute(2)


async def test_what_was_missed_is_put_once_and_then_regular_times_go_on(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await led(s)
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        await scheduler.tick(lease)
        await s.clock.freeze(minute(30) + timedelta(seconds=7))
        assert [await scheduler.tick(lease) for _ in range(3)] == [1, 0, 0]
        assert await next_at(s) == minute(31)
        assert await s.owner.fetchval("select last_at from payonce.schedules") == minute(1)


async def test_a_due_time_that_comes_again_puts_nothing_new(stage: OpenStage) -> None:
    """A row set back by a restore or manually: the key shows that this time was put already."""
    async with stage() as s:
        lease = await led(s)
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        await scheduler.tick(lease)
        await s.clock.freeze(minute(1))
        await scheduler.tick(lease)
        assert await keys(s) == ["schedule:minutely:2030-01-01T12:01:00+00:00"]
        await s.owner.execute("delete from payonce.messages")
        await s.owner.execute("update payonce.schedules set next_at = $1", minute(1))
        await scheduler.tick(lease)
        assert await keys(s) == []
        assert await next_at(s) == minute(2)


@pytest.mark.parametrize("begun", ["delete from payonce.messages", "update payonce.messages set attempts = 1"])
async def test_a_message_that_nobody_has_begun_is_not_put_again_for_the_next_time(stage: OpenStage, begun: str) -> None:
    """The role may run nowhere, and its queue would fill up for ever."""
    async with stage() as s:
        lease = await led(s)
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        await scheduler.tick(lease)
        for number in range(1, 5):
            await s.clock.freeze(minute(number))
            assert await scheduler.tick(lease) == (number == 1)
        assert await keys(s) == [MINUTELY.key(minute(1))]
        await s.owner.execute(begun)
        await s.clock.freeze(minute(5))
        assert await scheduler.tick(lease) == 1
        assert MINUTELY.key(minute(5)) in await keys(s)


async def test_an_old_leader_puts_nothing_and_moves_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        old = await led(s, "a")
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        await scheduler.tick(old)
        await s.clock.advance_leases(60)
        assert await acquire(s.database, "janitors", "b", 60.0) is not None
        await s.clock.freeze(minute(1))
        with pytest.raises(Stale):
            await scheduler.tick(old)
        with pytest.raises(Stale):
            await Scheduler(s.database, s.feed, [Schedule("new", POLICY, every=Every(60))]).tick(old)
        assert await keys(s) == []
        assert await next_at(s) == minute(1)


async def test_a_put_that_fails_leaves_the_time_where_it_was(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await led(s)
        scheduler = Scheduler(s.database, s.feed, [MINUTELY])
        await scheduler.tick(lease)
        await s.clock.freeze(minute(1))
        await s.owner.execute("alter table payonce.messages add constraint full_up check (false) not valid")
        with pytest.raises(Exception, match="full_up"):
            await scheduler.tick(lease)
        assert await next_at(s) == minute(1)
        await s.owner.execute("alter table payonce.messages drop constraint full_up")
        assert await scheduler.tick(lease) == 1


async def test_a_removed_schedule_stops_and_the_others_go_on(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await led(s)
        other = Schedule("other", POLICY, every=Every(60))
        await Scheduler(s.database, s.feed, [MINUTELY, other]).tick(lease)
        await s.clock.freeze(minute(1))
        assert await Scheduler(s.database, s.feed, [other]).tick(lease) == 1
        assert await keys(s) == ["schedule:other:2030-01-01T12:01:00+00:00"]


async def test_a_changed_rule_begins_at_its_own_next_time(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await led(s)
        await Scheduler(s.database, s.feed, [MINUTELY]).tick(lease)
        hourly = Schedule("minutely", POLICY, every=Every(3_600))
        await s.clock.freeze(minute(1))
        assert await Scheduler(s.database, s.feed, [hourly]).tick(lease) == 0
        assert await next_at(s) == datetime(2030, 1, 1, 13, tzinfo=UTC)
        assert await keys(s) == []


async def test_two_schedules_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="two schedules 'minutely'"):
        Scheduler(None, None, [MINUTELY, Schedule("minutely", POLICY, every=Every(5))])  # type: ignore[arg-type]


@pytest.mark.parametrize("offset_s", [0.0, 0.5, 59.999])
def test_every_is_aligned_to_the_epoch(offset_s: float) -> None:
    begin = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
    assert Every(60).after(begin + timedelta(seconds=offset_s)) == begin + timedelta(seconds=60)
    assert Every(7).after(begin).timestamp() % 7 == 0


def berlin(text: str) -> datetime:
    """A moment written with its offset, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("at", "zone", "now", "expected"),
    [
        ("03:00", "Europe/Berlin", "2025-01-10T02:59:59+01:00", "2025-01-10T03:00:00+01:00"),
        ("03:00", "Europe/Berlin", "2025-01-10T03:00:00+01:00", "2025-01-11T03:00:00+01:00"),
        # The night of 30 March 2025 skips 02:00–03:00.
        ("02:30", "Europe/Berlin", "2025-03-29T12:00:00+01:00", "2025-03-30T03:30:00+02:00"),
        ("02:30", "Europe/Berlin", "2025-03-30T03:30:00+02:00", "2025-03-31T02:30:00+02:00"),
        # The night of 26 October 2025 has 02:30 twice: only the first counts.
        ("02:30", "Europe/Berlin", "2025-10-25T12:00:00+02:00", "2025-10-26T02:30:00+02:00"),
        ("02:30", "Europe/Berlin", "2025-10-26T02:30:00+02:00", "2025-10-27T02:30:00+01:00"),
        ("02:30", "Europe/Berlin", "2025-10-26T02:29:00+01:00", "2025-10-27T02:30:00+01:00"),
        # Samoa had no 30 December 2011.
        ("10:00", "Pacific/Apia", "2011-12-29T10:00:00-10:00", "2011-12-31T10:00:00+14:00"),
        ("10:00", "Pacific/Apia", "2011-12-31T10:00:00+14:00", "2012-01-01T10:00:00+14:00"),
        ("23:59:59", "UTC", "2024-02-29T00:00:00+00:00", "2024-02-29T23:59:59+00:00"),
    ],
)
def test_daily_keeps_local_time_over_clock_changes(at: str, zone: str, now: str, expected: str) -> None:
    assert Daily(at, zone).after(berlin(now)) == berlin(expected)


def test_a_daily_schedule_has_one_time_for_each_day_of_a_year() -> None:
    daily, moment, days = Daily("02:30", "Europe/Berlin"), datetime(2025, 1, 1, tzinfo=UTC), 0
    while (moment := daily.after(moment)) < datetime(2026, 1, 1, tzinfo=UTC):
        days += 1
    assert days == 365


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Every(0), "whole seconds"),
        (lambda: Every(1.5), r"Every\(1.5\)"),  # type: ignore[arg-type]
        (lambda: Every(True), "Every"),
        (lambda: Every(10**9), "Daily"),
        (lambda: Daily("3am", "UTC"), "'3am'.*'03:00'"),
        (lambda: Daily("25:00", "UTC"), "25:00"),
        (lambda: Daily(None, "UTC"), "None"),  # type: ignore[arg-type]
        (lambda: Daily("03:00", "Europe/Berl"), "'Europe/Berl'.*'Europe/Berlin'"),
        (lambda: Daily("03:00", ""), "time zone"),
        (lambda: Schedule("", POLICY, every=Every(1)), "name ''"),
        (lambda: Schedule("n" * 151, POLICY, every=Every(1)), "150"),
        (lambda: Schedule("n", POLICY, every=60), "every is 60"),  # type: ignore[arg-type]
        (lambda: Schedule("n", "queue", every=Every(1)), "policy is 'queue'"),  # type: ignore[arg-type]
        (lambda: Schedule("n", POLICY, {"x": object()}, every=Every(1)), "not JSON"),
        (lambda: Schedule("n", POLICY, action="a" * 201, every=Every(1)), "action"),
    ],
)
def test_bad_values_are_refused_where_they_are_declared(make: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        make()
