"""Operators' actions on queues in Redis while the two stores disagree: after a crash, a lost write, or an older
disk."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, Ending, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Work
from payonce.engine.outbox import discard_entries
from payonce.engine.outbox.durable_copy import wake_durable
from payonce.kit.outcomes import Invalid, Stale
from payonce.queues.redis import RedisQueue, admin, redrive, refill
from payonce.queues.redis.durable_copy import start_over
from payonce.testing import ScratchDatabase
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
    settle,
    stored,
)
from tests.conformance.redis_backend import RedisBackend, open_redis_backend

KEY = f"q:{QUEUE}"


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


async def commit(backend: RedisBackend, queue: RedisQueue, claimed: Claim) -> None:
    """And the process dies before it reaches Redis."""
    work = Work(claimed, queue, backend.stage.database, backend.feed, Reader(backend.stage.database))
    async with work.commit():
        pass


async def redrive_with_a_commit(backend: RedisBackend) -> int:
    """As an approval does."""
    async with backend.transaction() as connection:
        return await backend.admin.redrive(QUEUE, Filter(), within=connection)


async def die_and_reap(backend: RedisBackend, queue: RedisQueue) -> None:
    await backend.time.advance_leases(PLAIN.lease_s + 1)
    await queue.reap()


async def test_a_message_that_was_committed_is_finished_by_the_run_that_comes_too_late(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await commit(direct, queue, await claim_one(queue))
    await die_and_reap(direct, queue)
    again = await claim_one(queue)
    with pytest.raises(Stale):
        await commit(direct, queue, again)
    await die_and_reap(direct, queue)
    depth = await direct.admin.depth(QUEUE)
    assert (depth.ready, depth.alone, depth.leased, depth.parked) == (0, 0, 0, 0)


@pytest.mark.parametrize("within", [True, False])
async def test_a_redrive_drops_the_parked_copy_of_what_was_committed(direct: RedisBackend, within: bool) -> None:
    """The handler found that all was done and refused, so that the message was parked."""
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    await commit(direct, queue, await claim_one(queue))
    await die_and_reap(direct, queue)
    await settle(queue, parked(await claim_one(queue)))
    redriven = await (redrive_with_a_commit(direct) if within else direct.admin.redrive(QUEUE, Filter()))
    assert redriven == 0
    assert await claim(queue) == []
    assert await stored(direct, State.PARKED) == []


async def snapshot(backend: RedisBackend) -> dict[bytes, bytes]:
    ask = backend.store.command
    return {key: await ask("DUMP", key) for key in await ask("KEYS", "q:*")}


async def restore(backend: RedisBackend, saved: dict[bytes, bytes]) -> None:
    await backend.store.command("FLUSHALL")
    await backend.store.send_clocks()
    for key, value in saved.items():
        await backend.store.command("RESTORE", key, 0, value)


@pytest.mark.parametrize("refilled", [True, False])
async def test_an_older_disk_does_not_bring_a_settled_message_back_to_be_redriven(
    kept: RedisBackend, refilled: bool
) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    await park_all(queue)
    yesterday = await snapshot(kept)
    assert await kept.admin.redrive(QUEUE, Filter()) == 1
    await commit(kept, queue, await claim_one(queue))
    await restore(kept, yesterday)
    if refilled:
        await refill(kept.store)
        assert await stored(kept, State.PARKED) == []
    assert await redrive_with_a_commit(kept) == 0
    assert await claim(queue) == []
    assert await stored(kept, State.PARKED) == []


async def test_messages_of_a_queue_are_not_discarded_from_the_outbox(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    claimed = await claim_one(queue)
    await settle(queue, parked(claimed))
    with pytest.raises(Invalid, match="messages of a queue"):
        await discard_entries(kept.stage.database, "redis", [claimed.message.id], by="ann", why="never to run")
    assert await redrive_with_a_commit(kept) == 1


async def woken_before_redis_heard_of_the_parking(backend: RedisBackend, queue: RedisQueue) -> UUID:
    claimed = await claim_one(queue)
    given_up = Settlement(claimed, Ending.PARKED, "an effect waits for a person")
    async with backend.stage.database.transaction() as connection:
        assert await queue.settle_within(connection, given_up)
    async with backend.transaction() as connection:
        assert await wake_durable(connection, claimed.message.id)
    await settle(queue, Settlement(claimed, Ending.PARKED, given_up.reason, recorded=True))
    assert len(await stored(backend, State.PARKED)) == 1
    return claimed.message.id


async def test_a_message_that_was_woken_before_redis_heard_of_its_parking_runs(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    woken = await woken_before_redis_heard_of_the_parking(kept, queue)
    assert (await refill(kept.store)).put_back == 1
    await kept.relay()
    assert ids(await claim(queue)) == [woken]
    assert await stored(kept, State.PARKED) == []


@pytest.mark.parametrize("within", [True, False])
async def test_a_redrive_of_one_that_was_woken_before_redis_heard_of_its_parking_does_what_it_says(
    kept: RedisBackend, within: bool
) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    woken = await woken_before_redis_heard_of_the_parking(kept, queue)
    assert await (redrive_with_a_commit(kept) if within else kept.admin.redrive(QUEUE, Filter())) == 1
    assert ids(await claim(queue)) == [woken]
    assert await stored(kept, State.PARKED) == []


async def test_a_redrive_before_the_refill_of_a_wiped_server_starts_what_postgresql_has_parked(
    kept: RedisBackend,
) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message(action="pay"), message(action="refund")])
    await park_all(queue)
    await kept.store.command("FLUSHALL")
    assert await kept.admin.redrive(QUEUE, Filter(action="pay")) == 1
    await kept.relay()
    assert (await claim_one(queue)).message.action == "pay"
    await refill(kept.store)
    assert [each.message.action for each in await stored(kept, State.PARKED)] == ["refund"]


async def test_a_redrive_counts_and_moves_all_while_the_relay_brings_them(
    kept: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = admin.PAGE + 100
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message() for _ in range(many)])
    await settle(queue, *[parked(each) for each in await claim(queue, many)])

    async def then_the_relay_comes(source: Any, chosen: Sequence[UUID]) -> set[UUID]:
        started = await start_over(source, chosen)
        await kept.relay()
        return started

    monkeypatch.setattr(redrive, "start_over", then_the_relay_comes)
    assert await kept.admin.redrive(QUEUE, Filter()) == many
    depth = await kept.admin.depth(QUEUE)
    assert (depth.parked, depth.ready) == (0, many)


async def test_a_lost_last_write_forgets_no_pause(kept: RedisBackend) -> None:
    """A failover to a replica that was behind: everything is there but the pause."""
    queue = await kept.queue(PLAIN)
    sent = await kept.feed.put([message(), message()])
    await kept.admin.pause(QUEUE, "wrong amounts")
    await kept.store.command("DEL", f"{KEY}:paused")
    assert await claim(queue) == [], "a worker was faster than the refill"
    assert await kept.store.command("GET", f"{KEY}:paused") == b"wrong amounts"
    await kept.store.command("DEL", f"{KEY}:paused")
    await refill(kept.store)
    assert await kept.store.command("GET", f"{KEY}:paused") == b"wrong amounts"
    await kept.admin.resume(QUEUE)
    claims = await claim(queue)
    assert set(ids(claims)) == set(sent)
    assert {(each.message.attempts, each.crashes) for each in claims} == {(0, 0)}


async def test_a_lost_last_write_forgets_no_resumption_and_no_limit(kept: RedisBackend) -> None:
    queue = await kept.queue(Policy(QUEUE, concurrency=1))
    await kept.feed.put([message(), message()])
    await kept.store.command("SET", f"{KEY}:paused", "over since an hour")
    await kept.store.command("DEL", f"limit:{QUEUE}")
    await refill(kept.store)
    await kept.time.advance_leases(LEASE_S)
    assert len(await claim(queue)) == 1


async def test_a_purge_leaves_what_is_claimed_under_its_hands(
    kept: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await kept.queue(PLAIN)
    [sent, other] = await kept.feed.put([message(), message()])
    run = kept.store.run
    taken: list[Claim] = []

    async def claim_first(script: Any, name: str, *words: Any) -> list[Any]:
        if script.name == "purge" and not taken:
            taken.extend(await claim(queue, 1))
        return await run(script, name, *words)

    monkeypatch.setattr(kept.store, "run", claim_first)
    assert await kept.admin.purge(QUEUE, State.READY, Filter(), by="ann") == 1
    assert ids(taken) == [sent]
    await commit(kept, queue, taken[0])
    assert [run.status for run in await kept.log_of(other)] == ["failed"]
    rows = await kept.stage.owner.fetch("select message_id, status from payonce.job_logs order by id")
    assert [tuple(row) for row in rows] == [(other, "failed"), (sent, "success")]
    assert await kept.stage.owner.fetchval("select count(*) from payonce.outbox") == 0


async def test_a_refill_leaves_the_hold_of_a_run_that_goes_on(kept: RedisBackend) -> None:
    one, other = await kept.queue(PLAIN, "one"), await kept.queue(PLAIN, "other")
    await kept.feed.put([message()])
    first = await claim_one(one)

    async def holds(queue: RedisQueue, claimed: Claim) -> bool:
        async with kept.stage.database.transaction() as connection:
            return await queue.hold_within(connection, claimed)

    assert await holds(one, first)
    await kept.store.command("FLUSHALL")
    await refill(kept.store)
    await kept.relay()
    again = await claim_one(other)
    assert not await holds(other, again)
    await kept.time.advance_leases(PLAIN.lease_s + 1)
    await other.reap()
    assert await holds(other, await claim_one(other))


async def test_a_parked_message_that_was_also_pushed_by_hand_is_shown_once(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await kept.feed.put([message()])
    await park_all(queue)
    await kept.store.command("LPUSH", KEY, await kept.store.command("LINDEX", f"{KEY}:failed", 0))
    assert await claim(queue) == []
    await refill(kept.store)
    assert len(await stored(kept, State.PARKED)) == 1
    assert await kept.admin.redrive(QUEUE, Filter()) == 1
    assert len(await claim(queue)) == 1
    assert await stored(kept, State.PARKED) == []
