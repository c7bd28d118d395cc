"""Promise 4: delays follow the policy by the store's clock, and nothing runs early."""

from datetime import timedelta

import pytest

from payonce.engine.messages.model import DELAY_MAX_S, Ending, SettleAnswer, Settlement
from payonce.engine.messages.policy import Ended, Exponential, Policy, next_step
from payonce.kit.outcomes import Invalid
from tests.conformance.backend import (
    PLAIN,
    QUEUE,
    Backend,
    claim,
    claim_one,
    ids,
    message,
    released,
    retry,
    settle,
    success,
)


async def test_a_delayed_message_is_not_claimable_a_moment_early(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message(delay_s=60.0)])
    assert (await backend.admin.depth(QUEUE)).delayed == 1
    await backend.time.advance(59.999)
    assert await claim(queue) == []
    await backend.time.advance(0.001)
    assert ids(await claim(queue)) == [sent]


async def test_not_before_is_an_earliest_time(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    now = await backend.time.now()
    past, future = await backend.feed.put(
        [message(not_before=now - timedelta(days=1)), message(not_before=now + timedelta(hours=1))]
    )
    assert ids(await claim(queue)) == [past]
    await backend.time.advance(3_599)
    assert await claim(queue) == []
    await backend.time.advance(1)
    assert ids(await claim(queue)) == [future]


async def test_a_retry_waits_for_its_delay(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await settle(queue, retry(await claim_one(queue), delay_s=10))
    [line] = await backend.log_of(sent)
    assert line.next_retry_at == await backend.time.now() + timedelta(seconds=10)
    await backend.time.advance(9.9)
    assert await claim(queue) == []
    await backend.time.advance(0.1)
    assert (await claim_one(queue)).message.attempts == 1


async def test_retries_come_when_the_policy_says(backend: Backend) -> None:
    policy = Policy(QUEUE, max_attempts=5, backoff=Exponential(10, 2, 35))
    queue = await backend.queue(policy)
    await backend.feed.put([message()])
    waited = []
    while True:
        claimed = await claim_one(queue)
        now = await backend.time.now()
        step = next_step(policy, claimed.message, claimed.first_attempt_at, now, Ended(Ending.RETRY, "busy"))
        assert await settle(queue, Settlement(claimed, step.ending, step.reason, step.delay_s)) == [
            SettleAnswer.SETTLED
        ]
        if step.ending is Ending.PARKED:
            break
        await backend.time.advance(step.delay_s - 0.001)
        assert await claim(queue) == []
        await backend.time.advance(0.001)
        waited.append(step.delay_s)
    assert waited == [10, 20, 35, 35]
    assert (await backend.admin.depth(QUEUE)).parked == 1


async def test_age_is_counted_from_the_first_attempt(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await backend.time.advance(500)
    first = await claim_one(queue)
    await settle(queue, retry(first, delay_s=100))
    await backend.time.advance(100)
    second = await claim_one(queue)
    assert second.first_attempt_at == first.first_attempt_at == first.claimed_at
    assert second.claimed_at - first.claimed_at == timedelta(seconds=100)


async def test_a_message_that_was_only_released_has_no_age(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    for _ in range(3):
        held = await claim_one(queue)
        assert held.first_attempt_at == held.claimed_at
        await settle(queue, Settlement(held, Ending.RELEASED, "frozen", 60.0))
        await backend.time.advance(600)


async def test_the_time_of_a_release_does_not_age_a_message(backend: Backend) -> None:
    """One that was tried, and one whose worker died: their age continues from where the release found it."""
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message(), message()])
    tried, died = await claim(queue)
    await settle(queue, retry(tried, delay_s=100))
    await backend.time.advance_leases(PLAIN.lease_s + 1)
    assert await queue.reap() == 1
    await backend.time.advance(100)
    for _ in range(3):
        for held in await claim(queue):
            assert held.claimed_at - held.first_attempt_at == timedelta(seconds=100)
            await settle(queue, Settlement(held, Ending.RELEASED, "frozen", 60.0))
        await backend.time.advance(60)
    await backend.time.advance(40)
    again = await claim(queue)
    assert {claimed.message.id for claimed in again} == {tried.message.id, died.message.id}
    for claimed in again:
        assert claimed.claimed_at - claimed.first_attempt_at == timedelta(seconds=140), "ready, it ages"


async def test_a_released_message_waits_uncounted_and_unlogged(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    back = released(await claim_one(queue))
    await settle(queue, Settlement(back.claim, back.ending, back.reason, 5.0))
    assert await claim(queue) == []
    await backend.time.advance(5)
    again = await claim_one(queue)
    assert (again.message.attempts, again.crashes) == (0, 0)
    await settle(queue, success(again))
    assert [line.status for line in await backend.log_of(sent)] == ["success"]


async def test_the_lease_clock_makes_nothing_due(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message(delay_s=60.0)])
    await backend.time.advance_leases(86_400)
    assert await claim(queue) == []


@pytest.mark.parametrize("delay_s", [-1.0, DELAY_MAX_S + 1.0, float("inf"), float("nan")])
async def test_a_delay_that_makes_no_sense_is_refused_at_put(backend: Backend, delay_s: float) -> None:
    await backend.queue(PLAIN)
    with pytest.raises(Invalid, match="delay_s"):
        await backend.feed.put([message(delay_s=delay_s)])
    assert (await backend.admin.depth(QUEUE)).delayed == 0
