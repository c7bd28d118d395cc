"""Names and bodies that people push directly: no two things share a key, and no body stops the others."""

import json
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.kit.outcomes import Invalid
from payonce.testing import ScratchDatabase
from tests.conformance.backend import PLAIN, QUEUE, claim, claim_one, message, settle, success
from tests.conformance.redis_backend import RedisBackend, open_redis_backend

KEY = f"q:{QUEUE}"
BAD_IDS = [b"\xff" * 36, "é".encode() * 18, b"z" * 36, b"-" * 36, b"01234567-89ab-cdef-0123-456789abcde-"]


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.mark.parametrize(
    ("queue", "key", "other", "its_key"), [("pay", "sub:1", "pay:sub", "1"), ("a", "b", "a:b", "")]
)
async def test_idempotency_keys_of_one_queue_are_not_those_of_another(
    direct: RedisBackend, queue: str, key: str, other: str, its_key: str
) -> None:
    await direct.feed.declare([Policy(queue), Policy(other)])
    await direct.feed.put([Message(queue=queue, idempotency_key=key)])
    second = Message(queue=other, idempotency_key=its_key or "b")
    assert await direct.feed.put([second]) == [second.id]
    assert await direct.feed.put([Message(queue=other, idempotency_key=its_key or "b")]) == [second.id]


@pytest.mark.parametrize("bad", BAD_IDS, ids=["bytes", "accents", "letters", "dashes", "misplaced"])
async def test_an_id_that_is_none_is_parked_and_stops_nobody(direct: RedisBackend, bad: bytes) -> None:
    queue = await direct.queue(PLAIN)
    body = b'{"id":"' + bad + b'","payload":{}}'
    await direct.store.command("LPUSH", KEY, body)
    assert len(await direct.admin.peek(QUEUE, State.READY, 5)) == 1
    [sent] = await direct.feed.put([message()])
    [claimed] = await claim(queue)
    assert claimed.message.id == sent
    await direct.time.advance_leases(31)
    assert await queue.reap() == 1
    await settle(queue, success(await claim_one(queue)))
    [stored] = await direct.admin.peek(QUEUE, State.PARKED, 5)
    assert "cannot be read" in (stored.last_error or "")
    assert await direct.admin.redrive(QUEUE, Filter()) == 0
    assert await direct.admin.purge(QUEUE, State.PARKED, Filter(), by="ada") == 1


@pytest.mark.parametrize("bad", [b"\xff" * 36, b"?"], ids=["bytes", "text"])
@pytest.mark.parametrize("head", [b"7 1 1 0 0 w", b"7 1 1 0 1 w", b"x x x x x w"], ids=["claim", "alone", "garbage"])
async def test_a_claim_that_somebody_wrote_does_not_end_the_sweep(
    direct: RedisBackend, bad: bytes, head: bytes
) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await claim_one(queue)
    await direct.store.command("ZADD", f"{KEY}:leases", 1, bad)
    await direct.store.command("HSET", f"{KEY}:claims", bad, head + b'\n{"id":"?","payload":{}}')
    await direct.store.command("HSET", f"{KEY}:ids", bad, b"kec 1 0 - 0 ")
    await direct.time.advance_leases(31)
    assert await queue.reap() >= 1
    assert len(await claim(queue)) >= 1
    await direct.admin.peek(QUEUE, State.LEASED, 5)


async def test_a_copy_with_its_id_in_capitals_does_not_run_beside_the_original(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    [sent] = await direct.feed.put([message()])
    claimed = await claim_one(queue)
    await direct.store.command(
        "LPUSH", KEY, json.dumps({"id": str(sent).upper(), "payload": {}}, separators=(",", ":"))
    )
    assert await claim(queue) == []
    await settle(queue, success(claimed))
    other = UUID("01A1DFE8-EF20-7000-987C-1B7B0A2AE25C")
    await direct.store.command("LPUSH", KEY, f'{{"id":"{str(other).upper()}","payload":{{}}}}')
    assert (await claim_one(queue)).message.id == other


@pytest.mark.parametrize(
    ("queue", "said"),
    [("log:jobs", "job log"), ("x:failed", "its failed"), ("q:x:ids", "its ids"), ("x:lane:a", "its lane")],
)
async def test_a_queue_may_not_lie_where_another_keeps_something(direct: RedisBackend, queue: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        await direct.feed.declare([Policy("y"), Policy(queue)])
    assert await direct.admin.queues() == []


async def test_two_queues_may_not_lie_in_one_list(direct: RedisBackend) -> None:
    with pytest.raises(Invalid, match=r"'a' and 'q:a' would both use the key q:a in Redis; rename one"):
        await direct.feed.declare([Policy("a"), Policy("q:a")])
    await direct.feed.declare([Policy("q:a")])
    await direct.feed.declare([Policy("q:a")])
    with pytest.raises(Invalid, match="would both use the key q:a"):
        await direct.feed.declare([Policy("a")])


async def test_a_limit_may_not_lie_where_another_keeps_its_leases(direct: RedisBackend) -> None:
    with pytest.raises(Invalid, match="limit 'l:leases'"):
        await direct.feed.declare([Policy("x", concurrency=1, limit="l"), Policy("y", concurrency=1, limit="l:leases")])
