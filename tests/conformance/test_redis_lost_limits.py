"""Redis loses a concurrency limit: nothing runs beside it until the runs from before the loss are over."""

from contextlib import AbstractAsyncContextManager

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.policy import Policy
from payonce.queues.redis import refill
from payonce.testing import ScratchDatabase
from tests.conformance.backend import LEASE_S, QUEUE, claim, message
from tests.conformance.redis_backend import RedisBackend, open_redis_backend

LIMIT = 8
IN_HAND = 5
LIMITED = Policy(QUEUE, lease_s=LEASE_S, concurrency=LIMIT)


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


@pytest.mark.parametrize("lost", ["everything", "the limit"])
async def test_under_a_lost_limit_nothing_is_claimed_for_one_lease(kept: RedisBackend, lost: str) -> None:
    queue, other = await kept.queue(LIMITED), await kept.queue(LIMITED, "worker-2")
    await kept.feed.put([message() for _ in range(20)])
    held = await claim(queue, IN_HAND)
    await kept.store.command(*(("FLUSHALL",) if lost == "everything" else ("DEL", f"limit:{QUEUE}")))
    await kept.queue(LIMITED, "worker-3")
    assert await claim(other, 20) == [], "a process that starts has not made the limit look new"
    await refill(kept.store)
    await kept.relay()
    exchange = await other.exchange([], 20)
    assert (exchange.claims, exchange.rest_s is not None) == ([], True)
    await kept.time.advance_leases(LEASE_S - 0.001)
    assert await claim(other, 20) == []
    assert len(await queue.extend(held)) == (IN_HAND if lost == "everything" else 0)
    await kept.time.advance_leases(0.002)
    assert len(await claim(other, 20)) == (LIMIT if lost == "everything" else LIMIT - IN_HAND)


async def test_a_limit_that_is_new_is_open_at_once(direct: RedisBackend) -> None:
    queue = await direct.queue(LIMITED)
    await direct.feed.put([message()])
    assert len(await claim(queue)) == 1


async def test_a_shared_limit_holds_after_a_loss(direct: RedisBackend) -> None:
    policies = [Policy(name, concurrency=3, limit="vendor") for name in ("quotes", "swaps")]
    quotes, swaps = [await direct.queue(policy) for policy in policies]
    await direct.feed.put([message(queue=policy.queue) for policy in policies for _ in range(5)])
    assert len(await claim(quotes, 2)) == 2
    await direct.store.command("DEL", "q:quotes:leases", "q:quotes:policy")
    assert len(await claim(swaps)) == 1
    assert await claim(quotes) == []
    await direct.store.command("HDEL", "limit:vendor", "member:q:quotes")
    assert await claim(quotes) == []
    assert await claim(swaps) == []
