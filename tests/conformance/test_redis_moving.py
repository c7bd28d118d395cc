"""Queues that move between the two stores: nothing runs twice or is lost, even when the mover dies half-way."""

import json
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, Message
from payonce.engine.messages.ports import PullQueue
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Invalid
from payonce.queues.postgres import PostgresFeed, PostgresQueue
from payonce.queues.redis import refill, withdrawal
from payonce.queues.transfer import move_to_postgres, move_to_redis
from payonce.testing import ScratchDatabase
from tests.conformance.backend import PLAIN, QUEUE, claim, claim_one, ids, message, parked, retry, settle, success
from tests.conformance.redis_backend import FLAVOURS, Flavour, RedisBackend, open_redis_backend

KEY = f"q:{QUEUE}"


@pytest.fixture(params=FLAVOURS)
def either(
    scratch: ScratchDatabase, redis_server: RedisServer, request: pytest.FixtureRequest
) -> AbstractAsyncContextManager[RedisBackend]:
    flavour: Flavour = request.param
    return open_redis_backend(scratch, redis_server, flavour)


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


async def commit(backend: RedisBackend, queue: PullQueue, claimed: Claim) -> None:
    work = Work(claimed, queue, backend.stage.database, backend.feed, Reader(backend.stage.database))
    async with work.commit():
        pass


async def move(backend: RedisBackend) -> int:
    return await move_to_postgres(backend.stage.database, backend.stage.notifier, backend.store)


def in_postgresql(backend: RedisBackend) -> PostgresQueue:
    return PostgresQueue(backend.stage.database, backend.stage.notifier, PLAIN, "after-the-move")


def feed_in_postgresql(backend: RedisBackend) -> PostgresFeed:
    return PostgresFeed(backend.stage.database, backend.stage.notifier)


