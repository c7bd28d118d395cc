"""Leases are renewed for as long as the process lives, and no longer than the run may last."""

from dataclasses import replace

from payonce.testing import eventually
from tests.processes.desk import LEASE_S, POLICY, Desk


async def test_a_run_of_three_leases_is_not_taken_over_while_its_process_lives(desk: Desk) -> None:
    """Guards the heartbeat."""
    for worker in [desk.begin_worker() for _ in range(2)]:
        await desk.serving(worker)
    await desk.put([1], takes_s=3.2 * LEASE_S)
    await desk.drained()
    await desk.each_applied_once()
    assert len(desk.journal.notes("began", 1)) == 1
    assert await desk.endings(1) == ["success"]


async def test_a_run_over_its_limit_is_cancelled_and_tried_again(desk: Desk) -> None:
    """Guards the run limit: a run that hangs would otherwise be renewed for ever."""
    policy = replace(POLICY, run_limit_s=1.5)
    await desk.worker(policy)
    await desk.put([1], policy, deed="hold")
    await desk.noted("CancelledError", 1)
    desk.journal.let_go(1)
    await desk.drained()
    await desk.each_applied_once()
    assert await desk.endings(1) == ["retry", "success"]
    assert await desk.taken_over() == 0
    assert "run limit" in await desk.ask("select last_error from payonce.job_logs where status = 'retry'")


async def test_an_exhausted_pool_of_the_handlers_does_not_end_their_leases(desk: Desk) -> None:
    """Guards the engine's pool of its own: twenty runs wait for two connections, some of them for three leases."""
    for worker in [desk.begin_worker(slots=20, pool_size=2) for _ in range(2)]:
        await desk.serving(worker)
    await desk.put(range(40), deed="hold_connection", takes_s=0.3)
    await eventually(lambda: len(desk.journal.notes("began")) == 40)
    await desk.drained()
    await desk.each_applied_once()
    assert len(desk.journal.notes("began")) == 40
    assert set(await desk.endings()) == {"success"}
