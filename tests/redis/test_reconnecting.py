"""A Redis server that goes away, or stands still, and comes back: workers go on by themselves, and never spin."""

import time

import pytest

from payonce.testing import eventually
from payonce.testing.processes import Child
from tests.redis.fault_proxy import FaultProxy
from tests.redis.terminal import Terminal
from tests.redis.testbed import RedisTestbed

pytestmark = pytest.mark.timeout(300)

MESSAGES = 300
LATER = range(MESSAGES, MESSAGES + 20)
OUTAGE_WARNINGS = 3
"""So often a worker says that the store is away before the outage ends; it waits longer each time."""
KNOCKS_PER_S = 20
QUIET_S = 3
IDLE_COMMANDS_PER_S = 20
"""A look every quarter of a second, a sweep every half, one standing look."""


async def test_a_killed_server_is_used_again_by_itself_and_nothing_is_lost(testbed: RedisTestbed) -> None:
    workers = [testbed.begin_worker(slots=20) for _ in range(2)]
    await testbed.serving(*workers)
    await testbed.put(range(MESSAGES), deed="skip", takes_s=0.01)
    await testbed.ended(50)
    testbed.server.kill()
    for worker in workers:
        await said(worker, "store_unavailable", OUTAGE_WARNINGS)
    await testbed.start_server_again()
    await testbed.drained()
    assert testbed.ended_rows() == set(range(MESSAGES))
    assert all(worker.running for worker in workers), "went on, and not by being replaced"
    await testbed.put(LATER, deed="skip")
    await testbed.ended(MESSAGES + len(LATER))


async def test_a_server_that_stands_still_holds_up_nobody_for_good(testbed: RedisTestbed) -> None:
    """No connection breaks: only the time-out of every command ends the wait."""
    worker = await testbed.worker(slots=20)
    await testbed.put(range(MESSAGES), deed="skip", takes_s=0.01)
    await testbed.ended(50)
    testbed.server.pause()
    try:
        await said(worker, "store_unavailable", 1)
    finally:
        testbed.server.resume()
    await testbed.drained()
    assert testbed.ended_rows() == set(range(MESSAGES))
    assert worker.running
    await testbed.put(LATER, deed="skip")
    await testbed.ended(MESSAGES + len(LATER))


async def test_a_worker_that_is_told_to_stop_ends_although_the_server_stands_still(testbed: RedisTestbed) -> None:
    worker = await testbed.worker()
    testbed.server.pause()
    try:
        worker.terminate()
        assert await worker.ended(60) == 0, worker.last_lines()
    finally:
        testbed.server.resume()


async def test_an_idle_worker_is_woken_by_a_put_after_the_server_came_back(testbed: RedisTestbed) -> None:
    """The standing look was on a connection that is gone."""
    worker = await testbed.worker()
    testbed.server.kill()
    await said(worker, "store_unavailable", 1)
    await testbed.start_server_again()
    await testbed.put([1], deed="skip")
    await testbed.ended(1)
    assert worker.running


@pytest.mark.full
async def test_a_worker_without_a_server_does_not_knock_all_the_time(testbed: RedisTestbed) -> None:
    async with FaultProxy.open(testbed.server.port) as proxy:
        worker = await testbed.worker(redis_url=proxy.url)
        testbed.server.kill()
        began_at, proxy.accepted = time.monotonic(), 0
        await said(worker, "store_unavailable", 6)
        assert proxy.accepted < KNOCKS_PER_S * (time.monotonic() - began_at)
        await testbed.start_server_again()
        await testbed.put([1], deed="skip")
        await testbed.ended(1)


async def test_an_idle_worker_asks_little(testbed: RedisTestbed) -> None:
    await testbed.worker()
    async with Terminal.open(testbed.server.port) as terminal:
        assert await commands_per_s(terminal) < IDLE_COMMANDS_PER_S


async def test_a_worker_of_a_paused_queue_with_a_backlog_asks_little(testbed: RedisTestbed) -> None:
    """Messages in the main list would end every blocking wait at once."""
    await testbed.worker()
    await testbed.put([0], deed="skip")
    await testbed.ended(1)
    await testbed.admin.pause("q:pay:additions", "for the test")
    await testbed.put(range(1, 50), deed="skip")
    async with Terminal.open(testbed.server.port) as terminal:
        assert await commands_per_s(terminal) < IDLE_COMMANDS_PER_S
    assert testbed.ended_rows() == {0}
    await testbed.admin.resume("q:pay:additions")
    await testbed.ended(50)


async def commands_per_s(terminal: Terminal) -> float:
    """How many commands others send while some seconds, or more, pass on the server's own clock."""
    began_s, before = await server_s(terminal), await calls(terminal)

    async def over() -> bool:
        return await server_s(terminal) >= began_s + QUIET_S

    await eventually(over, QUIET_S * 10, "the quiet time is over")
    sent = await calls(terminal) - before
    return sent / (await server_s(terminal) - began_s)


async def server_s(terminal: Terminal) -> float:
    seconds, microseconds = await terminal.type("TIME")
    return int(seconds) + int(microseconds) / 1e6


async def calls(terminal: Terminal) -> int:
    """Of everything but INFO and TIME, which this test itself asks, and what scripts do inside."""
    told = await terminal.type("INFO commandstats")
    words = ("cmdstat_evalsha:", "cmdstat_blmove:", "cmdstat_llen:", "cmdstat_ping:")
    lines = [line for line in told.splitlines() if line.startswith(words)]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


async def said(worker: Child, words: str, times: int) -> None:
    await eventually(
        lambda: worker.output.count(words) >= times or not worker.running, 60, f"{worker.name} says {words} again"
    )
    assert worker.running, worker.last_lines()
