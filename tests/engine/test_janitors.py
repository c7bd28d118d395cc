"""The janitor runner: each on its own, leader-only ones in the leader only; failures are survived, cancellation is
immediate."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import asyncpg
import pytest

from payonce.engine import janitors
from payonce.engine.database.leases import Leadership, acquire
from payonce.engine.janitors import Every, Janitor, Schedule, run_janitors, run_ticks, while_leading
from payonce.engine.messages.model import Lease
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Stale
from payonce.testing import OpenStage, eventually

POLICY = Policy("q:test:janitors")
OFTEN_S = 0.001


class Counted:
    """A tick that counts, and fails on request."""

    def __init__(self, failing_with: Exception | None = None) -> None:
        self.count = 0
        self.failing_with = failing_with

    async def __call__(self) -> None:
        self.count += 1
        if self.failing_with is not None:
            raise self.failing_with


async def run_until(condition: Callable[[], object], *running: Janitor) -> None:
    task = asyncio.create_task(run_ticks(running))
    try:
        await eventually(lambda: task.done() or condition())
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("error", [OSError("gone"), asyncpg.CannotConnectNowError("starting"), ValueError("a bug")])
async def test_a_janitor_that_fails_goes_on_and_holds_up_nobody(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitors, "BACK_OFF_S", OFTEN_S)
    failing, well = Counted(error), Counted()
    stuck = Janitor("stuck", OFTEN_S, hang)
    await run_until(
        lambda: failing.count >= 3 and well.count >= 10,
        Janitor("failing", OFTEN_S, failing),
        Janitor("well", OFTEN_S, well),
        stuck,
    )


async def test_failures_are_tried_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    ticking = Counted(OSError("gone"))

    async def noting(moved: asyncio.Event, rest_s: float) -> None:
        rests.append(rest_s)
        ticking.failing_with = None if len(rests) == 8 else OSError("gone")
        await asyncio.sleep(0)

    monkeypatch.setattr(janitors, "_rest", noting)
    await run_until(lambda: len(rests) >= 10, Janitor("failing", 5.0, ticking))
    after_a_success = [5.0, 5.0]
    assert rests[:10] == [5.0, 5.0, 5.0, 8.0, 16.0, 32.0, 60.0, 60.0, *after_a_success]


async def test_a_tick_that_hangs_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitors, "TICK_LIMIT_S", OFTEN_S)
    monkeypatch.setattr(janitors, "BACK_OFF_S", OFTEN_S)
    begun = 0

    async def hanging() -> None:
        nonlocal begun
        begun += 1
        await hang()

    await run_until(lambda: begun >= 3, Janitor("hanging", OFTEN_S, hanging))


async def test_without_the_lease_it_is_looked_for_soon_and_not_as_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(janitors, "STANDBY_S", OFTEN_S)
    stale = Counted(Stale("lost"))
    await run_until(lambda: stale.count >= 3, Janitor("stale", 3_600.0, stale))


async def test_only_a_leader_works(stage: OpenStage) -> None:
    seen: list[Lease] = []

    async def work(lease: Lease) -> None:
        seen.append(lease)

    async with stage() as s:
        rival = await acquire(s.database, "janitors", "rival", 60.0)
        assert rival is not None
        leadership = Leadership(s.database, "janitors", "us", 60.0)
        tick: Callable[[], Awaitable[object]] = while_leading(leadership, work)
        await leadership.step()
        with pytest.raises(Stale):
            await tick()
        assert seen == []
        await s.clock.advance_leases(60)
        await leadership.step()
        await tick()
        assert [(lease.holder, lease.epoch) for lease in seen] == [("us", 2)]


async def test_a_moved_clock_ends_the_rest_of_a_janitor(stage: OpenStage) -> None:
    ticking = Counted()
    async with stage() as s:
        task = asyncio.create_task(run_ticks([Janitor("seldom", 3_600.0, ticking)], s.notifier))

        async def woken() -> bool:
            await s.clock.advance(1)
            return ticking.count >= 2

        await eventually(woken)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_of_two_processes_leads_and_the_other_follows_it(stage: OpenStage) -> None:
    """Two processes: schedules are put once, partitions are created, and a leader that stops is succeeded."""
    schedule = Schedule("nightly", POLICY, every=Every(86_400))
    async with stage() as s, stage() as other:
        await s.clock.freeze(datetime(2030, 1, 1, 12, tzinfo=UTC))
        await s.feed.declare([POLICY])

        def begin(on: object, holder: str) -> asyncio.Task[None]:
            at = s if on is s else other
            running = run_janitors(
                at.database, at.feed, at.admin, holder=holder, schedules={"shop": [schedule]}, notifier=at.notifier
            )
            return asyncio.create_task(running)

        tasks = [begin(s, "one"), begin(other, "two")]
        try:
            await eventually(lambda: s.owner.fetchval("select exists (select from payonce.schedules)"))
            await eventually(lambda: s.owner.fetchval("select to_regclass('payonce.job_logs_20300103') is not null"))
            for day in (1, 2):
                await s.clock.advance(86_400)
                await eventually(lambda: s.owner.fetchval("select count(*) = $1 from payonce.messages", day))  # noqa: B023
                # Stands for the queue's worker: no more is put for a queue without one.
                await s.owner.execute("update payonce.messages set attempts = 1")
            leader = await s.owner.fetchval("select holder from payonce.leases where name = 'schedules shop'")
            tasks[("one", "two").index(leader)].cancel()
            await eventually(lambda: s.owner.fetchval("select bool_and(holder <> $1) from payonce.leases", leader))
            await s.clock.advance(86_400)
            await eventually(lambda: s.owner.fetchval("select count(*) = 3 from payonce.messages"))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert await s.owner.fetchval("select count(*) from payonce.messages") == 3
        assert await s.owner.fetchval("select bool_and(expires_at = '-infinity') from payonce.leases")


async def test_a_process_that_does_not_know_a_service_does_not_starve_its_schedules(stage: OpenStage) -> None:
    """The process that started first leads wherever it can: the other one's service must have a leader nevertheless."""
    known = {name: [Schedule(f"{name}:nightly", POLICY, every=Every(86_400))] for name in ("shop", "stock")}
    async with stage() as s, stage() as other:
        await s.clock.freeze(datetime(2030, 1, 1, 12, tzinfo=UTC))
        await s.feed.declare([POLICY])
        tasks = []
        try:
            for at, service in ((s, "shop"), (other, "stock")):
                schedules = {service: known[service]}
                running = run_janitors(at.database, at.feed, at.admin, holder=service, schedules=schedules)
                tasks.append(asyncio.create_task(running))
                name = f"{service}:nightly"
                await eventually(
                    lambda: s.owner.fetchval("select exists (select from payonce.schedules where name = $1)", name)  # noqa: B023
                )
            await s.clock.advance(86_400)
            await eventually(lambda: s.owner.fetchval("select count(*) = 2 from payonce.messages"))
            assert await s.owner.fetchval("select holder from payonce.leases where name = 'janitors'") == "shop"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
