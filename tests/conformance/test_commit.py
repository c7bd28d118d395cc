"""A handler's commit(): fence, business rows, next messages and acknowledgement in one, or none of it."""

import asyncio

import asyncpg
import pytest

from payonce.engine.database import Database, committed, settled_transaction
from payonce.engine.model import Claim, Ending, Message, Settlement
from payonce.engine.policy import Policy
from payonce.engine.transaction import Reader, begin
from payonce.engine.work import Work
from payonce.kit.outcomes import Stale
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waits_or_ended

PAY = Policy("pay", lease_s=30)
SHIP = Policy("ship")


async def work_on(s: Stage) -> tuple[PostgresQueue, Work, Claim]:
    """A claimed message, as its handler sees it, and a business table."""
    await s.owner.execute("create table business (id text); grant all on business to payonce_service")
    queue = await s.queue(PAY)
    await s.feed.declare([SHIP])
    await s.feed.put([Message(queue="pay", trace_id="t-1")])
    [claim] = (await queue.exchange([], 1)).claims
    return queue, Work(claim, queue, s.database, s.feed, Reader(s.database)), claim


async def take_over(s: Stage, queue: PostgresQueue) -> Claim:
    await s.clock.advance_leases(PAY.lease_s + 1)
    assert await queue.reap() == 1
    [successor] = (await queue.exchange([], 1)).claims
    return successor


async def written(s: Stage) -> tuple[int, int, int]:
    """Business rows, messages to pay, messages to ship."""
    return (
        await s.owner.fetchval("select count(*) from business"),
        await s.owner.fetchval("select count(*) from payonce.messages where queue = 'pay'"),
        await s.owner.fetchval("select count(*) from payonce.messages where queue = 'ship'"),
    )


