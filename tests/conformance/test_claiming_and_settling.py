"""Promises 1 and 2: messages are handled until settled, by one worker at a time."""

import asyncio
from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest

from payonce.engine.messages.model import PAYLOAD_MAX_BYTES, Claim, SettleAnswer, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import PullQueue
from payonce.kit.outcomes import Invalid
from tests.conformance.backend import (
    LEASE_S,
    PLAIN,
    QUEUE,
    Backend,
    beside_a_lock,
    claim,
    claim_one,
    failed,
    ids,
    let_leases_end,
    message,
    parked,
    released,
    retry,
    settle,
    stored,
    success,
)

MANY = 2_000
CLAIMERS = 8


async def test_what_is_put_is_claimed_as_it_was_and_gone_when_settled(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = message(
        action="pay",
        correlation_id="order-1",
        trace_id="t-1",
        payload={"wei": 2**63 - 1, "ö": [None]},
        extra={"sender": "shop"},
        max_attempts=3,
    )
    assert await backend.feed.put([sent]) == [sent.id]
    claimed = await claim_one(queue)
    got = claimed.message
    assert (got.id, got.action, got.correlation_id, got.trace_id) == (sent.id, "pay", "order-1", "t-1")
    assert (got.payload, got.extra, got.attempts, got.max_attempts) == (sent.payload, sent.extra, 0, 3)
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]
    assert await claim(queue) == []
    depth = await backend.admin.depth(QUEUE)
    assert (depth.ready, depth.leased, depth.parked) == (0, 0, 0)
    assert [line.status for line in await backend.log_of(sent.id)] == ["success"]


