"""Leases are renewed for as long as the process lives, and no longer than the run may last."""

from dataclasses import replace

from payonce.testing import Clock, eventually
from tests.processes.testbed import LEASE_S, LONG_LEASE, ProcessTestbed

TRIES = 5
"""A machine that stands still for longer than the lease ends it rightly; without the safeguard every try loses it."""


async def test_a_run_of_three_leases_is_not_taken_over_while_its_process_lives(testbed: ProcessTestbed) -> None:
    """Guards the heartbeat."""
    await testbed.serving(*[testbed.begin_worker() for _ in range(2)])
    for row in range(TRIES):
        await testbed.put([row], takes_s=3.2 * LEASE_S)
        await testbed.drained()
        await testbed.each_applied_once()
        if await testbed.endings(row) == ["success"]:
            assert len(testbed.journal.notes("began", row)) == 1
            return
    raise AssertionError(f"in {TRIES} tries no run was left alone by its neighbour")


async def test_a_run_over_its_limit_is_cancelled_and_tried_again(testbed: ProcessTestbed) -> None:
    """Guards the run limit: a run that hangs would otherwise be renewed for ever."""
    policy = replace(LONG_LEASE, run_limit_s=0.5)
    async with Clock.open(testbed.scratch.owner_url) as clock:
        await testbed.worker(policy)
        await testbed.put([1], policy, deed="hold")
        await testbed.noted("CancelledError", 1)
        testbed.journal.let_go(1)
        await eventually(lambda: testbed.ask("select state = 'ready' from payonce.messages"), what="it waits again")
        # Requests in transit may still arrive: nothing is retried before the lease would have ended.
        await clock.advance(policy.lease_s)
        await testbed.drained()
    await testbed.each_applied_once()
    assert await testbed.endings(1) == ["retry", "success"]
    assert await testbed.taken_over() == 0
    assert "run limit" in await testbed.ask("select last_error from payonce.job_logs where status = 'retry'")


async def test_an_exhausted_pool_of_the_handlers_does_not_end_their_leases(testbed: ProcessTestbed) -> None:
    """Guards the engine's pool of its own: twenty runs wait for two connections, some of them for three leases."""
    await testbed.serving(*[testbed.begin_worker(slots=20, pool_size=2) for _ in range(2)])
    for first in range(0, 40 * TRIES, 40):
        rows = range(first, first + 40)
        await testbed.put(rows, deed="hold_connection", takes_s=0.3)
        await testbed.drained()
        await testbed.each_applied_once()
        if sorted(note.row for note in testbed.journal.notes("began") if note.row in rows) == list(rows):
            return
    raise AssertionError(f"in {TRIES} tries some run always lost its lease")
