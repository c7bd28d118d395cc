"""A claim behind a blocking wait: messages reach a waiting worker at once, and nobody else keeps them."""

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Ending, Message, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.process import Worker
from payonce.engine.messages.runs import Run
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import QueueAway
from payonce.queues.redis import RedisQueue, pull, scripts, wait
from payonce.queues.redis.connections import ConnectionPool
from payonce.queues.redis.scripts import Script
from payonce.testing import ScratchDatabase, eventually
from tests.conformance.backend import (
    PLAIN,
    QUEUE,
    claim,
    claim_one,
    crash_until_alone,
    message,
    settle,
    stored,
    success,
)
from tests.conformance.redis_backend import RedisBackend, open_redis_backend

CLAIMS = f"q:{QUEUE}:claims"
LONG_S = 50.0
SOON_S = 25.0


@pytest.fixture
def direct(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "direct")


@pytest.fixture
def kept(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisBackend]:
    return open_redis_backend(scratch, redis_server, "transactional")


async def looks(backend: RedisBackend, times: int = 1) -> bool:
    """This many connections wait on the server for a message."""
    told = await backend.store.command("CLIENT", "LIST")
    return sum(b"cmd=blmove" in line and b"flags=b" in line for line in told.splitlines()) == times


async def claimed(backend: RedisBackend, count: int) -> bool:
    return bool(await backend.store.command("HLEN", CLAIMS) == count)


async def looking(backend: RedisBackend, queue: RedisQueue) -> "asyncio.Task[None]":
    """A waiting worker with room; its wait is on the server."""
    assert await claim(queue) == []
    waiting = asyncio.create_task(queue.wait(LONG_S, 1))
    await eventually(partial(looks, backend), what="a look waits on the server")
    return waiting


async def catching(backend: RedisBackend, queue: RedisQueue) -> None:
    waiting = await looking(backend, queue)
    await backend.feed.put([message()])
    await asyncio.wait_for(waiting, SOON_S)


