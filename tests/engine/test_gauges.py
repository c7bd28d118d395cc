"""The gauges show the state of the store."""

import asyncio

import asyncpg
import pytest

from payonce.engine.controls import ReviewAnswer, answer_review_action, freeze, set_threshold, submit
from payonce.engine.effects import Answer, Keyed
from payonce.engine.janitors.gauges import oldest_snapshot_s, refresh_metrics
from payonce.engine.messages.model import Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.testing import OpenStage
from tests.engine.controls_stage import PayCoins, euros, open_till

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
        await refresh_metrics(s.database, s.admin)
        states = {"ready": 3, "delayed": 1, "alone": 0, "leased": 1, "parked": 1}
        assert {state: gauge("queue_depth", queue=POLICY.queue, state=state) for state in states} == states
        assert gauge("queue_oldest_ready_seconds", queue=POLICY.queue) == 42
        assert gauge("queue_paused", queue=POLICY.queue) == 1
        await s.admin.resume(POLICY.queue)
        await refresh_metrics(s.database, s.admin)
        assert gauge("queue_paused", queue=POLICY.queue) == 0


async def test_the_oldest_snapshot_of_our_own_sessions_is_shown(stage: OpenStage) -> None:
    async with stage() as s:
        assert await oldest_snapshot_s(s.database) < 5
        async with s.database.work.acquire() as connection, connection.transaction(isolation="repeatable_read"):
            await connection.execute("select from payonce.queues")
            await s.clock.advance_leases(100)
            await refresh_metrics(s.database, s.admin)
            age_s = gauge("oldest_snapshot_seconds")
            assert age_s is not None
            assert 100 <= age_s < 130
        await refresh_metrics(s.database, s.admin)
        assert gauge("oldest_snapshot_seconds") == 0


async def test_open_effects_are_shown_by_state_with_their_amounts_and_the_oldest_age(stage: OpenStage) -> None:
    async with open_till(stage, Keyed(3_600.0)) as till:
        await till.s.clock.freeze()
        await till.in_review("p-1", 12_345)
        await till.s.clock.advance(60)
        await till.in_review("p-2", 55)
        unknown, performed = await till.claim(2)
        till.vendor.faults.append("lost after")
        await asyncio.gather(till.pay(unknown, "p-3", 2_500_000_000, PayCoins), return_exceptions=True)
        await till.pay(performed, "p-4")
        await till.s.clock.advance(5)
        await refresh_metrics(till.s.database, till.s.admin)
        assert gauge("open_effects", state="review", kind="bank.pay") == 2
        assert gauge("open_effects", state="unknown", kind="exchange.swap") == 1
        assert gauge("open_effects_amount", state="review", asset="EUR") == 124.0
        assert gauge("open_effects_amount", state="unknown", asset="TON") == 2.5
        ages = {state: gauge("oldest_open_effect_seconds", state=state) for state in ("intended", "unknown", "review")}
        assert ages == {"intended": 0, "unknown": 5, "review": 65}
        await till.pay(unknown, "p-3", 2_500_000_000, PayCoins)
        await refresh_metrics(till.s.database, till.s.admin)
        assert gauge("open_effects", state="unknown", kind="exchange.swap") is None, "what ended is no longer shown"
        assert gauge("oldest_open_effect_seconds", state="unknown") == 0


async def test_when_the_gauges_were_read_is_shown_and_stays_when_they_cannot_be(stage: OpenStage) -> None:
    async with stage() as s:
        await refresh_metrics(s.database, s.admin)
        read_at = gauge("observed_timestamp_seconds")
        assert read_at
        await s.owner.execute("revoke select on payonce.freezes from payonce_service")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await refresh_metrics(s.database, s.admin)
        assert gauge("observed_timestamp_seconds") == read_at


async def test_calls_to_a_vendor_are_timed_and_their_records_counted(stage: OpenStage) -> None:
    def counted() -> list[float]:
        kind = {"kind": "bank.pay"}
        calls = [gauge("vendor_seconds_count", call=call, **kind) for call in ("perform", "resolve")]
        return [value or 0.0 for value in (*calls, gauge("db_writes_total", table="effects", outcome="ok"))]

    before = counted()
    async with open_till(stage, Keyed(3_600.0)) as till:
        [work] = await till.claim(1)
        await till.pay(work, "p-1")
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [1, 0, 1]


async def test_freezes_and_waiting_approvals_are_shown(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        review = await till.in_review()
        async with till.begin() as tx:
            await freeze(tx, by="ada", reason="look first", everything=True, for_s=3_600)
            await set_threshold(tx, euros("0"), "ada")
            given = ReviewAnswer(review.effect.id, review.effect.revision, Answer.DID_NOT, "looked")
            await submit(tx, answer_review_action(till.s.admin), given, "ada", "looked")
        await refresh_metrics(till.s.database, till.s.admin)
        assert (gauge("freezes"), gauge("approvals_waiting")) == (1, 1)
        await till.s.clock.advance(90_000)
        await refresh_metrics(till.s.database, till.s.admin)
        assert (gauge("freezes"), gauge("approvals_waiting")) == (0, 0)
