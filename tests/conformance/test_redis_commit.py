"""A handler's commit() with the queue in Redis: PostgreSQL's commit decides, whoever else has run the message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, Ending, Message, SettleAnswer, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Stale
from payonce.queues.redis import RedisQueue, refill
from payonce.testing import ScratchDatabase
from tests.conformance.redis_backend import FLAVOURS, Flavour, RedisBackend, open_redis_backend

PAY = Policy("pay", lease_s=30)
SHIP = Policy("ship")


@pytest.fixture(params=FLAVOURS)
def redis(scratch: ScratchDatabase, redis_server: RedisServer, request: pytest.FixtureRequest) -> object:
    flavour: Flavour = request.param
    return open_redis_backend(scratch, redis_server, flavour)


async def work_on(backend: RedisBackend) -> tuple[RedisQueue, Work]:
    """A claimed message, as its handler sees it, and a business table."""
    await backend.stage.owner.execute("create table business (id text); grant all on business to payonce_service")
    queue = await backend.queue(PAY)
    await backend.feed.declare([SHIP])
    await backend.feed.put([Message(queue="pay", trace_id="t-1")])
    [claim] = (await queue.exchange([], 1)).claims
    return queue, _work(backend, queue, claim)


def _work(backend: RedisBackend, queue: RedisQueue, claim: Claim) -> Work:
    database = backend.stage.database
    return Work(claim, queue, database, backend.feed, Reader(database))


async def take_over(backend: RedisBackend, queue: RedisQueue) -> Work:
    await backend.time.advance_leases(PAY.lease_s + 1)
    assert await queue.reap() == 1
    [successor] = (await queue.exchange([], 1)).claims
    return _work(backend, queue, successor)


async def commit_a_row(work: Work) -> None:
    async with work.commit() as tx:
        await tx.execute("insert into business values ('b-1')")
        await tx.send(SHIP, {})


async def written(backend: RedisBackend) -> tuple[int, int]:
    """Business rows, and messages to ship that are in Redis."""
    await backend.relay()
    return (
        await backend.stage.owner.fetchval("select count(*) from business"),
        (await backend.admin.depth("ship")).ready,
    )


async def mirror(queue: RedisQueue, work: Work) -> list[SettleAnswer]:
    """The worker's steps after the commit."""
    assert work.settlement is not None
    recorded = Settlement(work.settlement.claim, work.settlement.ending, recorded=True)
    return list((await queue.exchange([recorded], 0)).answers)


async def test_a_commit_writes_everything_and_settles(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    await commit_a_row(work)
    assert work.settled_as is Ending.SUCCESS
    assert await mirror(queue, work) == [SettleAnswer.SETTLED]
    assert await written(redis) == (1, 1)
    assert (await redis.admin.depth("pay")).leased == 0
    rows = await redis.stage.owner.fetch("select status from payonce.job_logs")
    assert [row["status"] for row in rows] == ["success"]


async def test_a_stale_commit_writes_nothing(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    await take_over(redis, queue)
    with pytest.raises(Stale):
        await commit_a_row(work)
    assert await written(redis) == (0, 0)


async def test_of_two_runs_of_one_message_one_commits(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    successor = await take_over(redis, queue)
    results = await asyncio.gather(commit_a_row(work), commit_a_row(successor), return_exceptions=True)
    assert [type(result) for result in results] == [Stale, type(None)]
    assert await written(redis) == (1, 1)


async def test_of_two_runs_that_redis_has_both_forgotten_one_commits(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    successor = await take_over(redis, queue)
    await redis.store.command("FLUSHALL")
    await commit_a_row(work)
    with pytest.raises(Stale):
        await commit_a_row(successor)
    assert await written(redis) == (1, 1)


async def test_what_was_committed_does_not_run_again_when_redis_was_not_told(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    await commit_a_row(work)
    await redis.time.advance_leases(PAY.lease_s + 1)
    await queue.reap()
    claims = (await queue.exchange([], 1)).claims
    for claim in claims:
        # Only Redis knew it: it runs once more, and its commit meets the inbox.
        with pytest.raises(Stale):
            await commit_a_row(_work(redis, queue, claim))
    assert await written(redis) == (1, 1)


async def test_a_message_that_holds_an_effect_is_kept_from_then_on(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    async with holding(redis, queue, work):
        pass
    await redis.store.command("FLUSHALL")
    await refill(redis.store)
    await redis.relay()
    # The run that holds it may still be active; a wiped server does not know.
    await redis.time.advance_leases(PAY.lease_s + 1)
    [again] = (await queue.exchange([], 1)).claims
    assert again.message.id == work.message.id
    assert (await queue.exchange([Settlement(again, Ending.SUCCESS)], 0)).answers == [SettleAnswer.SETTLED]


async def test_a_hold_that_rolled_back_leaves_a_message_that_runs(redis: RedisBackend) -> None:
    queue, work = await work_on(redis)
    with pytest.raises(ZeroDivisionError):
        async with holding(redis, queue, work):
            raise ZeroDivisionError
    again = await take_over(redis, queue)
    assert again.message.id == work.message.id
    settled = await queue.exchange([Settlement(again._claim, Ending.RETRY, "later", 10)], 0)
    assert settled.answers == [SettleAnswer.SETTLED]
    await redis.time.advance(10)
    [third] = (await queue.exchange([], 1)).claims
    assert third.message.attempts == 1


@asynccontextmanager
async def holding(backend: RedisBackend, queue: RedisQueue, work: Work) -> AsyncIterator[None]:
    async with backend.stage.database.transaction() as connection:
        assert await queue.hold_within(connection, work._claim)
        yield
