"""The gauges say what is in the store."""

from payonce.engine.janitors.observe import observe, oldest_snapshot_s
from payonce.engine.metrics import REGISTRY
from payonce.engine.model import Ending, Message, Settlement
from payonce.engine.policy import Policy
from payonce.testing import OpenStage

POLICY = Policy("q:test:observed", lease_s=30)


def gauge(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"payonce_{name}", labels)


async def test_depth_age_and_pause_are_shown_by_queue(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        queue = await s.queue(POLICY)
        await s.feed.put([Message(queue=POLICY.queue) for _ in range(2)])
        parked, _ = (await queue.exchange([], 2)).claims
        await queue.exchange([Settlement(parked, Ending.PARKED, "no")], 0)
        await s.feed.put([Message(queue=POLICY.queue) for _ in range(3)])
        await s.feed.put([Message(queue=POLICY.queue, delay_s=3_600)])
        await s.clock.advance(42)
        await s.admin.pause(POLICY.queue, "look")
        await observe(s.database, s.admin)
        states = {"ready": 3, "delayed": 1, "alone": 0, "leased": 1, "parked": 1}
        assert {state: gauge("queue_depth", queue=POLICY.queue, state=state) for state in states} == states
        assert gauge("queue_oldest_ready_seconds", queue=POLICY.queue) == 42
        assert gauge("queue_paused", queue=POLICY.queue) == 1
        await s.admin.resume(POLICY.queue)
        await observe(s.database, s.admin)
        assert gauge("queue_paused", queue=POLICY.queue) == 0


async def test_the_oldest_snapshot_of_our_own_sessions_is_shown(stage: OpenStage) -> None:
    async with stage() as s:
        assert await oldest_snapshot_s(s.database) < 5
        async with s.database.work.acquire() as connection, connection.transaction(isolation="repeatable_read"):
            await connection.execute("select from payonce.queues")
            await s.clock.advance_leases(100)
            await observe(s.database, s.admin)
            age_s = gauge("oldest_snapshot_seconds")
            assert age_s is not None
            assert 100 <= age_s < 130
        await observe(s.database, s.admin)
        assert gauge("oldest_snapshot_seconds") == 0