async def test_a_commit_writes_everything_and_settles(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, claim = await work_on(s)
        async with work.commit() as tx:
            await tx.execute("insert into business values ('b-1')")
            await tx.send(SHIP, {"id": "b-1"}, key="ship:b-1")
        assert await written(s) == (1, 0, 1)
        assert work.settled_as is Ending.SUCCESS
        assert await s.owner.fetchval("select trace_id from payonce.messages") == "t-1"
        log = await s.owner.fetch("select status, message_id from payonce.job_logs")
        assert list(map(tuple, log)) == [("success", claim.message.id)]


async def test_a_rejection_settles_as_failed_with_its_reason(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, _ = await work_on(s)
        async with work.commit(rejected="card declined") as tx:
            await tx.execute("insert into business values ('b-1')")
        assert await written(s) == (1, 0, 0)
        log = await s.owner.fetch("select status, last_error from payonce.job_logs")
        assert list(map(tuple, log)) == [("failed", "card declined")]


async def commit_a_row(work: Work, failing: type[Exception] | None = None) -> None:
    async with work.commit() as tx:
        await tx.execute("insert into business values ('b-1')")
        await tx.send(SHIP, {})
        if failing is not None:
            raise failing


async def test_a_stale_commit_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, _ = await work_on(s)
        await take_over(s, queue)
        with pytest.raises(Stale):
            await commit_a_row(work)
        assert await written(s) == (0, 1, 0)
        assert work.settled_as is None


async def test_of_two_runs_of_one_message_one_commits(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, _ = await work_on(s)
        successor = Work(await take_over(s, queue), queue, s.database, s.feed, Reader(s.database))
        async with successor.commit() as tx:
            await tx.execute("insert into business values ('b-1')")
            stale = asyncio.create_task(commit_a_row(work))
            waits = await waits_or_ended(s, stale)
        [ended] = await asyncio.gather(stale, return_exceptions=True)
        assert isinstance(ended, Stale)
        assert not waits, "what became of the successor's commit is nothing to a run that lost its claim"
        assert await written(s) == (1, 0, 0)


async def test_a_failing_handler_leaves_the_message_and_nothing_else(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, claim = await work_on(s)
        with pytest.raises(ZeroDivisionError):
            await commit_a_row(work, ZeroDivisionError)
        assert await written(s) == (0, 1, 0)
        answers = (await queue.exchange([Settlement(claim, Ending.RETRY, "again")], 0)).answers
        assert answers == ["settled"], "the failed commit must not have lost the claim"


async def test_a_second_commit_in_one_run_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, _ = await work_on(s)
        await commit_a_row(work)
        with pytest.raises(RuntimeError, match="already"):
            await commit_a_row(work)
        assert await written(s) == (1, 0, 1)


async def test_take_over_waits_for_an_open_commit(stage: OpenStage) -> None:
    """The row is locked by the commit: the sweep passes it by instead of giving it to a second worker."""
    async with stage() as s:
        queue, work, _ = await work_on(s)
        async with work.commit() as tx:
            await tx.execute("insert into business values ('b-1')")
            await s.clock.advance_leases(PAY.lease_s + 1)
            assert await queue.reap() == 0
        assert await written(s) == (1, 0, 0)


async def test_a_connection_lost_before_commit_writes_nothing_and_is_told(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, _ = await work_on(s)

        async def lose_the_connection() -> None:
            async with work.commit() as tx:
                await tx.execute("insert into business values ('b-1')")
                pid = await tx.fetchval("select pg_backend_pid()")
                await as_superuser(s, f"select pg_terminate_backend({pid})")
                await eventually(tx.connection.is_closed)

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await lose_the_connection()
        assert await written(s) == (0, 1, 0)


async def test_the_server_knows_how_a_transaction_ended(stage: OpenStage) -> None:
    async with stage() as s:
        xids = {}
        for ending in ("commit", "rollback"):
            async with s.database.work.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                xids[ending] = await connection.fetchval("select pg_current_xact_id()::text")
                await getattr(transaction, ending)()
        assert await committed(s.database, xids["commit"])
        assert not await committed(s.database, xids["rollback"])
        assert await committed(s.database, None), "a transaction that wrote nothing has lost nothing"


async def test_the_question_waits_for_a_transaction_that_is_still_open(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.owner.transaction():
            xid = await s.owner.fetchval("select pg_current_xact_id()::text")
            question = asyncio.create_task(committed(s.database, xid))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(question), 0.2)
        assert await asyncio.wait_for(question, 30)


async def test_the_question_is_asked_until_the_server_takes_it(stage: OpenStage) -> None:
    """The answer to COMMIT is lost above all when the server restarts, and then it is away for a while."""
    async with stage() as s:
        async with s.owner.transaction():
            xid = await s.owner.fetchval("select pg_current_xact_id()::text")
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections false", database="postgres")
        question = asyncio.create_task(committed(s.database, xid))
        await asyncio.wait([question], timeout=0.3)
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections true", database="postgres")
        assert await asyncio.wait_for(question, 30)


async def test_a_process_that_stands_still_inside_a_commit_does_not_hold_up_take_over(stage: OpenStage) -> None:
    # Half of it is how long it may stand still: also between the statements with which a commit begins.
    short = Policy("pay", lease_s=3)
    async with stage() as s, Database.open(s.scratch.service_url, shortest_lease_s=short.lease_s) as still:
        queue = await s.queue(short)
        await s.feed.put([Message(queue="pay")])
        [claim] = (await queue.exchange([], 1)).claims
        work = Work(claim, queue, still, s.feed, Reader(still))
        successors: list[Claim] = []

        async def stand_still() -> None:
            async with work.commit():
                await s.clock.advance_leases(short.lease_s + 1)
                await eventually(queue.reap, within_s=30, what="take-over")
                successors.extend((await queue.exchange([], 1)).claims)

        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await stand_still()
        [successor] = successors
        assert successor.message.id == claim.message.id
        assert (await queue.exchange([Settlement(successor, Ending.SUCCESS)], 0)).answers == ["settled"]


@pytest.mark.parametrize("answer_lost", [asyncpg.ConnectionDoesNotExistError, ConnectionResetError, TimeoutError])
async def test_a_commit_whose_answer_was_lost_counts_as_committed(
    stage: OpenStage, answer_lost: type[Exception]
) -> None:
    async with stage() as s:
        await s.owner.execute("create table business (id text); grant all on business to payonce_service")
        async with s.database.work.acquire() as connection:
            lossy = LossyConnection(connection, answer_lost)
            async with settled_transaction(s.database, lossy):  # type: ignore[arg-type]
                await connection.execute("insert into business values ('b-1')")
        assert await s.owner.fetchval("select count(*) from business") == 1


class LossyConnection:
    """The wire to a real server on which the answer to COMMIT is lost."""

    def __init__(self, connection: "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]", loss: type[Exception]) -> None:
        self._connection = connection
        self._loss = loss
        self.fetchval = connection.fetchval

    def transaction(self) -> "LossyConnection":
        self._transaction = self._connection.transaction()
        return self

    async def start(self) -> None:
        await self._transaction.start()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def commit(self) -> None:
        await self._transaction.commit()
        raise self._loss


async def test_messages_of_a_request_exist_if_and_only_if_it_commits(stage: OpenStage) -> None:
    async with stage() as s:
        await work_on(s)

        async def request(*, fail: bool) -> None:
            async with begin(s.database, s.feed, "t-9") as tx:
                await tx.send(SHIP, {}, key="ship:1")
                if fail:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await request(fail=True)
        assert (await written(s))[2] == 0
        await request(fail=False)
        await request(fail=False)
        assert (await written(s))[2] == 1


async def as_superuser(s: Stage, statement: str, database: str | None = None) -> None:
    connection = await asyncpg.connect(s.scratch.superuser_url, database=database or s.scratch.name)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