async def test_what_is_put_is_claimed_for_a_waiting_worker_with_room(
    direct: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The wait seen on the server must be the one that claims.
    monkeypatch.setattr(wait, "CLAIMING_WAIT_S", int(LONG_S))
    queue = await direct.queue(PLAIN)
    waiting = await looking(direct, queue)
    put_at = time.monotonic()
    await direct.feed.put([message()])
    await asyncio.wait_for(waiting, SOON_S)
    assert await claimed(direct, 1), "before it was asked for"
    came = await queue.exchange([], 10)
    [caught] = came.claims
    assert (came.asked_at or put_at) < put_at, "its lease counts from before it was claimed"
    assert came.more, "there may be others behind it"
    await settle(queue, success(caught))
    assert await claimed(direct, 0)


async def test_what_waits_for_postgres_to_be_asked_is_caught_as_well(kept: RedisBackend) -> None:
    queue = await kept.queue(PLAIN)
    await catching(kept, queue)
    await settle(queue, success(await claim_one(queue)))


async def test_a_caught_one_comes_beside_settlements_and_others(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    await direct.feed.put([message()])
    first = await claim_one(queue)
    await catching(direct, queue)
    await direct.feed.put([message(), message(), message()])
    came = await queue.exchange([success(first)], 3)
    assert (len(came.answers), len(came.claims)) == (1, 3), "never more than there is room for"
    assert came.asked_at is not None


@pytest.mark.parametrize("policy", [PLAIN, Policy(QUEUE, lease_s=5)])
async def test_nothing_is_claimed_for_one_without_room_or_with_a_short_lease(
    direct: RedisBackend, policy: Policy
) -> None:
    queue = await direct.queue(policy)
    assert await claim(queue) == []
    waiting = asyncio.create_task(queue.wait(LONG_S, int(policy is not PLAIN)))
    await eventually(partial(looks, direct), what="a look waits on the server")
    await direct.feed.put([message()])
    await asyncio.wait_for(waiting, SOON_S)
    assert await claimed(direct, 0)


async def test_one_that_has_no_room_any_more_gives_back_what_it_caught(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    await catching(direct, queue)
    assert await claim(other) == []
    await queue.wait(0.0, 0)
    got = await claim_one(other)
    assert (got.message.attempts, got.crashes) == (0, 0)
    assert await claim(queue) == []


async def test_one_that_stops_while_it_looks_takes_nothing_with_it(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    waiting = await looking(direct, queue)
    waiting.cancel()
    await queue.stop_waiting()
    assert await looks(direct, 0)
    await direct.feed.put([message()])
    await claim_one(other)


async def test_one_that_stops_with_something_caught_gives_it_back(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    await catching(direct, queue)
    await queue.stop_waiting()
    await claim_one(other)


async def test_a_look_that_is_lost_is_told_so_that_what_it_may_have_claimed_goes_back(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    waiting = await looking(direct, queue)
    for line in (await direct.store.command("CLIENT", "LIST")).splitlines():
        if b"cmd=blmove" in line:
            await direct.store.command("CLIENT", "KILL", "ID", int(line.split()[0].removeprefix(b"id=")))
    await asyncio.wait_for(waiting, SOON_S)
    with pytest.raises(QueueAway, match="was lost"):
        await queue.exchange([], 1)
    await queue.give_back([])
    await direct.feed.put([message()])
    await claim_one(other)
    assert await claim(queue) == []


async def test_what_the_store_was_told_to_take_back_is_not_run_from_memory(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    await catching(direct, queue)
    assert await queue.give_back([]) == 1
    await claim_one(other)
    assert await claim(queue) == []


async def test_what_a_look_catches_after_its_worker_gave_all_back_goes_back_too(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    await looking(direct, queue)
    await queue.give_back([])
    await direct.feed.put([message()])

    async def free() -> bool:
        lie = await stored(direct, State.READY)
        return [each.worker for each in lie] == [None]

    await eventually(free, what="it is there for anybody")
    assert len([*await claim(queue), *await claim(other)]) == 1


async def test_a_worker_that_waits_for_a_suspect_to_end_keeps_nothing_from_others(direct: RedisBackend) -> None:
    ran: list[str] = []
    go_on = asyncio.Event()

    @handles(PLAIN)
    async def run(work: Work) -> None:
        ran.append(work.message.payload["n"])
        if work.message.payload["n"] == "suspect":
            await go_on.wait()

    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    await direct.feed.put([Message(queue=QUEUE, payload={"n": "suspect"})])
    await crash_until_alone(direct, other)
    worker = Worker([run], direct.stage.database, direct.stage.feed, lambda _: queue)
    serving = asyncio.create_task(worker.run())
    try:
        await eventually(lambda: ran == ["suspect"], what="the suspect runs")
        await direct.feed.put([Message(queue=QUEUE, payload={"n": "innocent"})])
        await eventually(partial(claim, other), what="another worker gets the innocent one")
        go_on.set()
        await eventually(lambda: ran == ["suspect"], what="the innocent one did not run here")
    finally:
        await worker.stop()
        await serving


async def test_a_worker_runs_what_it_caught_and_ends_with_nothing_in_its_hands(direct: RedisBackend) -> None:
    ran: list[int] = []

    @handles(PLAIN)
    async def run(work: Work) -> None:
        ran.append(work.message.payload["n"])

    queue = await direct.queue(PLAIN)
    worker = Worker([run], direct.stage.database, direct.stage.feed, lambda _: queue)
    serving = asyncio.create_task(worker.run())
    for number in range(20):
        await eventually(partial(looks, direct), what="it looks")
        await direct.feed.put([Message(queue=QUEUE, payload={"n": number})])
        await eventually(partial(ran.__contains__, number), what="it ran")
    await eventually(partial(looks, direct), what="it looks")
    await worker.stop()
    await serving
    assert ran == list(range(20))
    assert await claimed(direct, 0)
    assert await looks(direct, 0)


async def test_what_is_given_back_goes_to_where_it_was_in_line_with_what_is_known_of_it(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    [first] = await direct.feed.put([message()])
    await settle(queue, Settlement(await claim_one(queue), Ending.RETRY, "the vendor said no"))
    waiting = asyncio.create_task(queue.wait(LONG_S, 1))
    await asyncio.wait_for(waiting, SOON_S)
    assert await claimed(direct, 1)
    await direct.feed.put([message(), message()])
    await queue.wait(0.0, 0)
    [lies, *_] = await stored(direct, State.READY)
    assert (lies.message.id, lies.last_error) == (first, "the vendor said no")
    assert (await claim(other))[0].message.id == first


async def test_what_a_look_catches_while_its_worker_gives_all_back_is_run_by_one(direct: RedisBackend) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    assert await claim(queue) == []
    run = direct.store.run

    async def caught_first(script: Script, *words: Any) -> list[Any]:
        """A wait begins, and claims, between the worker's decision and its request to the server."""
        if script is scripts.GIVE_BACK and (len(words) > 2 and words[2] == ""):
            await direct.feed.put([message()])
            await queue.wait(LONG_S, 1)
        return await run(script, *words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct.store, "run", caught_first)
        assert await queue.give_back([]) == 1
    assert len([*await claim(other), *await claim(queue)]) == 1


async def test_one_that_stops_while_it_connects_takes_nothing_with_it(
    direct: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = await direct.queue(PLAIN), await direct.queue(PLAIN, "worker-2")
    assert await claim(queue) == []
    connected, begun, go_on = ConnectionPool._connect, asyncio.Event(), asyncio.Event()

    async def slowly(lines: ConnectionPool) -> Any:
        begun.set()
        await go_on.wait()
        return await connected(lines)

    monkeypatch.setattr(ConnectionPool, "_connect", slowly)
    waiting = asyncio.create_task(queue.wait(LONG_S, 1))
    await begun.wait()
    waiting.cancel()
    stopping = asyncio.create_task(queue.stop_waiting())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    await direct.feed.put([message()])
    await claim_one(other)


async def test_what_was_caught_goes_back_also_while_postgres_is_away(
    kept: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = await kept.queue(PLAIN), await kept.queue(PLAIN, "worker-2")
    await catching(kept, queue)

    async def away(*_: Any) -> None:
        raise OSError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(pull, "check", away)
        await queue.stop_waiting()
    await claim_one(other)


async def test_one_that_waits_looks_again_when_a_look_has_ended(direct: RedisBackend) -> None:
    queue = await direct.queue(PLAIN)
    waiting = await looking(direct, queue)
    first = queue._watcher._wait

    def another() -> bool:
        return queue._watcher._wait not in (None, first)

    await eventually(another, what="another look")
    await direct.feed.put([message()])
    await asyncio.wait_for(waiting, SOON_S)
    await claim_one(queue)


async def test_the_limit_of_a_run_counts_from_its_start(direct: RedisBackend) -> None:
    begun: list[Run] = []
    queue = await direct.queue(PLAIN)

    @handles(PLAIN)
    async def run(work: Work) -> None:
        begun.extend(server.runs.values())

    [server] = Worker([run], direct.stage.database, direct.stage.feed, lambda _: queue)._servers
    await catching(direct, queue)
    asked_at = time.monotonic()
    assert await server._turn()
    await eventually(lambda: begun, what="it runs")
    assert begun[0].renewed_at < asked_at <= begun[0].started_at
