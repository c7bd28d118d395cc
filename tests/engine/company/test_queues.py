"""Commits in company on every kind of queue: PostgreSQL's, one in Redis, one that a task service brings."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from payonce.embedded.redis import RedisServer
from payonce.engine.company import Company
from payonce.engine.database import Database
from payonce.engine.model import Claim, Ending, Message
from payonce.engine.policy import Policy
from payonce.engine.queue import PullQueue
from payonce.engine.transaction import Reader, RingingFeed
from payonce.engine.work import Work
from payonce.engine.worker import _with_or_without_company
from payonce.kit.outcomes import Stale
from payonce.testing import ScratchDatabase, open_stage
from tests.cloudtasks.desk import open_runs
from tests.conformance.redis_backend import open_redis_backend
from tests.engine.company.company_stage import counted

DO = Policy("company-queues", lease_s=30, max_attempts=None, give_up_after_s=86_400)
NEXT = Policy("company-queues-next")
RUNS = 5


@dataclass
class Place:
    database: Database
    feed: RingingFeed
    queue: PullQueue
    claims: list[Claim]
    owner: Any
    pass_on: Callable[[Claim], Awaitable[Claim]]
    """Gives the message to somebody else."""

    async def run(self, handler: Callable[[Work], Any]) -> list[Work | BaseException]:
        """All of them at once, in company, as a worker runs them."""
        company = Company(self.database)
        works = [
            Work(claim, self.queue, self.database, self.feed, Reader(self.database, company), company=company)
            for claim in self.claims
        ]
        ran = await asyncio.gather(
            *(_with_or_without_company(handler, work) for work in works), return_exceptions=True
        )  # fmt: skip
        return [work if error is None else error for work, error in zip(works, ran, strict=True)]

    async def written(self) -> list[int]:
        return [row["n"] for row in await self.owner.fetch("select n from business order by n")]

    async def logged(self) -> int:
        count: int = await self.owner.fetchval("select count(*) from payonce.job_logs where status = 'success'")
        return count


async def prepare(owner: Any) -> None:
    await owner.execute("create table business (n int); grant all on business to payonce_service")


def messages() -> list[Message]:
    return [Message(queue=DO.queue, payload={"number": number}) for number in range(RUNS)]


@asynccontextmanager
async def in_postgres(scratch: ScratchDatabase, _: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with open_stage(scratch) as s:
        await prepare(s.owner)
        await s.feed.declare([NEXT])
        queue = await s.queue(DO)
        await s.feed.put(messages())
        claims = list((await queue.exchange([], RUNS)).claims)

        async def pass_on(claim: Claim) -> Claim:
            await s.owner.execute("update payonce.messages set token = token + 1 where id = $1", claim.message.id)
            return structs.replace(claim, token=claim.token + 1)

        yield Place(s.database, s.feed, queue, claims, s.owner, pass_on)


@asynccontextmanager
async def in_redis(scratch: ScratchDatabase, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    server: RedisServer = request.getfixturevalue("redis_server")
    async with open_redis_backend(scratch, server, "transactional") as backend:
        owner, database = backend.stage.owner, backend.stage.database
        await prepare(owner)
        await backend.feed.declare([NEXT])
        queue = await backend.queue(DO)
        await backend.feed.put(messages())
        claims = list((await queue.exchange([], RUNS)).claims)

        async def pass_on(claim: Claim) -> Claim:
            others = [each for each in claims if each is not claim]
            await backend.time.advance_leases(DO.lease_s / 2)
            await queue.extend(others)
            await backend.time.advance_leases(DO.lease_s / 2 + 1)
            assert await queue.reap() == 1
            [taken_over] = (await queue.exchange([], 1)).claims
            return taken_over

        yield Place(database, backend.feed, queue, claims, owner, pass_on)


@asynccontextmanager
async def pushed(scratch: ScratchDatabase, _: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with open_stage(scratch) as s:
        await prepare(s.owner)
        await s.clock.freeze()
        async with open_runs(s, DO) as runs:
            await s.feed.declare([NEXT])
            ids = await runs.put(*({"number": number} for number in range(RUNS)))
            claims = [(await runs.begin(message_id))[0] for message_id in ids]

            async def pass_on(claim: Claim) -> Claim:
                await s.owner.execute("update payonce.outbox set holder = holder + 1 where id = $1", claim.message.id)
                return structs.replace(claim, token=claim.token + 1)

            yield Place(s.database, s.feed, runs.queue, claims, s.owner, pass_on)


KINDS = {"PostgreSQL": in_postgres, "Redis": in_redis, "pushed": pushed}


@pytest.fixture(params=KINDS)
def place(scratch: ScratchDatabase, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Place]:
    return KINDS[request.param](scratch, request)


async def write(work: Work) -> None:
    async with work.commit() as tx:
        await tx.execute("insert into business values ($1)", work.message.payload["number"])
        await tx.send(NEXT, {})


async def test_all_of_them_commit_at_once(place: Place) -> None:
    with counted() as count:
        works = await place.run(write)
    assert [getattr(work, "settled_as", work) for work in works] == [Ending.SUCCESS] * RUNS
    assert await place.written() == list(range(RUNS))
    assert await place.logged() == RUNS
    assert (count.committed, count.parted) == (1, 0)


async def test_one_that_fails_is_not_ended_and_the_others_are(place: Place) -> None:
    async def fails(work: Work) -> None:
        async with work.commit() as tx:
            await tx.execute("insert into business values ($1)", work.message.payload["number"])
            if work.message.payload["number"] == 2:
                raise ZeroDivisionError

    works = await place.run(fails)
    assert [type(work) for work in works].count(ZeroDivisionError) == 1
    assert await place.written() == [0, 1, 3, 4]
    assert await place.logged() == RUNS - 1


async def test_one_that_is_stale_writes_nothing_and_the_others_go_on(place: Place) -> None:
    stale = place.claims[3].message.payload["number"]
    await place.pass_on(place.claims[3])
    with counted() as count:
        works = await place.run(write)
    assert [type(work) for work in works].count(Stale) == 1
    assert isinstance(works[3], Stale)
    assert await place.written() == [number for number in range(RUNS) if number != stale]
    assert (count.committed, count.parted) == (1, 0)


async def test_of_two_runs_of_one_message_the_one_of_before_writes_nothing(place: Place) -> None:
    """A process that stood still may have both: the one whose lease ended, and the one that came after it."""
    place.claims.append(await place.pass_on(place.claims[3]))
    works = await place.run(write)
    assert isinstance(works[3], Stale)
    assert [type(work) for work in works].count(Stale) == 1
    assert await place.written() == list(range(RUNS))
    assert await place.logged() == RUNS