async def test_what_was_committed_before_redis_heard_of_it_is_not_moved(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    await either.feed.put([message()])
    await commit(either, queue, await claim_one(queue))
    await either.time.advance_leases(PLAIN.lease_s + 1)
    assert await queue.reap() == 1
    assert await move(either) == 0
    assert await claim(in_postgresql(either)) == []
    assert (await either.admin.depth(QUEUE)).ready == 0


async def test_a_mover_that_died_before_the_copies_went_moves_nothing_twice(
    either: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await either.queue(PLAIN)
    sent = await either.feed.put([message(), message()])

    async def die(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(withdrawal, "drop", die)
        with pytest.raises(KeyboardInterrupt):
            await move(either)
    queue = in_postgresql(either)
    claims = await claim(queue)
    assert set(ids(claims)) == set(sent)
    for claimed in claims:
        await commit(either, queue, claimed)
    assert await move(either) == 0
    assert await claim(queue) == []
    assert (await either.admin.depth(QUEUE)).ready == 0


async def test_what_is_put_while_the_queue_moves_is_not_lost(
    direct: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await direct.queue(PLAIN)
    await direct.feed.put([message()])
    drop = withdrawal.drop
    late: list[UUID] = []

    async def somebody_puts(*arguments: Any) -> int:
        if not late:
            late.extend(await direct.feed.put([message()]))
        return await drop(*arguments)

    monkeypatch.setattr(withdrawal, "drop", somebody_puts)
    assert await move(direct) == 2
    assert late[0] in ids(await claim(in_postgresql(direct)))


async def test_a_key_of_a_message_that_ended_in_redis_is_not_accepted_again(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    [sent, *_] = await direct.feed.put([message(idempotency_key="invoice-1"), message(idempotency_key="invoice-2")])
    [first] = await claim(queue, 1)
    await settle(queue, success(first))
    await direct.time.advance(60)
    assert await move(direct) == 1
    feed = feed_in_postgresql(direct)
    assert await feed.put([message(idempotency_key="invoice-1")]) == [sent]
    await direct.time.advance(PLAIN.key_retention_s - 61)
    assert await feed.put([message(idempotency_key="invoice-1")]) == [sent]
    await direct.time.advance(1)
    assert await feed.put([message(idempotency_key="invoice-1")]) != [sent]


async def test_keys_come_along_to_redis(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    feed, before = feed_in_postgresql(direct), in_postgresql(direct)
    [ended] = await feed.put([message(idempotency_key="invoice-1")])
    await settle(before, success(await claim_one(before)))
    await direct.forget_expired_keys()
    [live] = await feed.put([message(idempotency_key="invoice-2")])
    assert await move_to_redis(direct.stage.database, direct.stage.notifier, direct.store) == 1

    async def put_again() -> list[Any]:
        return await direct.feed.put([message(idempotency_key=f"invoice-{number}") for number in (1, 2)])

    assert await put_again() == [ended, live]
    await settle(queue, success(await claim_one(queue)))
    assert await put_again() == [ended, live]
    await direct.time.advance(PLAIN.key_retention_s)
    assert not {ended, live} & set(await put_again())


async def test_age_and_reason_come_along(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    first = await claim_one(queue)
    await direct.time.advance(5)
    await settle(queue, retry(first, 10))
    assert await move(direct) == 1
    [row] = await direct.stage.owner.fetch("select attempts, first_attempt_at, last_error from payonce.messages")
    assert tuple(row) == (1, first.first_attempt_at, retry(first).reason)


async def test_leases_of_the_dead_hold_up_no_move_and_those_of_the_living_do(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    [sent] = await either.feed.put([message()])
    await claim_one(queue)
    with pytest.raises(Invalid, match=r"1 messages .* are leased"):
        await move(either)
    await either.time.advance_leases(PLAIN.lease_s + 1)
    assert await move(either) == 1
    assert ids(await claim(in_postgresql(either))) == [sent]


async def test_leases_of_the_dead_in_postgresql_hold_up_no_move(direct: RedisBackend) -> None:
    queue, before = await direct.queue(PLAIN), in_postgresql(direct)
    [sent] = await feed_in_postgresql(direct).put([message()])
    await claim_one(before)
    with pytest.raises(Invalid, match="are leased"):
        await move_to_redis(direct.stage.database, direct.stage.notifier, direct.store)
    await direct.time.advance_leases(PLAIN.lease_s + 1)
    assert await move_to_redis(direct.stage.database, direct.stage.notifier, direct.store) == 1
    assert ids(await claim(queue)) == [sent]


async def test_what_was_pushed_by_hand_moves_as_it_would_run(direct: RedisBackend) -> None:
    """Two equal objects are two messages, an envelope keeps its id, and what cannot be read stays."""
    await direct.queue(PLAIN)
    named = Message(queue=QUEUE)
    for body in ({"n": 1}, {"n": 1}, {"payload": {"n": 2}, "id": str(named.id)}):
        await direct.store.command("LPUSH", KEY, json.dumps(body))
    await direct.store.command("LPUSH", KEY, "no json")
    assert await move(direct) == 3
    claims = await claim(in_postgresql(direct))
    assert sorted(each.message.payload["n"] for each in claims) == [1, 1, 2]
    assert [each.message.id for each in claims if each.message.payload["n"] == 2] == [named.id]
    assert await direct.store.command("LRANGE", KEY, 0, -1) == [b"no json"]


async def test_more_than_a_page_moves_in_all_states_and_lanes(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    many = 700
    await direct.feed.put([message() for _ in range(many)])
    await settle(queue, *[parked(each) for each in await claim(queue, many)])
    await direct.feed.put([message() for _ in range(many)] + [message(delay_s=60.0) for _ in range(many)])
    assert await move(direct) == 3 * many
    depth = await direct.stage.admin.depth(QUEUE)
    assert (depth.ready, depth.delayed, depth.parked) == (many, many, many)
    assert await direct.store.command("HLEN", f"{KEY}:ids") == 0
    assert await move_to_redis(direct.stage.database, direct.stage.notifier, direct.store) == 3 * many
    await refill(direct.store)
    depth = await direct.admin.depth(QUEUE)
    assert (depth.ready, depth.delayed, depth.parked) == (many, many, many)
