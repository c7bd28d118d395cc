"""Promise 7: a key is accepted once while its message lives and for a while after; a second put gets the first id."""

import asyncio
from collections.abc import Callable

import pytest

from payonce.engine.messages.model import Claim, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter, PullQueue
from payonce.kit.ids import new_id
from tests.conformance.backend import (
    PLAIN,
    QUEUE,
    Backend,
    claim,
    claim_one,
    crash_until_alone,
    failed,
    ids,
    message,
    park_all,
    retry,
    settle,
    success,
)

DAY_S = 86_400.0


async def put_key(backend: Backend, queue: str = QUEUE) -> bool:
    """Whether a put under the key was accepted as new."""
    sent = message(queue=queue, idempotency_key="order-1")
    [answered] = await backend.feed.put([sent])
    return answered == sent.id


async def test_a_second_put_of_a_key_answers_with_the_first_id(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    first = await backend.feed.put([message(idempotency_key="order-1", payload={"n": 1})])
    again = await backend.feed.put([message(idempotency_key="order-1", payload={"n": 2})])
    assert again == first
    assert (await claim_one(queue)).message.payload == {"n": 1}


@pytest.mark.parametrize("state", ["delayed", "leased", "retried", "alone", "parked"])
async def test_a_key_is_taken_wherever_its_message_is(backend: Backend, state: str) -> None:
    queue = await backend.queue(PLAIN)
    first = message(idempotency_key="order-1", delay_s=60.0 if state == "delayed" else 0.0)
    await backend.feed.put([first])
    if state == "leased":
        await claim_one(queue)
    elif state == "retried":
        await settle(queue, retry(await claim_one(queue), 3_600))
    elif state == "alone":
        await crash_until_alone(backend, queue)
    elif state == "parked":
        await park_all(queue)
        await backend.time.advance(400 * DAY_S)
        await backend.forget_expired_keys()
    assert await backend.feed.put([message(idempotency_key="order-1")]) == [first.id]
    depth = await backend.admin.depth(QUEUE)
    assert depth.ready + depth.delayed + depth.alone + depth.leased + depth.parked == 1


async def test_many_connections_that_put_one_key_at_once_get_one_message(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    answers = await asyncio.gather(*(backend.feed.put([message(idempotency_key="order-1")]) for _ in range(24)))
    assert len({answered for [answered] in answers}) == 1
    assert ids(await claim(queue)) == answers[0]


async def test_bulk_puts_of_the_same_keys_at_once_neither_deadlock_nor_double(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    keys = [f"order-{number}" for number in range(300)]

    async def put(order: list[str]) -> dict[str, object]:
        return dict(zip(order, await backend.feed.put([message(idempotency_key=key) for key in order]), strict=True))

    answers = await asyncio.gather(*(put(keys if number % 2 else keys[::-1]) for number in range(6)))
    assert all(answer == answers[0] for answer in answers)
    assert len(await claim(queue, 1_000)) == 300


async def test_a_key_repeated_within_one_batch_is_put_once(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    batch = [message(idempotency_key="order-1"), message(idempotency_key="order-2"), message(idempotency_key="order-1")]
    first, second, repeated = await backend.feed.put(batch)
    assert repeated == first == batch[0].id
    assert sorted(ids(await claim(queue))) == sorted([first, second])


async def test_the_first_of_a_batch_counts_whatever_its_id(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    younger, older = new_id(), new_id()
    batch = [message(id=older, idempotency_key="k", payload={"n": 1}), message(id=younger, idempotency_key="k")]
    assert await backend.feed.put(batch) == [older, older]
    assert (await claim_one(queue)).message.payload == {"n": 1}


async def test_the_same_message_twice_in_one_batch_is_put_once(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    keyed, plain = message(idempotency_key="order-1"), message()
    assert await backend.feed.put([keyed, plain, keyed, plain]) == [keyed.id, plain.id, keyed.id, plain.id]
    assert sorted(ids(await claim(queue))) == sorted([keyed.id, plain.id])


async def test_a_batch_of_thousands_with_repeated_keys_is_put_once(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    batch = [message(idempotency_key=f"order-{number % 1_100}") for number in range(2_200)]
    answers = await backend.feed.put(batch)
    assert answers[:1_100] == answers[1_100:] == [sent.id for sent in batch[:1_100]]
    assert len(await claim(queue, 3_000)) == 1_100


async def test_a_retried_put_of_the_same_message_is_one_message(backend: Backend) -> None:
    """The answer to the first put was lost."""
    queue = await backend.queue(PLAIN)
    for sent in (message(), message(idempotency_key="order-1")):
        assert await backend.feed.put([sent]) == await backend.feed.put([sent]) == [sent.id]
    assert len(await claim(queue)) == 2


async def test_the_same_key_in_another_queue_is_another_key(backend: Backend) -> None:
    await backend.queue(PLAIN)
    await backend.queue(Policy("refunds"))
    assert await put_key(backend)
    assert await put_key(backend, "refunds")


@pytest.mark.parametrize("ending", [success, failed])
async def test_a_key_outlives_its_settled_message_by_a_day(
    backend: Backend, ending: Callable[[Claim], Settlement]
) -> None:
    queue = await backend.queue(PLAIN)
    await put_key(backend)
    await settle(queue, ending(await claim_one(queue)))
    assert not await put_key(backend)
    await backend.forget_expired_keys()
    await backend.time.advance(DAY_S - 1)
    await backend.forget_expired_keys()
    assert not await put_key(backend)
    assert await claim(queue) == []
    await backend.time.advance(2)
    await backend.forget_expired_keys()
    assert await put_key(backend)
    assert len(await claim(queue)) == 1


async def test_a_key_is_kept_longer_where_messages_may_take_longer(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, give_up_after_s=7 * DAY_S))
    await put_key(backend)
    await settle(queue, success(await claim_one(queue)))
    await backend.forget_expired_keys()
    await backend.time.advance(8 * DAY_S - 1)
    assert not await put_key(backend)
    await backend.time.advance(2)
    assert await put_key(backend)


async def test_a_key_of_a_purged_message_stays_taken(backend: Backend) -> None:
    await backend.queue(PLAIN)
    await put_key(backend)
    assert await backend.admin.purge(QUEUE, State.READY, Filter(), by="ada") == 1
    assert not await put_key(backend)


async def test_a_reused_key_belongs_to_the_new_message(backend: Backend) -> None:
    queue: PullQueue = await backend.queue(PLAIN)
    await put_key(backend)
    await settle(queue, success(await claim_one(queue)))
    await backend.forget_expired_keys()
    await backend.time.advance(DAY_S + 1)
    [second] = await backend.feed.put([message(idempotency_key="order-1")])
    await backend.time.advance(30 * DAY_S)
    await backend.forget_expired_keys()
    assert await backend.feed.put([message(idempotency_key="order-1")]) == [second]
