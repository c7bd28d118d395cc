"""Redis loses the lease or the claim of a running message: the message comes back, and the limit holds meanwhile."""

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain, combinations
from uuid import UUID

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import SettleAnswer, State
from payonce.engine.messages.policy import Policy
from payonce.queues.redis import RedisQueue, refill
from payonce.testing import ScratchDatabase
from tests.conformance.backend import (
    LEASE_S,
    PLAIN,
    QUEUE,
    claim,
    claim_one,
    crash_until_alone,
    ids,
    message,
    park_all,
    parked,
    retry,
    settle,
    stored,
    success,
)
from tests.conformance.redis_backend import FLAVOURS, RedisBackend, open_redis_backend
from tests.conformance.test_redis_lost_limits import IN_HAND, LIMIT, LIMITED

KEY = f"q:{QUEUE}"
PARTS = ("leases", "claims", "processing")
TWO_LEFT = [("leases",), ("claims",), ("leases", "claims"), ("processing",), ("processing", "leases")]
"""Losses after which the body is still there, in the list or in the claim."""


@pytest.fixture(params=FLAVOURS)
def either(
    scratch: ScratchDatabase, redis_server: RedisServer, request: pytest.FixtureRequest
) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, request.param)


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


async def lose(backend: RedisBackend, *parts: str) -> None:
    assert await backend.store.command("DEL", *(f"{KEY}:{part}" for part in parts)) == len(parts)


async def lose_entry(backend: RedisBackend, part: str, message_id: UUID) -> None:
    word = {"leases": "ZREM", "claims": "HDEL"}[part]
    assert await backend.store.command(word, f"{KEY}:{part}", str(message_id)) == 1


async def lengths(backend: RedisBackend) -> tuple[int, ...]:
    """Waiting, running, delayed, parked: the keys that an operator types."""
    words = (("LLEN", ""), ("LLEN", ":processing"), ("ZCARD", ":delayed"), ("LLEN", ":failed"))
    return tuple([await backend.store.command(word, KEY + part) for word, part in words])


async def claims_are_whole(backend: RedisBackend, count: int) -> bool:
    words = (("LLEN", "processing"), ("HLEN", "claims"), ("ZCARD", "leases"))
    return [await backend.store.command(word, f"{KEY}:{part}") for word, part in words] == [count] * 3


async def repair_and_end_leases(backend: RedisBackend, queue: RedisQueue) -> int:
    """Nobody renews. The first sweep gives a lease to messages without one, the second finds it ended."""
    moved = await queue.reap()
    await backend.time.advance_leases(LEASE_S + 0.001)
    return moved + await queue.reap()


@pytest.mark.parametrize("parts", TWO_LEFT, ids="+".join)
async def test_what_a_dead_worker_held_comes_back_after_a_loss(either: RedisBackend, parts: Sequence[str]) -> None:
    queue = await either.queue(PLAIN)
    sent = await either.feed.put([message() for _ in range(IN_HAND)])
    assert len(await claim(queue)) == IN_HAND
    await lose(either, *parts)
    assert await repair_and_end_leases(either, queue) == IN_HAND
    assert await lengths(either) == (IN_HAND, 0, 0, 0)
    again = await claim(queue)
    assert sorted(ids(again)) == sorted(sent)
    assert await settle(queue, *map(success, again)) == [SettleAnswer.SETTLED] * IN_HAND
    assert await claims_are_whole(either, 0)


@pytest.mark.parametrize("part", ["leases", "claims"])
async def test_the_loss_of_one_entry_among_others_is_found(either: RedisBackend, part: str) -> None:
    queue = await either.queue(PLAIN)
    await either.feed.put([message() for _ in range(3)])
    claims = await claim(queue)
    await lose_entry(either, part, claims[1].message.id)
    await queue.reap()
    await either.time.advance_leases(LEASE_S / 2)
    held = [claims[0], claims[2]]
    assert await queue.extend(held) == []
    await either.time.advance_leases(LEASE_S / 2 + 0.001)
    assert await queue.reap() == 1
    assert ids(await claim(queue)) == [claims[1].message.id]
    assert await settle(queue, *map(success, held)) == [SettleAnswer.SETTLED] * 2


