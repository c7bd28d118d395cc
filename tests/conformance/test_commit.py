"""A handler's commit(): fence, business rows, next messages and acknowledgement together, or nothing."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import asyncpg
import pytest

from payonce.engine.database import commits
from payonce.engine.database.commits import TOKENS_KEPT_S, Session, forget_tokens, was_committed
from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import PlainConnection
from payonce.engine.messages.model import Claim, Ending, Message, Settlement
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.messages.work import Work
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Stale, Unavailable
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage, eventually
from tests.conformance.wire import on_the_wire
from tests.locks import apart, waits_or_ended

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
            stale = apart(commit_a_row(work))
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
    """The row is locked by the commit: the sweep skips it instead of giving it to a second worker."""
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


def session_of(connection: Any) -> Session:
    return Session(connection.backend_pid, connection.backend_started_at)


GONE: Final = Session(1, datetime(2000, 1, 1, tzinfo=UTC))


async def committed_token(s: Stage) -> UUID:
    async with s.database.transaction() as connection:
        await connection.execute("insert into payonce.inbox (consumer, id) values ('test', '1')")
    token: UUID = await s.owner.fetchval("select token from payonce.commits order by token desc limit 1")
    return token


async def test_the_fate_of_a_commit_is_told_by_its_token(stage: OpenStage) -> None:
    async with stage() as s:
        assert await was_committed(s.database, GONE, await committed_token(s))
        assert not await was_committed(s.database, GONE, new_id())


async def test_a_transaction_that_wrote_nothing_leaves_no_token(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.database.transaction() as connection:
            await connection.fetch("select * from payonce.messages")
        assert await s.owner.fetchval("select count(*) from payonce.commits") == 0


async def test_the_fate_of_a_commit_is_open_while_its_session_lives(stage: OpenStage) -> None:
    """It may still carry the COMMIT out: here it does, after the first look for its token."""
    async with stage() as s:
        token, pool = new_id(), s.database.work
        async with pool.acquire() as connection:
            await connection.execute("begin")
            await connection.execute(f"insert into payonce.commits (token) values ('{token}')")
            with unkillable():
                looking = asyncio.create_task(was_committed(s.database, session_of(connection), token))
                await asyncio.wait([looking], timeout=0.3)
                assert not looking.done()
                await connection.execute("commit")
        await pool.expire_connections()
        async with pool.acquire():
            pass
        assert await asyncio.wait_for(looking, 30)


@contextmanager
def unkillable() -> Iterator[None]:
    """As for a role that may not terminate the session."""
    with on_the_wire(lambda sql: sql.replace("select pg_terminate_backend($1)", "select $1::int")):
        yield


async def test_a_session_that_does_not_end_is_ended(stage: OpenStage) -> None:
    """It lost its client, and holds locks until a time-out ends it."""
    async with stage() as s:
        token = new_id()
        lost = await s.database.connect()
        await lost.execute("begin")
        await lost.execute(f"insert into payonce.commits (token) values ('{token}')")
        assert not await asyncio.wait_for(was_committed(s.database, session_of(lost), token), 30)
        lost.terminate()


async def test_the_fate_of_a_commit_is_open_while_the_server_is_a_standby(stage: OpenStage) -> None:
    """A standby may lack a COMMIT that it has not replayed yet."""
    async with stage() as s:
        token = await committed_token(s)
        await s.owner.execute("update payonce.commits set token = gen_random_uuid()")
        with on_the_wire(lambda sql: sql.replace("pg_is_in_recovery()", "true")):
            looking = asyncio.create_task(was_committed(s.database, GONE, token))
            await asyncio.wait([looking], timeout=0.3)
            assert not looking.done()
            await s.owner.execute("update payonce.commits set token = $1", token)
        assert await asyncio.wait_for(looking, 30)


async def test_the_fate_of_a_commit_is_looked_for_until_the_server_answers(stage: OpenStage) -> None:
    """The answer to COMMIT is mostly lost when the server restarts, and then the server is away for a while."""
    async with stage() as s:
        token = await committed_token(s)
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections false", database="postgres")
        looking = asyncio.create_task(was_committed(s.database, GONE, token))
        await asyncio.wait([looking], timeout=0.3)
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections true", database="postgres")
        assert await asyncio.wait_for(looking, 30)


async def test_a_fate_that_cannot_be_found_out_is_no_fate(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        monkeypatch.setattr(commits, "FATE_LIMIT_S", 0.3)
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections false", database="postgres")
        with pytest.raises(Unavailable, match="its outcome could not be determined"):
            await was_committed(s.database, GONE, new_id())
        await as_superuser(s, f"alter database {s.scratch.name} allow_connections true", database="postgres")


async def test_old_tokens_are_forgotten(stage: OpenStage) -> None:
    async with stage() as s:
        await committed_token(s)
        assert await forget_tokens(s.database) == 0
        await s.clock.advance_leases(TOKENS_KEPT_S + 1)
        assert await forget_tokens(s.database) == 1
        assert await s.owner.fetchval("select count(*) from payonce.commits") == 0


async def test_a_process_that_stands_still_inside_a_commit_does_not_hold_up_take_over(stage: OpenStage) -> None:
    # Half of it is the longest stall, also between the statements with which a commit begins.
    short = Policy("pay", lease_s=3)
    async with stage() as s, Database.open(s.scratch.service_url, shortest_lease_s=short.lease_s) as still:
        queue = await s.queue(short)
        await s.feed.put([Message(queue="pay")])
        [claim] = (await queue.exchange([], 1)).claims
        work = Work(claim, queue, still, s.feed, Reader(still))
        successors: list[Claim] = []

        async def take_over() -> bool:
            await queue.reap()
            successors.extend((await queue.exchange([], 1)).claims)
            return bool(successors)

        async def stand_still() -> None:
            async with work.commit() as tx:
                await tx.execute("select")
                await s.clock.advance_leases(short.lease_s + 1)
                try:
                    await eventually(take_over, within_s=30)
                except asyncpg.PostgresError as error:
                    raise AssertionError("the stopped process held up its successor") from error

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
        async with (
            Database.open(s.scratch.service_url, connection_class=losing(answer_lost)) as lossy,
            lossy.transaction() as connection,
        ):
            await connection.execute("insert into business values ('b-1')")
        assert await s.owner.fetchval("select count(*) from business") == 1


def losing(error: type[Exception]) -> type[PlainConnection]:
    """A connection to a real server on which the answer to COMMIT is lost."""

    class LossyConnection(PlainConnection):
        async def execute(self, query: str, *args: Any, **options: Any) -> str:
            tag = await super().execute(query, *args, **options)
            if query == "COMMIT;":
                raise error
            return tag

    return LossyConnection


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
