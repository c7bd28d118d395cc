"""A Redis server that goes away, or stands still, and comes back: workers go on by themselves, and never spin."""

import time

import pytest

from payonce.testing import eventually
from payonce.testing.processes import Child
from tests.redis.desk import RedisDesk
from tests.redis.door import Door
from tests.redis.terminal import Terminal

pytestmark = pytest.mark.timeout(300)

MESSAGES = 300
LATER = range(MESSAGES, MESSAGES + 20)
OUTAGE_WARNINGS = 3
"""So often a worker says that the store is away before the outage ends; it waits longer each time."""
KNOCKS_PER_S = 20
QUIET_S = 3
IDLE_COMMANDS_PER_S = 20
"""A look every quarter of a second, a sweep every half, one standing look."""


async def test_a_killed_server_is_used_again_by_itself_and_nothing_is_lost(desk: RedisDesk) -> None:
    workers = [desk.begin_worker(slots=20) for _ in range(2)]
    await desk.serving(*workers)
    await desk.put(range(MESSAGES), deed="skip", takes_s=0.01)
    await desk.ended(50)
    desk.server.kill()
    for worker in workers:
        await said(worker, "store_unavailable", OUTAGE_WARNINGS)
    await desk.start_server_again()
    await desk.drained()
    assert desk.ended_rows() == set(range(MESSAGES))
    assert all(worker.running for worker in workers), "went on, and not by being replaced"
    await desk.put(LATER, deed="skip")
    await desk.ended(MESSAGES + len(LATER))


async def test_a_server_that_stands_still_holds_up_nobody_for_good(desk: RedisDesk) -> None:
    """No connection breaks: only the time-out of every command ends the wait."""
    worker = await desk.worker(slots=20)
    await desk.put(range(MESSAGES), deed="skip", takes_s=0.01)
    await desk.ended(50)
    desk.server.stop_running()
    try:
        await said(worker, "store_unavailable", 1)
    finally:
        desk.server.go_on()
    await desk.drained()
    assert desk.ended_rows() == set(range(MESSAGES))
    assert worker.running
    await desk.put(LATER, deed="skip")
    await desk.ended(MESSAGES + len(LATER))


async def test_a_worker_that_is_told_to_stop_ends_although_the_server_stands_still(desk: RedisDesk) -> None:
    worker = await desk.worker()
    desk.server.stop_running()
    try:
        worker.terminate()
        assert await worker.ended(60) == 0, worker.last_words()
    finally:
        desk.server.go_on()


async def test_an_idle_worker_is_woken_by_a_put_after_the_server_came_back(desk: RedisDesk) -> None:
    """The standing look was on a connection that is gone."""
    worker = await desk.worker()
    desk.server.kill()
    await said(worker, "store_unavailable", 1)
    await desk.start_server_again()
    await desk.put([1], deed="skip")
    await desk.ended(1)
    assert worker.running


@pytest.mark.full
async def test_a_worker_without_a_server_does_not_knock_all_the_time(desk: RedisDesk) -> None:
    async with Door.open(desk.server.port) as door:
        worker = await desk.worker(redis_url=door.url)
        desk.server.kill()
        began_at, door.accepted = time.monotonic(), 0
        await said(worker, "store_unavailable", 6)
        assert door.accepted < KNOCKS_PER_S * (time.monotonic() - began_at)
        await desk.start_server_again()
        await desk.put([1], deed="skip")
        await desk.ended(1)


async def test_an_idle_worker_asks_little(desk: RedisDesk) -> None:
    await desk.worker()
    async with Terminal.open(desk.server.port) as terminal:
        assert await commands_per_s(terminal) < IDLE_COMMANDS_PER_S


async def test_a_worker_of_a_paused_queue_with_a_backlog_asks_little(desk: RedisDesk) -> None:
    """What lies in the main list would end every standing look at once."""
    await desk.worker()
    await desk.put([0], deed="skip")
    await desk.ended(1)
    await desk.admin.pause("q:pay:additions", "for the test")
    await desk.put(range(1, 50), deed="skip")
    async with Terminal.open(desk.server.port) as terminal:
        assert await commands_per_s(terminal) < IDLE_COMMANDS_PER_S
    assert desk.ended_rows() == {0}
    await desk.admin.resume("q:pay:additions")
    await desk.ended(50)


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
    assert worker.running, worker.last_words()
