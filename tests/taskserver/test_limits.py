"""Rate, concurrency and the slowing down of an overloaded worker's queue."""

import asyncio

import pytest

from payonce.taskserver.dispatch import LEASE_S
from payonce.testing import eventually
from tests.locks import all_wait, stopped_at
from tests.taskserver.testbed import QUEUE, TaskServerTestbed

FAR = {"min_backoff": {"seconds": 3_600}, "max_backoff": {"seconds": 3_600}}


async def fill(testbed: TaskServerTestbed, count: int, queue: str = QUEUE) -> None:
    for first in range(0, count, 100):
        tasks = [{"parent": queue, "task": testbed.http()} for _ in range(min(100, count - first))]
        await testbed.client.batch_create_tasks(parent=queue, requests=tasks)


@pytest.mark.parametrize(("rate", "burst"), [(10.0, 10), (2.5, 3), (0.5, 1)])
async def test_no_second_sees_more_than_rate_and_burst(still: TaskServerTestbed, rate: float, burst: int) -> None:
    queue = await still.queue(rate_limits={"max_dispatches_per_second": rate})
    assert queue.rate_limits.max_burst_size == burst
    await fill(still, 100)
    dispatched = [await still.steps()]
    for _ in range(80):
        await still.s.clock.advance(0.05)
        dispatched.append(await still.steps())
    assert dispatched[0] == burst
    windows = [sum(dispatched[start : start + 20]) for start in range(len(dispatched) - 20)]
    assert max(windows) <= rate + burst
    assert burst + rate * 4 - 1 <= sum(dispatched) <= burst + rate * 4


async def test_the_rate_is_the_queues_and_not_a_servers(still: TaskServerTestbed) -> None:
    """Claims of two processes draw on one bucket, and a restart does not fill it."""
    await still.queue(rate_limits={"max_dispatches_per_second": 5})
    await fill(still, 20)
    first = await still.claims(limit=3)
    second = await still.claims(limit=100)
    assert (len(first.tasks), len(second.tasks)) == (3, 2)
    [rest_s] = second.rests_s.values()
    assert rest_s == pytest.approx(0.2)


async def test_concurrency_counts_live_leases(still: TaskServerTestbed) -> None:
    await still.queue(rate_limits={"max_concurrent_dispatches": 3})
    await fill(still, 10)
    assert len((await still.claims(limit=100)).tasks) == 3
    assert len((await still.claims(limit=100)).tasks) == 0
    await still.s.clock.advance_leases(LEASE_S + 1)
    assert len((await still.claims(limit=100)).tasks) == 3, "the dead hold no slot"


async def test_claims_at_the_same_moment_keep_the_concurrency(still: TaskServerTestbed) -> None:
    """Each counts the leases when the others have counted and not committed yet."""
    await still.queue(rate_limits={"max_concurrent_dispatches": 7})
    await fill(still, 50)
    async with stopped_at(still.s, "update", "cloudtasks.tasks"):
        claiming = [asyncio.create_task(still.claims(limit=4)) for _ in range(3)]
        await all_wait(still.s, 3)
    claims = await asyncio.gather(*claiming)
    assert sum(len(each.tasks) for each in claims) == 7


async def test_a_slot_that_becomes_free_is_used_at_once(testbed: TaskServerTestbed) -> None:
    await testbed.queue(rate_limits={"max_concurrent_dispatches": 2})
    testbed.worker.open.clear()
    await fill(testbed, 6)
    await testbed.arrivals(2)
    testbed.worker.open.set()
    await testbed.arrivals(6)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_overloaded_worker_slows_its_queue_which_recovers(still: TaskServerTestbed, status: int) -> None:
    await still.queue(rate_limits={"max_dispatches_per_second": 16}, retry_config=FAR)
    await fill(still, 200)
    still.worker.answers(status, 200)
    assert await still.steps() == 8, "the bucket of half the rate is half as large"
    await still.s.clock.advance(1)
    assert await still.steps() == 8
    await still.s.clock.advance(20)
    await still.steps()
    await still.s.clock.advance(1)
    assert await still.steps() == 16


async def test_a_queue_whose_worker_mostly_fails_is_slowed(testbed: TaskServerTestbed) -> None:
    await testbed.queue(retry_config=FAR)
    testbed.worker.answers(500)
    await fill(testbed, 40)
    await testbed.arrivals(40)

    async def pace() -> bool:
        return bool(await testbed.s.database.work.fetchval("select pace < 1 from cloudtasks.queues"))

    await eventually(pace, what="the queue is slowed")


async def test_a_few_errors_slow_nothing(testbed: TaskServerTestbed) -> None:
    await testbed.queue(retry_config=FAR)
    testbed.worker.answers(500, 200)
    await fill(testbed, 40)
    await testbed.arrivals(40)
    assert await testbed.s.database.work.fetchval("select pace from cloudtasks.queues") == 1