async def test_a_live_run_that_lost_its_lease_keeps_its_message(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    await either.feed.put([message()])
    held = await claim_one(queue)
    await lose(either, "leases")
    for _ in range(4):
        assert await queue.reap() == 0
        await either.time.advance_leases(LEASE_S / 2)
        assert await queue.extend([held]) == []
    assert await claim(queue) == []
    assert await settle(queue, success(held)) == [SettleAnswer.SETTLED]
    assert await claims_are_whole(either, 0)


async def test_a_run_that_renews_in_time_is_not_put_back_by_the_repair(either: RedisBackend) -> None:
    """The renewal arrives between the repair and the end of the lease that it gave."""
    queue = await either.queue(PLAIN)
    await either.feed.put([message()])
    held = await claim_one(queue)
    await lose(either, "leases")
    assert [await queue.reap(), await queue.reap()] == [0, 0]
    await either.time.advance_leases(LEASE_S - 0.001)
    assert await queue.reap() == 0
    assert await queue.extend([held]) == []
    await either.time.advance_leases(1)
    assert await queue.reap() == 0
    assert await settle(queue, success(held)) == [SettleAnswer.SETTLED]


async def test_without_its_claim_a_message_waits_for_the_lease_and_its_late_run_is_stale(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    await either.feed.put([message()])
    late = await claim_one(queue)
    await lose(either, "claims")
    assert await queue.reap() == 0
    await either.time.advance_leases(LEASE_S - 0.001)
    assert await queue.reap() == 0, "its run may still be going on"
    assert await lengths(either) == (0, 1, 0, 0)
    assert await queue.extend([late]) == [late]
    await either.time.advance_leases(0.002)
    assert await queue.reap() == 1
    assert await queue.extend([late]) == [late], "put back, and not claimed yet"
    now = await claim_one(queue)
    assert await settle(queue, success(late)) == [SettleAnswer.STALE]
    async with either.stage.database.transaction() as connection:
        assert not await queue.hold_within(connection, late)
    assert await lengths(either) == (0, 1, 0, 0)
    assert await settle(queue, success(now)) == [SettleAnswer.SETTLED]


async def test_attempts_crashes_and_age_survive_the_loss(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    await either.feed.put([message(), message(delay_s=600)])
    first = await claim_one(queue)
    await settle(queue, retry(first, 10))
    await either.time.advance(10)
    await claim_one(queue)
    await either.time.advance_leases(LEASE_S + 1)
    await queue.reap()
    before = await claim_one(queue)
    await lose(either, "claims")
    await repair_and_end_leases(either, queue)
    assert await lengths(either) == (1, 0, 1, 0), "what is delayed stays so"
    after = await claim_one(queue)
    assert (after.message.attempts, after.crashes) == (before.message.attempts, before.crashes) == (1, 1)
    assert after.first_attempt_at == before.first_attempt_at == first.first_attempt_at


async def test_a_suspect_that_lost_its_claim_is_not_given_out_among_others(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await crash_until_alone(direct, queue)
    assert await queue.claim_alone() is not None
    await lose(direct, "claims")
    await repair_and_end_leases(direct, queue)
    assert await claim(queue) == []
    assert await queue.claim_alone() is not None


async def test_a_message_goes_back_to_its_lane(direct: RedisBackend) -> None:
    queue = await direct.queue(Policy(QUEUE, lease_s=LEASE_S, lanes=True))
    await direct.feed.put([message(lane="a"), message(lane="b")])
    assert len(await claim(queue)) == 2
    await lose(direct, "claims", "leases")
    await repair_and_end_leases(direct, queue)
    assert [await direct.store.command("LLEN", f"{KEY}:lane:{lane}") for lane in "ab"] == [1, 1]
    assert sorted(claimed.message.lane or "" for claimed in await claim(queue)) == ["a", "b"]


async def test_raw_objects_come_back_each_as_one_message(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    for _ in range(2):
        await direct.store.command("LPUSH", KEY, json.dumps({"n": 1}))
    sent = ids(await claim(queue))
    await lose(direct, "claims", "leases", "ids")
    assert await repair_and_end_leases(direct, queue) == 2
    again = await claim(queue)
    assert sorted(ids(again)) == sorted(sent)
    assert [claimed.message.payload for claimed in again] == [{"n": 1}] * 2


async def test_raw_objects_that_were_moved_by_hand_come_back(direct: RedisBackend) -> None:
    """As a worker of the earlier protocol did it: into the list of running messages, without a claim."""
    queue = await direct.queue(PLAIN)
    for body in (json.dumps({"n": 1}), json.dumps({"n": 1}), "no object"):
        await direct.store.command("LPUSH", KEY, body)
        await direct.store.command("LMOVE", KEY, f"{KEY}:processing", "RIGHT", "LEFT")
    assert await queue.reap() == 0, "whoever moved it may work on it for one lease"
    await direct.time.advance_leases(LEASE_S + 0.001)
    assert await queue.reap() == 3
    assert await lengths(direct) == (3, 0, 0, 0)
    assert len(await claim(queue)) == 2
    [refused] = await stored(direct, State.PARKED)
    assert "cannot be read" in (refused.last_error or "")


async def test_a_parked_message_does_not_run_after_a_loss(kept: RedisBackend) -> None:
    """PostgreSQL parked it, and Redis lost the claim before it was told."""
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    await claim_one(queue)
    await kept.stage.owner.execute("update payonce.outbox set state = 'parked', try_at = payonce.due_now()")
    await lose(kept, "claims", "leases", "ids")
    await repair_and_end_leases(kept, queue)
    assert await claim(queue) == []
    assert await lengths(kept) == (0, 0, 0, 0)
    await refill(kept.store)
    assert await lengths(kept) == (0, 0, 0, 1)


@pytest.mark.parametrize("lies_there", [True, False])
async def test_a_copy_of_what_is_parked_in_redis_is_parked_once(direct: RedisBackend, lies_there: bool) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await park_all(queue)
    [body] = await direct.store.command("LRANGE", f"{KEY}:failed", 0, -1)
    if not lies_there:
        await direct.store.command("DEL", f"{KEY}:failed")
    await direct.store.command("LPUSH", f"{KEY}:processing", body)
    await repair_and_end_leases(direct, queue)
    assert await lengths(direct) == (0, 0, 0, 1)


async def test_what_ended_in_postgresql_does_not_run_again_after_a_loss(kept: RedisBackend) -> None:
    """Even when nothing in Redis shows any more that PostgreSQL has a durable copy."""
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message(), message()])
    ended, _ = await claim(queue)
    await lose(kept, "claims", "leases", "ids")
    assert await settle(queue, success(ended)) == [SettleAnswer.SETTLED]
    await repair_and_end_leases(kept, queue)
    [again] = await claim(queue)
    assert again.message.id != ended.message.id
    assert await settle(queue, success(again)) == [SettleAnswer.SETTLED]
    assert await lengths(kept) == (0, 0, 0, 0)


async def test_a_dead_workers_message_comes_back_when_nothing_else_is_known_of_it(either: RedisBackend) -> None:
    queue = await either.queue(PLAIN)
    [sent] = await either.feed.put([message()])
    await claim_one(queue)
    await lose(either, "ids")
    await either.time.advance_leases(LEASE_S + 1)
    assert await queue.reap() == 1
    assert ids(await claim(queue)) == [sent]


async def test_what_somebody_wrote_into_the_bookkeeping_holds_up_nobody(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    [sent] = await direct.feed.put([message()])
    await claim_one(queue)
    await lose(direct, "claims", "leases")
    await direct.store.command("HSET", f"{KEY}:ids", str(sent), "garbage")
    for name in ("?", str(sent).upper()):
        await direct.store.command("HSET", f"{KEY}:claims", name, b'7 1 1 0 0 w\n{"id":"?","payload":{}}')
    assert await queue.reap() == 0
    assert await lengths(direct) == (0, 1, 0, 0)
    await direct.time.advance_leases(LEASE_S + 0.001)
    assert await queue.reap() == 1
    assert ids(await claim(queue)) == [sent]
    assert await claims_are_whole(direct, 1)


async def test_a_message_with_its_id_in_capitals_comes_back_under_its_own_id(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    [sent] = await kept.feed.put([message()])
    [body] = await kept.store.command("LRANGE", KEY, 0, -1)
    await kept.store.command("DEL", KEY)
    await kept.store.command("LPUSH", f"{KEY}:processing", body.replace(str(sent).encode(), str(sent).upper().encode()))
    await repair_and_end_leases(kept, queue)
    assert await kept.store.command("HKEYS", f"{KEY}:ids") == [str(sent).encode()]
    assert ids(await claim(queue)) == [sent]


async def test_of_two_copies_in_work_one_remains(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await claim_one(queue)
    [body] = await direct.store.command("LRANGE", f"{KEY}:processing", 0, -1)
    await lose(direct, "claims")
    await direct.store.command("LPUSH", KEY, body)
    second = await claim_one(queue)
    assert await lengths(direct) == (0, 2, 0, 0)
    await queue.reap()
    assert await lengths(direct) == (0, 1, 0, 0)
    assert await settle(queue, success(second)) == [SettleAnswer.SETTLED]
    assert await lengths(direct) == (0, 0, 0, 0)


async def test_a_refill_forgets_nothing_that_is_in_work(kept: RedisBackend) -> None:
    """Without the list, the claims have the bodies; without the claims as well, the leases determine how long
    to wait."""
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    held = await claim_one(queue)
    await lose(kept, "processing", "leases")
    assert (await refill(kept.store)).put_back == 0
    assert await queue.extend([held]) == []
    await queue.reap()
    assert await lengths(kept) == (0, 1, 0, 0)
    await lose(kept, "processing", "claims")
    assert (await refill(kept.store)).put_back == 0
    await kept.time.advance_leases(LEASE_S + 0.001)
    await queue.reap()
    assert (await refill(kept.store)).put_back == 1
    await kept.relay()
    assert ids(await claim(queue)) == [held.message.id]


ALL_BUT_EVERYTHING = [*chain.from_iterable(combinations(PARTS, count) for count in (1, 2))]


@pytest.mark.parametrize("parts", ALL_BUT_EVERYTHING, ids="+".join)
async def test_the_limit_holds_while_leases_are_rebuilt(either: RedisBackend, parts: Sequence[str]) -> None:
    """Before any sweep, after it, and while live runs renew."""
    queue, other = await either.queue(LIMITED), await either.queue(LIMITED, "worker-2")
    await either.feed.put([message() for _ in range(20)])
    held = await claim(queue, IN_HAND)
    await lose(either, *parts)
    more = await claim(other, 20)
    assert len(more) == LIMIT - IN_HAND
    await other.reap()
    assert await claim(other, 20) == []
    assert (await refill(either.store)).put_back == 0
    await either.time.advance_leases(LEASE_S / 2)
    renewed = [each for each in held if each not in await queue.extend(held)]
    assert await other.extend(more) == []
    assert await claim(other, 20) == []
    await settle(other, *map(success, [*renewed, *more]))
    assert len(await claim(other, 20)) == LIMIT - (IN_HAND - len(renewed))


async def test_a_sweep_without_a_loss_repairs_nothing(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message(), message()])
    claimed = await claim(queue)
    asked: list[str] = []
    run = direct.store.run

    async def noting(script: object, *words: object) -> object:
        asked.append(script.name)  # type: ignore[attr-defined]
        return await run(script, *words)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct.store, "run", noting)
        await queue.reap()
    assert asked == ["dead"]
    await settle(queue, success(claimed[0]), parked(claimed[1]))
    assert await claims_are_whole(direct, 0)
