"""What only Redis can do to a queue: forget everything, stall, and accept direct pushes."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from structlog.testing import capture_logs

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, SettleAnswer, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.kit.outcomes import Unavailable
from payonce.queues.redis import RedisAdmin, RedisStore, refill
from payonce.queues.transfer import move_to_postgres, move_to_redis
from payonce.testing import ScratchDatabase, eventually
from tests.conformance.backend import (
    LEASE_S,
    PLAIN,
    QUEUE,
    claim,
    claim_one,
    ids,
    message,
    park_all,
    parked,
    retry,
    settle,
    stored,
    success,
)
from tests.conformance.redis_backend import RedisBackend, open_redis_backend

KEY = f"q:{QUEUE}"


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


async def push(backend: RedisBackend, body: Any) -> None:
    await backend.store.command("LPUSH", KEY, body if isinstance(body, (str, bytes)) else json.dumps(body))


async def test_only_a_server_that_knew_the_queue_is_said_to_have_forgotten_it(direct: RedisBackend) -> None:
    await direct.queue(PLAIN)
    await direct.store.command("FLUSHALL")
    with capture_logs() as said:
        async with RedisStore.open(direct.server.url, direct.stage.database) as stranger:
            assert (await RedisAdmin(stranger, direct.stage.notifier).depth(QUEUE)).ready == 0
            assert not [line for line in said if line["event"] == "redis_forgot_queue"], "to it the server is new"
            await stranger.command("FLUSHALL")
            await RedisAdmin(stranger, direct.stage.notifier).depth(QUEUE)
    assert [line["queue"] for line in said if line["event"] == "redis_forgot_queue"] == [QUEUE]


async def test_a_raw_object_pushed_by_hand_runs_and_gets_one_id_for_good(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await push(direct, {"action": "refund", "amount": "5.00"})
    first = await claim_one(queue)
    assert (first.message.action, first.message.payload) == ("refund", {"action": "refund", "amount": "5.00"})
    await settle(queue, retry(first))
    again = await claim_one(queue)
    assert (again.message.id, again.message.attempts) == (first.message.id, 1)
    assert again.message.payload == first.message.payload


async def test_what_was_pushed_by_hand_ages_from_when_it_was_first_seen(direct: RedisBackend) -> None:
    await direct.queue(PLAIN)
    await direct.time.advance(0)
    await push(direct, {"n": 1})
    [shown] = await direct.admin.peek(QUEUE, State.READY, 10)
    assert not shown.due_known
    assert (await direct.admin.depth(QUEUE)).oldest_ready_s == 0
    await direct.time.advance(90)
    assert 90 <= (await direct.admin.depth(QUEUE)).oldest_ready_s < 120


async def test_two_identical_raw_objects_are_two_messages(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    for _ in range(2):
        await push(direct, {"n": 1})
    one, other = await claim(queue)
    await settle(queue, retry(one, 10), retry(other, 10))
    assert await direct.store.command("ZCARD", f"{KEY}:delayed") == 2
    await direct.time.advance(10)
    assert len(await claim(queue)) == 2


async def test_an_envelope_in_any_order_keeps_its_id_and_its_unknown_fields(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    sent = message()
    await push(direct, {"sender": "shop", "action": "pay", "payload": {"n": 1}, "id": str(sent.id).upper()})
    claimed = await claim_one(queue)
    assert (claimed.message.id, claimed.message.extra) == (sent.id, {"sender": "shop"})
    await settle(queue, retry(claimed))
    again = await claim_one(queue)
    assert (again.message.id, again.message.extra) == (sent.id, {"sender": "shop"})
    assert await settle(queue, success(again)) == [SettleAnswer.SETTLED]


@pytest.mark.parametrize("garbage", ["not json", b"\xff\xfe", "[1]", "42", '{"id":"' + "x" * 36 + '", nonsense'])
async def test_what_cannot_be_read_is_parked_with_its_reason_and_holds_up_nobody(
    direct: RedisBackend, garbage: str | bytes
) -> None:
    queue = await direct.queue(PLAIN)
    await push(direct, garbage)
    [fine] = await direct.feed.put([message()])
    assert ids([*await claim(queue), *await claim(queue)]) == [fine]
    [found] = await stored(direct, State.PARKED)
    assert "cannot be read" in (found.last_error or "")
    assert await direct.admin.purge(QUEUE, State.PARKED, Filter(), by="ada") == 1


async def test_a_second_copy_of_what_is_worked_on_does_not_run_beside_it(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    [body] = await direct.store.command("LRANGE", KEY, 0, -1)
    claimed = await claim_one(queue)
    await push(direct, body)
    assert await claim(queue) == []
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]


async def test_the_playbooks_commands_tell_the_truth_at_every_step(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)

    async def lengths() -> tuple[int, int, int, int]:
        ask = direct.store.command
        return (
            await ask("LLEN", KEY),
            await ask("LLEN", f"{KEY}:processing"),
            await ask("ZCARD", f"{KEY}:delayed"),
            await ask("LLEN", f"{KEY}:failed"),
        )

    await direct.feed.put([message(action="pay")])
    assert await lengths() == (1, 0, 0, 0)
    claimed = await claim_one(queue)
    assert await lengths() == (0, 1, 0, 0)
    assert await direct.store.command("GET", f"lock:{KEY}:{claimed.message.id}") == str(claimed.token).encode()
    await settle(queue, retry(claimed, 60))
    assert await lengths() == (0, 0, 1, 0)
    await direct.time.advance(60)
    await settle(queue, parked(await claim_one(queue)))
    assert await lengths() == (0, 0, 0, 1)
    [body] = await direct.store.command("LRANGE", f"{KEY}:failed", 0, -1)
    assert json.loads(body)["attempts"] == 2
    newest = json.loads((await direct.store.command("LRANGE", "q:log:jobs", 0, 50))[0])
    assert newest.keys() == {"timestamp", "queue", "action", "status", "message_id", "attempts", "info"}
    assert (newest["status"], newest["action"], newest["attempts"]) == ("parked", "pay", 2)


async def wiped(backend: RedisBackend) -> None:
    await backend.store.command("FLUSHALL")
    await refill(backend.store)
    await backend.relay()


async def test_a_wiped_server_gets_back_what_waited_with_attempts_and_delays(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    [tried, fresh, later] = await kept.feed.put([message(), message(), message(delay_s=600.0)])
    first, second = await claim(queue)
    await settle(queue, retry(first, 30), retry(second, 0))
    await settle(queue, success(await claim_one(queue)))
    await wiped(kept)
    assert await claim(queue) == [], "neither what is settled nor what is not due comes back"
    await kept.time.advance(30)
    await wiped(kept)
    again = await claim_one(queue)
    assert (again.message.id, again.message.attempts) == (tried, 1)
    assert again.first_attempt_at == first.first_attempt_at
    await kept.time.advance(600)
    await wiped(kept)
    assert set(ids(await claim(queue))) >= {later}
    assert fresh == second.message.id


async def test_what_is_parked_stays_parked_through_a_wipe(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    sent = await park_all(queue, "card refused")
    await wiped(kept)
    assert await claim(queue) == []
    [found] = await stored(kept, State.PARKED)
    assert (found.message.id, found.last_error, found.message.attempts) == (sent[0], "card refused", 1)
    assert await kept.admin.redrive(QUEUE, Filter()) == 1
    assert (await claim_one(queue)).message.attempts == 0


async def test_a_list_that_was_deleted_by_hand_comes_back(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    sent = await kept.feed.put([message(), message(), message(delay_s=60.0)])
    leased = (await claim(queue, 1))[0]
    await kept.store.command("DEL", KEY)
    assert (await refill(kept.store)).put_back == 1
    await kept.relay()
    assert ids(await claim(queue)) == [sent[1]]
    assert await settle(queue, success(leased)) == [SettleAnswer.SETTLED]
    assert (await refill(kept.store)).put_back == 0


async def test_a_server_that_throws_keys_away_is_refused(direct: RedisBackend) -> None:
    await direct.store.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(Unavailable, match="noeviction"):
            async with RedisStore.open(direct.server.url, direct.stage.database):
                pass
    finally:
        await direct.store.command("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")


async def test_a_pause_and_a_limit_survive_a_wipe(kept: RedisBackend) -> None:
    queue = await kept.queue(Policy(QUEUE, concurrency=1))
    await kept.feed.put([message(), message()])
    await kept.admin.pause(QUEUE, "maintenance")
    await wiped(kept)
    await kept.time.advance_leases(LEASE_S)
    assert (await queue.exchange([], 10)).rest_s is not None
    await kept.admin.resume(QUEUE)
    assert len(await claim(queue)) == 1


async def test_of_two_runs_around_a_wipe_one_ends_the_message(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    [sent] = await kept.feed.put([message()])
    before = await claim_one(queue)
    await wiped(kept)
    after = await claim_one(queue)
    assert after.message.id == sent
    assert await settle(queue, success(before)) == [SettleAnswer.STALE]
    assert await settle(queue, success(after)) == [SettleAnswer.SETTLED]
    await wiped(kept)
    assert await claim(queue) == []


async def test_a_run_that_ends_in_a_wiped_server_ends_in_postgresql(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    claimed = await claim_one(queue)
    await kept.store.command("FLUSHALL")
    assert await settle(queue, success(claimed)) == [SettleAnswer.SETTLED]
    await wiped(kept)
    assert await claim(queue) == []


async def test_a_copy_of_what_is_settled_does_not_run(kept: RedisBackend) -> None:
    """PostgreSQL recorded the end, and the process died before it reached Redis."""
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    await claim_one(queue)
    await kept.stage.owner.execute("delete from payonce.outbox")
    await kept.time.advance_leases(PLAIN.lease_s + 1)
    await queue.reap()
    assert await claim(queue) == []
    assert (await kept.admin.depth(QUEUE)).ready == 0


async def test_a_redrive_within_a_transaction_happens_with_its_commit(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    sent = await park_all(queue)

    async def redrive(*, fail: bool) -> None:
        async with direct.transaction() as connection:
            assert await direct.admin.redrive(QUEUE, Filter(), within=connection) == 1
            assert not fail

    with pytest.raises(AssertionError):
        await redrive(fail=True)
    assert await claim(queue) == []
    await redrive(fail=False)
    assert ids(await claim(queue)) == sent
    assert await stored(direct, State.PARKED) == []


async def test_a_server_that_stands_still_holds_nobody_up(
    direct: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await direct.queue(PLAIN)
    async with RedisStore.open(direct.server.url, direct.stage.database) as impatient:
        # The limit of its commands from here on; opening it takes several of them.
        monkeypatch.setattr(impatient._commands, "_timeout_s", 0.2)
        direct.server.pause()
        try:
            async with asyncio.timeout(30):
                with pytest.raises(Unavailable, match="does not answer"):
                    await impatient.command("PING")
                await queue.wait(0.05)
        finally:
            direct.server.resume()
    await direct.feed.put([message()])
    assert len(await claim(queue)) == 1


async def test_a_waiter_wakes_when_something_is_put_also_after_the_server_was_away(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)

    async def woken_by_a_put() -> Claim:
        assert await claim(queue) == []
        waiting = asyncio.create_task(queue.wait(60))
        await asyncio.sleep(0)
        await direct.feed.put([message()])
        await asyncio.wait_for(waiting, 25)
        return await claim_one(queue)

    await settle(queue, success(await woken_by_a_put()))
    direct.server.kill()
    direct.server.start()
    await eventually(lambda: answers(direct), within_s=30)
    await settle(queue, success(await woken_by_a_put()))


async def answers(backend: RedisBackend) -> bool:
    """Every earlier connection has noticed that it is lost."""
    try:
        await asyncio.gather(*(backend.store.command("PING") for _ in range(20)))
    except Unavailable:
        return False
    return True


async def test_queues_move_to_redis_and_back_with_everything(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message(idempotency_key="order-1"), message(delay_s=60.0), message()])
    first, second = await claim(queue)
    await settle(queue, retry(first, 30), parked(second, "card refused"))
    database = direct.stage.database
    assert await move_to_postgres(database, direct.stage.notifier, direct.store) == 3
    assert (await direct.admin.depth(QUEUE)).delayed == (await direct.admin.depth(QUEUE)).parked == 0
    depth = await direct.stage.admin.depth(QUEUE)
    assert (depth.delayed, depth.parked) == (2, 1)
    assert await move_to_redis(database, direct.stage.notifier, direct.store) == 3
    depth = await direct.admin.depth(QUEUE)
    assert (depth.delayed, depth.parked) == (2, 1)
    [found] = await stored(direct, State.PARKED)
    assert (found.message.id, found.last_error, found.message.attempts) == (second.message.id, "card refused", 1)
    await direct.time.advance(30)
    again = await claim_one(queue)
    assert (again.message.id, again.message.attempts) == (first.message.id, 1)


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
async def test_a_delay_is_a_span_when_the_two_clocks_disagree(kept: RedisBackend, ahead_s: int) -> None:
    """The queue's server may be an hour ahead of PostgreSQL, or behind it."""
    queue = await kept.queue(PLAIN)
    frozen_us = int(await kept.store.command("HGET", "payonce:test_clock", "due_frozen"))
    await kept.store.command("HSET", "payonce:test_clock", "due_frozen", frozen_us + ahead_s * 1_000_000)
    await kept.feed.put([message(delay_s=60), message()])
    assert len(await claim(queue)) == 1
    [_, score] = await kept.store.command("ZRANGE", f"{KEY}:delayed", 0, 0, "WITHSCORES")
    assert float(score) * 1_000 == frozen_us + (ahead_s + 60) * 1_000_000
