"""SIGTERM: what runs may finish within the grace, nothing new begins, and the process ends in order."""

from payonce.testing import Clock, eventually
from tests.processes.proxy import CLAIM, Fate, Proxy
from tests.processes.testbed import LONG_LEASE, ProcessTestbed


async def test_a_worker_told_to_stop_finishes_what_runs_and_claims_nothing_more(testbed: ProcessTestbed) -> None:
    worker = await testbed.worker(LONG_LEASE, slots=4)
    await testbed.put(range(4), LONG_LEASE, deed="hold")
    await eventually(lambda: len(testbed.journal.notes("holding")) == 4)
    await testbed.put(range(4, 20), LONG_LEASE)
    worker.terminate()
    await testbed.noted("draining", 0)
    for row in range(4):
        testbed.journal.let_go(row)
    assert await worker.ended() == 0, worker.last_lines()
    assert await testbed.applied() == 4
    assert await testbed.ask("select count(*) from payonce.messages where state = 'ready' and attempts = 0") == 16
    await testbed.worker(LONG_LEASE)
    await testbed.drained()
    await testbed.each_applied_once()


async def test_a_run_longer_than_the_grace_is_cancelled_and_finished_by_another_worker(testbed: ProcessTestbed) -> None:
    """The attempt counts, and nobody begins before the lease of the cancelled run has ended."""
    async with Clock.open(testbed.scratch.owner_url) as clock:
        worker = await testbed.worker(LONG_LEASE, grace_s=0.2)
        await testbed.put([1], LONG_LEASE, deed="hold")
        await testbed.noted("holding", 1)
        worker.terminate()
        assert await worker.ended() == 0, worker.last_lines()
        await testbed.noted("CancelledError", 1)
        assert await testbed.ask("select attempts from payonce.messages") == 1
        assert await testbed.ask("select ready_at > payonce.due_now() + interval '100 s' from payonce.messages")
        testbed.journal.let_go(1)
        await clock.advance(LONG_LEASE.lease_s)
        await testbed.worker(LONG_LEASE)
        await testbed.drained()
    await testbed.each_applied_once()
    assert await testbed.endings(1) == ["retry", "success"]
    assert await testbed.taken_over() == 0


async def test_claims_that_arrive_after_the_order_to_stop_do_not_outlive_the_grace(
    testbed: ProcessTestbed, proxy: Proxy
) -> None:
    """The round trip was under way when the signal came."""
    await testbed.put([1], LONG_LEASE, deed="hold")
    claims = proxy.expect(CLAIM, Fate.ANSWER_HELD)
    worker = await testbed.worker(LONG_LEASE, url=proxy.url, grace_s=0.2)
    await eventually(lambda: claims.met == 1)
    worker.terminate()
    await testbed.noted("draining", 0)
    claims.let_through.set()
    assert await worker.ended() == 0, worker.last_lines()


async def test_a_suspect_waiting_to_run_alone_is_not_begun_after_the_order_to_stop(testbed: ProcessTestbed) -> None:
    """Begun then, it would outlive the grace, be killed with the process, and be parked for dying alone."""
    worker = await testbed.worker(LONG_LEASE, grace_s=0.5)
    await testbed.put([1], LONG_LEASE, deed="hold")
    await testbed.noted("holding", 1)
    await testbed.put([2], LONG_LEASE, deed="hold", delay_s=3_600.0)
    await testbed.ask(
        """
        update payonce.messages set state = 'alone', crashes = 2, ready_at = payonce.due_now()
        where (payload->>'row')::int = 2
        """
    )
    await eventually(lambda: suspect_is_held(testbed), what="the suspect waits to run alone")
    worker.terminate()
    assert await worker.ended() == 0, worker.last_lines()
    assert not testbed.journal.notes("began", 2)


async def suspect_is_held(testbed: ProcessTestbed) -> bool:
    return bool(
        await testbed.ask("select exists (select from payonce.messages where crashes = 2 and state = 'leased')")
    )
