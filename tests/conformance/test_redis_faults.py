"""Faults of a Redis server that must not cost money: another clock, no memory, a replica, a slow line."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from payonce.embedded.redis import RedisServer
from payonce.engine.database.connections import Connection
from payonce.engine.effects import Answer, Findable, answer_review, give_up_effects, reviews
from payonce.engine.messages.model import Message, Settlement, State
from payonce.engine.messages.policy import Fixed, Policy
from payonce.engine.messages.ports import Depth
from payonce.engine.messages.process import Worker
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.outbox import entry_statuses, relay_step
from payonce.kit.outcomes import Retry, Stale, Unknown
from payonce.queues.redis import RedisAdmin, RedisFeed, RedisQueue, RedisRelay, RedisStore, store
from payonce.testing import ScratchDatabase
from tests.conformance.redis_backend import FLAVOURS, RedisBackend, open_redis_backend
from tests.engine.effects_stage import HORIZON_S, Pay, Receipt, Vendor

US = 1_000_000


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


@pytest.fixture(params=FLAVOURS)
def either(
    scratch: ScratchDatabase, redis_server: RedisServer, request: pytest.FixtureRequest
) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, request.param)


async def skew(backend: RedisBackend, ahead_s: float) -> None:
    """Redis' clock is ahead of PostgreSQL's."""
    frozen = await backend.store.command("HGET", "payonce:test_clock", "due_frozen")
    await backend.store.command("HSET", "payonce:test_clock", "due_frozen", int(frozen) + round(ahead_s * US))


def worker_of(backend: RedisBackend, handler: Handler) -> Worker:
    store, notifier = backend.store, backend.stage.notifier
    return Worker(
        [handler], backend.stage.database, backend.feed, lambda policy: RedisQueue(store, notifier, policy, "w")
    )


@pytest.mark.parametrize("ahead_s", [-1, 0, 1])
async def test_an_answer_during_the_last_run_counts_whatever_redis_clock_says(
    either: RedisBackend, ahead_s: float
) -> None:
    backend, given_up = either, []
    database = backend.stage.database

    async def end_the_object(work: Work) -> None:
        given_up.append(work.message.id)

    policy = Policy("pay", max_attempts=2, backoff=Fixed(0), lease_s=30, on_give_up=end_the_object)
    vendor = Vendor(faults=["lost after"], shows_nothing=True)

    @handles(policy)
    async def pay(work: Work) -> None:
        try:
            await work.effect(Pay(vendor, Findable(HORIZON_S, None)), key="p-1")
        except Retry:
            [review] = await reviews(Reader(database))
            async with begin(database, backend.feed) as tx:
                await answer_review(
                    tx,
                    review.effect.id,
                    Answer.HAPPENED,
                    "ada",
                    "looked",
                    revision=review.effect.revision,
                    outcome=Receipt("n-p-1:1", "p-1:1"),
                )
            raise
        async with work.commit():
            pass

    await backend.queue(policy)
    await skew(backend, ahead_s)
    [message_id] = await backend.feed.put([Message(queue="pay")])
    worker = Worker(
        [pay], database, backend.feed, lambda each: RedisQueue(backend.store, backend.stage.notifier, each, "w")
    )
    assert await worker.step()
    async with begin(database, backend.feed) as tx:
        await give_up_effects(tx, message_id, "enough")
    await worker.step()
    assert not given_up
    await backend.time.advance(60)
    assert await worker.step()
    assert not given_up
    assert len(vendor.calls) == 1
    assert await backend.admin.depth("pay") == Depth("pay")


@pytest.mark.parametrize(("ahead_s", "told"), [(0.0, False), (0.4, False), (0.6, True), (-0.6, True)])
async def test_clocks_that_differ_by_more_than_half_a_second_are_told_at_start(
    direct: RedisBackend, ahead_s: float, told: bool
) -> None:
    await skew(direct, ahead_s)
    with capture_logs() as lines:
        async with RedisStore.open(direct.server.url, direct.stage.database):
            pass
    assert ("clocks_differ" in [line["event"] for line in lines]) is told


async def test_a_run_that_is_taken_over_while_it_gives_up_leaves_its_effects_as_they_are(kept: RedisBackend) -> None:
    """Between the fence at the beginning and the parking at the end, Redis is wiped and another worker claims."""
    policy, vendor = Policy("pay", lease_s=30), Vendor(faults=["lost after"])
    first, second = await kept.queue(policy, "first"), await kept.queue(policy, "second")
    database = kept.stage.database
    [message_id] = await kept.feed.put([Message(queue="pay")])
    [claim] = (await first.exchange([], 1)).claims

    class TakenOver(RedisQueue):
        async def settle_within(self, connection: Connection, settlement: Settlement) -> bool:
            body = await kept.store.command("LINDEX", "q:pay:processing", 0)
            await kept.store.command("FLUSHALL")
            await kept.store.send_clocks()
            await kept.store.declare("pay")
            await kept.store.command("LPUSH", "q:pay", body)
            assert len((await second.exchange([], 1)).claims) == 1
            return await super().settle_within(connection, settlement)

    taken_over = TakenOver(kept.store, kept.stage.notifier, policy, "first")
    work = Work(claim, taken_over, database, kept.feed, Reader(database))
    with pytest.raises(Unknown):
        await work.effect(Pay(vendor, Findable(HORIZON_S, None)), key="p-1")
    with pytest.raises(Stale):
        await work.give_up("tried enough")
    assert await kept.stage.owner.fetchval("select state from payonce.effects") == "unknown"
    assert (await entry_statuses(database, "redis", [message_id]))[message_id].state == "delivered"


@asynccontextmanager
async def unwilling(backend: RedisBackend, how: str) -> AsyncIterator[None]:
    """The server takes no writes."""
    worse, better = {
        "full": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
        "a replica": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    }[how]
    await backend.store.command(*worse)
    try:
        yield
    finally:
        await backend.store.command(*better)


@pytest.mark.parametrize(("how", "said"), [("full", "maxmemory"), ("a replica", "primary")])
async def test_a_server_that_takes_nothing_parks_nothing(kept: RedisBackend, how: str, said: str) -> None:
    queue, relay = await kept.queue(Policy("pay")), RedisRelay(kept.store)
    async with unwilling(kept, how):
        async with kept.stage.database.transaction() as connection:
            await RedisFeed(kept.store, kept.stage.notifier).put([Message(queue="pay") for _ in range(3)], connection)
        for _ in range(30):
            await relay_step(kept.stage.database, relay)
            await kept.stage.clock.advance(60)
        rows = await kept.stage.owner.fetch("select state, last_error from payonce.outbox")
        assert [row["state"] for row in rows] == ["waiting"] * 3
        assert all(said in row["last_error"] for row in rows)
    await kept.time.advance(3_600)
    await kept.relay()
    assert len((await queue.exchange([], 5)).claims) == 3


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_run_that_meets_a_full_server_uses_up_no_attempt(either: RedisBackend, attempts: int) -> None:
    policy = Policy("pay", max_attempts=attempts, backoff=Fixed(0), lease_s=30)
    vendor, given_up = Vendor(), []

    async def end_the_object(work: Work) -> None:
        given_up.append(work.message.id)

    @handles(replace(policy, on_give_up=end_the_object))
    async def pay(work: Work) -> None:
        await work.effect(Pay(vendor, Findable(HORIZON_S, None)), key="p-1")
        async with work.commit():
            pass

    await either.queue(policy)
    await either.feed.put([Message(queue="pay")])
    worker = worker_of(either, pay)
    for _ in range(5):
        async with unwilling(either, "full"):
            assert await worker.step()
        await either.time.advance(60)
    assert (vendor.calls, given_up) == ([], [])
    assert await worker.step()
    assert len(vendor.calls) == 1
    assert await either.admin.depth("pay") == Depth("pay")


async def test_a_run_that_gives_up_while_the_server_takes_nothing_gives_up_later(kept: RedisBackend) -> None:
    policy, vendor = Policy("pay", max_attempts=1, lease_s=30), Vendor(faults=["lost after"])
    stuck = True

    @handles(policy)
    async def pay(work: Work) -> None:
        try:
            await work.effect(Pay(vendor, Findable(HORIZON_S, None)), key="p-1")
        finally:
            if stuck:
                await kept.store.command("CONFIG", "SET", "maxmemory", "1")

    await kept.queue(policy)
    await kept.feed.put([Message(queue="pay")])
    worker = worker_of(kept, pay)
    try:
        assert await worker.step()
    finally:
        await kept.store.command("CONFIG", "SET", "maxmemory", "0")
    stuck = False
    assert (await kept.admin.depth("pay")).parked == 0
    await kept.time.advance(60)
    vendor.shows_nothing = True
    assert await worker.step()
    assert await kept.stage.owner.fetchval("select state from payonce.effects") == "review"
    assert (await kept.admin.depth("pay")).parked == 1


CATCH_UP_S = 0.1
"""A line sleeps after every part, and makes up for oversleeping, up to this."""


@asynccontextmanager
async def slow_line(backend: RedisBackend, bytes_per_s: float) -> AsyncIterator[str]:
    """The server's address behind a line of this bandwidth in each direction, also on a machine that wakes it late."""
    loop = asyncio.get_running_loop()

    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        free_at = loop.time()
        with suppress(OSError):
            while part := await source.read(64 * 1024):
                target.write(part)
                await target.drain()
                free_at = max(free_at, loop.time() - CATCH_UP_S) + len(part) / bytes_per_s
                await asyncio.sleep(free_at - loop.time())
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", backend.server.port)
        await asyncio.gather(carry(reader, to_server), carry(from_server, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()


@asynccontextmanager
async def narrow_line(backend: RedisBackend, most_bytes: int) -> AsyncIterator[str]:
    """A line so slow that a command or an answer with more bytes would time out: here it is split, and nobody waits."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", backend.server.port)
        passed = {to_server: 0, writer: 0}

        async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, back: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while (part := await source.read(64 * 1024)) and passed[target] + len(part) <= most_bytes:
                    passed[target], passed[back] = passed[target] + len(part), 0
                    target.write(part)
                    await target.drain()
            target.close()
            back.close()

        await asyncio.gather(carry(reader, to_server, writer), carry(from_server, writer, to_server))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()


LARGE = {"b": "x" * 250_000}


async def test_large_messages_pass_a_slow_line_in_parts(kept: RedisBackend) -> None:
    """All of them take longer than one command may."""
    policy, database, count = Policy("pay"), kept.stage.database, 80
    await kept.queue(policy)
    feed = RedisFeed(kept.store, kept.stage.notifier)
    async with narrow_line(kept, 16_000_000) as url, RedisStore.open(url, database) as slow:
        async with database.transaction() as connection:
            await feed.put([Message(queue="pay", payload=LARGE) for _ in range(count)], connection)
        while await relay_step(database, RedisRelay(slow)):
            await kept.stage.clock.advance(1)
        rows = await kept.stage.owner.fetch("select distinct state from payonce.outbox")
        assert [row["state"] for row in rows] == ["delivered"]
        assert len(await RedisAdmin(slow, kept.stage.notifier).peek("pay", State.READY, count)) == count
        queue, claimed = RedisQueue(slow, kept.stage.notifier, policy, "w"), 0
        while claims := (await queue.exchange([], count)).claims:
            claimed += len(claims)
        assert claimed == count
        assert (await kept.admin.depth("pay")).ready == 0


@pytest.mark.parametrize("lanes", [False, True])
async def test_what_is_claimed_at_once_is_bounded_by_its_size_and_in_order(direct: RedisBackend, lanes: bool) -> None:
    queue = await direct.queue(Policy("pay", lanes=lanes))
    lane_of = [f"lane {number % 2}" if lanes else None for number in range(60)]
    sent = await direct.feed.put([Message(queue="pay", payload=LARGE, lane=lane) for lane in lane_of])
    claimed: list[UUID] = []
    while claims := (await queue.exchange([], 60)).claims:
        assert len(claims) <= 26
        claimed += [claim.message.id for claim in claims]
    assert sorted(claimed) == sorted(sent)
    assert lanes or claimed == sent


async def test_a_large_put_passes_a_slow_line_as_one(direct: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    await direct.queue(Policy("pay"))
    async with slow_line(direct, 8e6) as url, RedisStore.open(url, direct.stage.database) as slow:
        # Only now: the small commands that open it have all the time they need.
        monkeypatch.setattr(store, "COMMAND_TIMEOUT_S", 1.0)
        sent = [Message(queue="pay", payload=LARGE) for _ in range(60)]
        assert await RedisFeed(slow, direct.stage.notifier).put(sent) == [message.id for message in sent]
    assert (await direct.admin.depth("pay")).ready == 60


@pytest.mark.parametrize("said", [{"payload": {"amount": "9999"}}, {"payload": {"amount": "10"}, "action": "refund"}])
async def test_a_body_pushed_under_the_id_of_a_kept_message_does_not_run(
    kept: RedisBackend, said: dict[str, Any]
) -> None:
    queue = await kept.queue(Policy("pay"))
    [message_id] = await kept.feed.put([Message(queue="pay", payload={"amount": "10"}, delay_s=60)])
    await kept.store.command("LPUSH", "q:pay", json.dumps({"id": str(message_id), **said}))
    assert (await queue.exchange([], 5)).claims == []
    await kept.relay()
    await kept.time.advance(60)
    [claim] = (await queue.exchange([], 5)).claims
    assert (claim.message.action, claim.message.payload) == ("", {"amount": "10"})


async def test_a_kept_message_written_in_other_words_runs(kept: RedisBackend) -> None:
    queue = await kept.queue(Policy("pay"))
    async with kept.stage.database.transaction() as connection:
        await RedisFeed(kept.store, kept.stage.notifier).put([Message(queue="pay", payload={"n": 1000.0})], connection)
    await kept.stage.owner.execute("""update payonce.outbox set payload = '{ "n": 1e3 }'""")
    await kept.relay()
    [claim] = (await queue.exchange([], 5)).claims
    assert claim.message.payload == {"n": 1000.0}


async def test_the_doorbell_outlives_a_server_that_refuses_to_be_looked_at(direct: RedisBackend) -> None:
    queue = await direct.queue(Policy("pay"))
    async with unwilling(direct, "a replica"):
        await queue.wait(0.3)
    await queue.exchange([], 1)
    begun = time.monotonic()
    waiting = asyncio.create_task(queue.wait(50.0))
    await asyncio.sleep(0)
    await direct.store.command("LPUSH", "q:pay", "{}")
    await waiting
    assert time.monotonic() - begun < 25.0


async def test_a_server_that_was_restarted_costs_nobody_an_error(direct: RedisBackend) -> None:
    await direct.queue(Policy("pay"))
    await asyncio.gather(*(direct.feed.put([Message(queue="pay")]) for _ in range(8)))
    direct.server.kill()
    direct.server.start()
    # Whatever this process does next, it notices its lost connections meanwhile.
    await direct.stage.owner.fetchval("select 1")
    await asyncio.gather(*(direct.feed.put([Message(queue="pay")]) for _ in range(8)))