async def test_settling_and_claiming_is_one_exchange(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    first, second = await backend.feed.put([message(), message()])
    [held] = await claim(queue, 1)
    exchange = await queue.exchange([success(held)], 5)
    assert exchange.answers == [SettleAnswer.SETTLED]
    assert {held.message.id, *ids(exchange.claims)} == {first, second}


async def test_a_put_that_rolls_back_leaves_nothing(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)

    async def put_and_fail() -> None:
        async with backend.transaction() as connection:
            await backend.feed.put([message(idempotency_key="once")], within=connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await put_and_fail()
    assert await claim(queue) == []
    again = message(idempotency_key="once")
    assert await backend.feed.put([again]) == [again.id], "the key of a put that never happened must be free"


@pytest.mark.parametrize("count", [1, 5, 150, 1_200])
async def test_a_batch_with_one_refused_message_stores_none(backend: Backend, count: int) -> None:
    queue = await backend.queue(PLAIN)
    bad = message(payload={"scan": "x" * PAYLOAD_MAX_BYTES})
    with pytest.raises(Invalid, match="payload"):
        await backend.feed.put([*(message() for _ in range(count)), bad])
    assert await claim(queue) == []
    assert len(await backend.feed.put([message()])) == 1, "the refusal must leave nothing broken behind"


async def test_a_put_within_a_transaction_is_seen_only_after_its_commit(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    async with backend.transaction() as connection:
        [sent] = await backend.feed.put([message()], within=connection)
        assert await claim(queue) == []
    assert ids(await claim(queue)) == [sent]


async def test_an_unsettled_message_comes_back_until_it_is_settled(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await claim_one(queue)
    await let_leases_end(backend, queue)
    second = await claim_one(queue)
    assert second.message.id == sent
    assert await settle(queue, success(second)) == [SettleAnswer.SETTLED]
    assert await let_leases_end(backend, queue) == 0
    assert await claim(queue) == []


async def test_each_of_many_messages_is_claimed_exactly_once_by_many_claimers(backend: Backend) -> None:
    queues = [await backend.queue(PLAIN, f"worker-{number}") for number in range(CLAIMERS)]
    sent = await backend.feed.put([message() for _ in range(MANY)])
    claims: Counter[UUID] = Counter()
    settled: list[SettleAnswer] = []

    async def work(queue: PullQueue) -> None:
        batch = await claim(queue, 50)
        while batch and claims.total() <= MANY:
            claims.update(ids(batch))
            exchange = await queue.exchange([success(claimed) for claimed in batch], 50)
            settled.extend(exchange.answers)
            batch = list(exchange.claims)

    await asyncio.gather(*map(work, queues))
    assert claims == Counter(sent)
    assert settled == [SettleAnswer.SETTLED] * MANY


async def test_a_claim_does_not_wait_for_messages_that_others_hold(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    held, free = await backend.feed.put([message(), message()])
    assert ids(await beside_a_lock(backend, [held], claim(queue))) == [free]


async def test_a_leased_message_is_nobody_elses(backend: Backend) -> None:
    queue, other = await backend.queue(PLAIN), await backend.queue(PLAIN, "worker-2")
    await backend.feed.put([message()])
    await claim_one(queue)
    await backend.time.advance_leases(LEASE_S - 1)
    assert await other.reap() == 0
    assert await claim(other) == []


async def stale_and_current(backend: Backend) -> tuple[PullQueue, Claim, Claim]:
    """A claim whose lease ended, and its successor."""
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    stale = await claim_one(queue)
    await let_leases_end(backend, queue)
    return queue, stale, await claim_one(queue)


ENDINGS = [success, retry, parked, failed, released]


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stale_settle_changes_nothing_and_says_so(
    backend: Backend, ending: Callable[[Claim], Settlement]
) -> None:
    queue, stale, current = await stale_and_current(backend)
    assert await settle(queue, ending(stale)) == [SettleAnswer.STALE]
    [unchanged] = await stored(backend, State.LEASED)
    assert (unchanged.message.attempts, unchanged.crashes) == (0, 1)
    assert await settle(queue, success(current)) == [SettleAnswer.SETTLED]


async def test_a_settle_after_the_message_was_taken_back_changes_nothing(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    late = await claim_one(queue)
    await let_leases_end(backend, queue)
    assert await settle(queue, success(late)) == [SettleAnswer.STALE]
    assert ids(await claim(queue)) == [sent]


async def test_a_stale_extend_changes_nothing_and_names_the_lost_claim(backend: Backend) -> None:
    queue, stale, current = await stale_and_current(backend)
    await backend.time.advance_leases(LEASE_S - 1)
    assert await queue.extend([stale]) == [stale]
    assert await let_leases_end(backend, queue, 1) == 1, "the stale extend must not have renewed the current lease"
    assert await queue.extend([current]) == [current]


async def test_extending_keeps_a_lease(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    claimed = await claim_one(queue)
    for _ in range(4):
        await backend.time.advance_leases(LEASE_S - 1)
        assert await queue.extend([claimed]) == []
        assert await queue.reap() == 0
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]


async def test_an_open_business_transaction_does_not_hold_up_the_renewal_of_others(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message(), message()])
    claims = await claim(queue)
    assert await beside_a_lock(backend, [claims[0].message.id], queue.extend(claims)) == []
    await backend.time.advance_leases(LEASE_S - 1)
    assert await queue.reap() == 0


async def test_settling_twice_says_already(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    claimed = await claim_one(queue)
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]
    assert await settle(queue, success(claimed)) == [SettleAnswer.ALREADY]
    assert len(await backend.log_of(sent)) == 1


async def test_a_late_settle_of_what_a_successor_settled_says_already(backend: Backend) -> None:
    queue, stale, current = await stale_and_current(backend)
    await settle(queue, success(current))
    assert await settle(queue, success(stale)) == [SettleAnswer.ALREADY]


async def test_answers_come_in_the_order_of_the_settlements(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(5)])
    gone, stays, waits, rejected, back = await claim(queue)
    await settle(queue, success(gone))
    answers = await settle(queue, success(gone), success(stays), retry(waits), failed(rejected), released(back))
    assert answers == [SettleAnswer.ALREADY, *[SettleAnswer.SETTLED] * 4]
    late = await settle(queue, retry(waits), success(stays))
    assert late == [SettleAnswer.STALE, SettleAnswer.ALREADY]


async def test_opposite_batches_of_the_same_settlements_do_not_deadlock(backend: Backend) -> None:
    """A worker that lost the answer sends its batch again, perhaps while the first is still in flight."""
    queues = [await backend.queue(PLAIN, "worker-1") for _ in range(4)]
    for _ in range(5):
        await backend.feed.put([message() for _ in range(400)])
        batch = [success(claimed) for claimed in await claim(queues[0], 400)]
        answers = await asyncio.gather(
            *(settle(queue, *(batch if number % 2 else batch[::-1])) for number, queue in enumerate(queues))
        )
        flat = Counter(answer for each in answers for answer in each)
        assert flat == {SettleAnswer.SETTLED: 400, SettleAnswer.ALREADY: 1_200}


async def test_what_a_worker_holds_but_does_not_run_goes_back(backend: Backend) -> None:
    """The answer to its claim was lost: the store considers them claimed by this worker."""
    queue, other = await backend.queue(PLAIN, "worker-1"), await backend.queue(PLAIN, "worker-2")
    await backend.feed.put([message() for _ in range(3)])
    [running] = await claim(queue, 1)
    [lost] = await claim(queue, 1)
    [foreign] = await claim(other, 1)
    assert await queue.give_back([running]) == 1
    assert await settle(queue, success(lost)) == [SettleAnswer.STALE]
    assert ids(await claim(other)) == [lost.message.id]
    assert await settle(queue, success(running)) == [SettleAnswer.SETTLED]
    assert await settle(other, success(foreign)) == [SettleAnswer.SETTLED]


async def test_a_queue_with_a_log_of_failures_alone_does_not_log_successes(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, log="failures"))
    await backend.feed.put([message(), message()])
    fine, bad = await claim(queue)
    await settle(queue, success(fine), failed(bad))
    assert await backend.log_of(fine.message.id) == []
    assert [line.status for line in await backend.log_of(bad.message.id)] == ["failed"]


async def test_a_put_without_measure_is_refused(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    with pytest.raises(Invalid, match="100,001 messages in one put"):
        await backend.feed.put([message()] * 100_001)
    assert await claim(queue) == []
