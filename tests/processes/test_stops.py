"""Workers that stand still and wake up later: somebody else has taken over, and what they still do changes nothing."""

from functools import partial

from payonce.testing import Clock, eventually
from payonce.testing.processes import Child
from tests.processes.testbed import LONG_LEASE, ProcessTestbed

TRIES = 20
ENDINGS = ("Stale", "CancelledError", "OSError", "ended")


async def test_a_worker_stopped_inside_a_handler_is_replaced_and_wakes_up_stale(testbed: ProcessTestbed) -> None:
    """Guards the local deadline and, behind it, the fence of commit()."""
    stopped = await testbed.worker()
    await testbed.put([1], deed="hold")
    await stopped_while_holding(testbed, stopped)
    testbed.journal.let_go(1)
    successor = await testbed.worker()
    await testbed.drained()
    assert await testbed.taken_over(stopped.pid) > 0
    so_far = len(endings_of(testbed, stopped.pid))
    stopped.resume()
    await woken_without_effect(testbed, stopped.pid, so_far)
    await testbed.each_applied_once()
    successor.kill()
    await testbed.put([2])
    await testbed.drained()
    await testbed.each_applied_once()
    assert stopped.running, stopped.last_lines()


async def test_a_worker_stopped_inside_an_open_commit_cannot_hold_up_its_successor(testbed: ProcessTestbed) -> None:
    """Guards idle_in_transaction_session_timeout, which is shorter than the lease."""
    stopped = await testbed.worker()
    await testbed.put([1], deed="hold_in_commit")
    await stopped_while_holding(testbed, stopped)
    testbed.journal.let_go(1)
    successor = await testbed.worker()
    await testbed.drained()
    await testbed.each_applied_once()
    stopped.resume()
    # It finds its transaction ended by the server, and serves on.
    successor.kill()
    await testbed.put([2])
    await testbed.drained()
    await testbed.each_applied_once()
    assert stopped.running, stopped.last_lines()


async def test_a_worker_stopped_while_idle_holds_up_nobody(testbed: ProcessTestbed) -> None:
    idle = await testbed.worker()
    idle.stop()
    other = await testbed.worker()
    await testbed.put(range(100))
    await testbed.drained()
    assert await testbed.taken_over(idle.pid) == 0
    other.kill()
    idle.resume()
    await testbed.put(range(100, 110))
    await testbed.drained()
    await testbed.each_applied_once()


async def test_workers_stopped_in_mid_load_change_nothing_when_they_wake(testbed: ProcessTestbed) -> None:
    first, second, third = [testbed.begin_worker(slots=20) for _ in range(3)]
    await testbed.serving(first, second, third)
    held = range(100)
    await testbed.put(held, deed="hold")
    await testbed.put(range(100, 600), takes_s=0.05)
    # Fewer slots than there are to hold: none of the three can be without work when it is stopped.
    for worker in (first, second, third):
        await eventually(lambda: len(testbed.journal.notes("holding", pid=worker.pid)) >= 20)  # noqa: B023
    first.stop()
    second.stop()
    for row in held:
        testbed.journal.let_go(row)
    await testbed.reached(200)
    for stopped in (first, second):
        await eventually(partial(testbed.taken_over, stopped.pid), 60, "a stopped worker's leases are taken over")
    first.resume()
    second.resume()
    await testbed.drained()
    await testbed.each_applied_once()
    assert [worker.running for worker in (first, second, third)] == [True] * 3


async def test_a_worker_that_blocks_its_event_loop_beyond_the_lease_commits_nothing(testbed: ProcessTestbed) -> None:
    """No signal is involved: heartbeats cannot run while the handler computes."""
    blocked = await testbed.worker()
    await testbed.put([1], deed="block")
    await testbed.noted("holding", 1)
    successor = await testbed.worker()
    await testbed.noted("holding", 1, pid=successor.pid)
    so_far = len(endings_of(testbed, blocked.pid))
    testbed.journal.let_go(1, blocked.pid)
    await woken_without_effect(testbed, blocked.pid, so_far)
    # The successor computes for longer than its lease too: nobody else may take it over from there.
    blocked.kill()
    testbed.journal.let_go(1)
    await testbed.drained()
    await testbed.each_applied_once()
    assert await testbed.ask("select pid from books.lines") == successor.pid


async def test_a_run_that_does_not_know_that_its_lease_ended_is_fenced_at_its_commit(testbed: ProcessTestbed) -> None:
    """Guards the token in commit(): the store's clock jumped, and no heartbeat is due yet."""
    policy = LONG_LEASE
    async with Clock.open(testbed.scratch.owner_url) as clock:
        unknowing = await testbed.worker(policy, slots=1)
        await testbed.put([1], policy, deed="hold")
        await testbed.noted("holding", 1)
        await clock.advance_leases(policy.lease_s + 1)
        successor = await testbed.worker(policy)
        await testbed.noted("holding", 1, pid=successor.pid)
        testbed.journal.let_go(1, unknowing.pid)
        await testbed.noted("Stale", 1, pid=unknowing.pid)
        testbed.journal.let_go(1)
        await testbed.drained()
    await testbed.each_applied_once()
    assert await testbed.ask("select pid from books.lines") == successor.pid


async def stopped_while_holding(testbed: ProcessTestbed, worker: Child) -> None:
    """One that a busy machine woke too late has just lost its lease, and is about to begin again."""
    for _ in range(TRIES):
        await testbed.noted("holding", 1, pid=worker.pid, times=len(endings_of(testbed, worker.pid)) + 1)
        worker.stop()
        if testbed.journal.notes(row=1, pid=worker.pid)[-1].event == "holding":
            return
        worker.resume()
    raise AssertionError(f"in {TRIES} tries the worker held nothing when it was stopped")


def endings_of(testbed: ProcessTestbed, pid: int) -> list[str]:
    """How the runs of the first row ended in this process, in order."""
    return [note.event for note in testbed.journal.notes(row=1, pid=pid) if note.event in ENDINGS]


async def woken_without_effect(testbed: ProcessTestbed, pid: int, so_far: int) -> None:
    """Whether its heartbeat or its commit noticed first, the run ended without a change."""
    await eventually(lambda: len(endings_of(testbed, pid)) > so_far, 60, "the late run finds out that it is late")
    assert endings_of(testbed, pid)[so_far] != "ended"
