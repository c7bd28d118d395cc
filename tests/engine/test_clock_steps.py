"""The store's wall clock is corrected by an hour: leases neither end all at once nor freeze."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from payonce.engine.database.clock_steps import ClockWatch
from payonce.engine.database.leases import acquire, fence, renew
from payonce.engine.effects import Findable
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Retry, Stale, Unknown
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.effects_stage import HORIZON_S, TIMEOUT_S, open_context

HOUR_S = 3_600.0
TTL_S = 30.0
HOLD = Policy("hold", lease_s=6.0)
"""Renewed every two seconds, while the sweep runs twice a second."""


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.stop()
        await asyncio.wait_for(task, 40)


async def is_renewed(s: Stage) -> bool:
    found: bool = await s.owner.fetchval(
        "select exists (select from payonce.messages where lease_until > payonce.lease_now())"
    )
    return found


@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone"])
async def test_a_step_forward_ends_no_lease_of_a_living_worker(stage: OpenStage, alone: bool) -> None:
    """An isolated message would even be parked, as if it had killed its worker."""
    began, may_end = asyncio.Event(), asyncio.Event()
    runs = 0

    @handles(HOLD)
    async def hold(work: Work) -> None:
        nonlocal runs
        runs += 1
        began.set()
        await may_end.wait()

    async with stage() as s:
        worker = await s.worker(hold)
        await s.feed.put([Message(queue="hold")])
        if alone:
            await s.owner.execute("update payonce.messages set state = 'alone', crashes = 2")
        async with running(worker):
            await asyncio.wait_for(began.wait(), 30)
            await s.clock.step(HOUR_S)
            await eventually(lambda: is_renewed(s))
            may_end.set()
            await eventually(s.drained)
        assert runs == 1
        assert [row["status"] for row in await s.owner.fetch("select status from payonce.job_logs")] == ["success"]


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
async def test_after_a_step_a_dead_worker_is_replaced_all_the_same(stage: OpenStage, step_s: float) -> None:
    policy = Policy("hold", lease_s=1.0)

    @handles(policy)
    async def hold(work: Work) -> None:
        """Done at once."""

    async with stage() as s:
        worker, dead = await s.worker(hold), await s.queue(policy, "dead")
        await s.feed.put([Message(queue="hold")])
        assert (await dead.exchange([], 1)).claims
        async with running(worker):
            await s.clock.step(step_s)
            await eventually(s.drained)


async def test_a_lease_from_before_a_step_back_ends_one_lease_after_it_was_seen(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(HOLD)
        await s.clock.freeze()
        await s.feed.put([Message(queue="hold") for _ in range(2)])
        [living, _] = (await queue.exchange([], 2)).claims
        await s.clock.step(-HOUR_S)
        assert await queue.reap() == 0
        assert await queue.extend([living]) == []
        await s.clock.advance_leases(HOLD.lease_s - 0.1)
        assert await queue.extend([living]) == []
        assert await queue.reap() == 0
        await s.clock.advance_leases(0.1)
        assert await queue.reap() == 1


async def test_a_lease_of_its_proper_length_is_not_shortened(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(HOLD)
        await s.feed.put([Message(queue="hold")])
        assert (await queue.exchange([], 1)).claims
        before = await s.owner.fetchval("select lease_until from payonce.messages")
        assert await queue.reap() == 0
        assert await s.owner.fetchval("select lease_until from payonce.messages") == before


async def test_a_dead_leader_from_before_a_step_back_is_replaced_one_time_to_live_after_it_was_seen(
    stage: OpenStage,
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        assert await acquire(s.database, "leader", "a", TTL_S) is not None
        await s.clock.step(-HOUR_S)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(TTL_S - 0.1)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(0.1)
        assert await acquire(s.database, "leader", "b", TTL_S) is not None


async def test_a_living_leader_renews_its_lease_from_before_a_step_back(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        leader = await acquire(s.database, "leader", "a", TTL_S)
        assert leader is not None
        await s.clock.step(-HOUR_S)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(TTL_S - 1)
        assert await renew(s.database, leader)
        await s.clock.advance_leases(TTL_S - 1)
        assert await acquire(s.database, "leader", "b", TTL_S) is None
        await s.clock.advance_leases(1)
        assert await acquire(s.database, "leader", "b", TTL_S) is not None


async def test_a_step_forward_lets_the_next_leader_in_and_the_former_one_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        former = await acquire(s.database, "leader", "a", TTL_S)
        assert former is not None
        await s.clock.step(HOUR_S)
        assert await acquire(s.database, "leader", "b", TTL_S) is not None
        assert not await renew(s.database, former)
        with pytest.raises(Stale):
            async with s.database.transaction() as connection:
                await fence(connection, former)


async def test_an_effect_in_doubt_waits_after_a_step_back_until_the_clock_has_caught_up(stage: OpenStage) -> None:
    """Whether its send has ended is unknown: it is not sent twice, and waits no longer than the step."""
    async with open_context(stage, Findable(HORIZON_S), "lost after") as context:
        await context.s.clock.freeze()
        work = await context.claim()
        with pytest.raises(Unknown):
            await context.pay(work)
        await context.s.owner.execute(
            "update payonce.effects set state = 'intended', busy_until = sent_until"
        )  # As a process leaves it that died in the call.
        await context.s.clock.step(-HOUR_S)
        with pytest.raises(Retry) as waits:
            await context.pay(work)
        assert waits.value.after_s == pytest.approx(HOUR_S + TIMEOUT_S)
        await context.s.clock.advance(HOUR_S + TIMEOUT_S)
        await context.pay(work)
        assert context.vendor.times() == {"p-1:1": 1}


async def test_only_a_step_of_both_clocks_counts_as_one(stage: OpenStage) -> None:
    async with stage() as s:
        watch = ClockWatch(s.database)
        assert await watch.stepped_s() == 0.0, "there is nothing to compare the first look with"
        assert await watch.stepped_s() == 0.0
        await s.clock.advance_leases(HOUR_S)
        assert await watch.stepped_s() == 0.0
        await s.clock.advance(HOUR_S)
        assert await watch.stepped_s() == 0.0
        await s.clock.step(HOUR_S)
        assert await watch.stepped_s() == pytest.approx(HOUR_S, abs=1.0)
        await s.clock.step(-HOUR_S)
        assert await watch.stepped_s() == 0.0
