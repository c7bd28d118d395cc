"""First statements that fail, are abandoned or are not sent: nothing is written without BEGIN and the fence, and no
rollback is reported as a commit."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import PlainConnection, plain
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Stale
from payonce.testing import OpenStage
from tests.engine.test_pipelining import WAYS, left, take_over, work_on


async def _failing_read(work: Work, tx: Tx) -> None:
    await work.read.fetchval("select 1 / (select count(*) from business where id < 0)")


async def _failing_statement(work: Work, tx: Tx) -> None:
    await tx.connection.execute("insert into business values ($1, null)", 1)


async def _cancelled_statement(work: Work, tx: Tx) -> None:
    async with asyncio.timeout(0.05):
        await tx.fetchval("select pg_sleep($1)", 30)


async def _no_such_table(work: Work, tx: Tx) -> None:
    await tx.execute("insert into no_such_table values ($1)", 1)


async def _waits_to_be_prepared(work: Work, tx: Tx) -> None:
    async with asyncio.timeout(0.05):
        await tx.execute("insert into locked values ($1)", 1)


@pytest.mark.parametrize(
    "fails", [_failing_read, _failing_statement, _cancelled_statement, _no_such_table, _waits_to_be_prepared]
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
async def test_nothing_is_settled_after_a_failure_that_was_swallowed(
    stage: OpenStage, fails: Callable[[Work, Tx], Awaitable[None]], first: bool
) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with a silent ROLLBACK."""
    async with stage() as s:
        queue, work, claim = await work_on(s)
        await s.owner.execute(
            """
            insert into business values (1, null);
            create table locked (id int);
            grant all on locked to payonce_service
            """
        )
        await s.owner.execute("begin; lock table locked")

        async def swallow() -> None:
            async with work.commit() as tx:
                if not first:
                    await tx.execute("insert into business values ($1, null)", 2)
                with suppress(asyncpg.PostgresError, TimeoutError):
                    await fails(work, tx)

        # A session is closed if its first statement was abandoned before BEGIN was sent.
        with pytest.raises((asyncpg.InFailedSQLTransactionError, asyncpg.InterfaceError)):
            await swallow()
        assert work.settlement is None
        assert await s.database.work.fetchval("select count(*) from business where id <> 1") == 0
        assert await queue.extend([claim]) == []


async def test_a_first_statement_that_outlives_its_transaction_is_not_executed(stage: OpenStage) -> None:
    """Two at once are refused with the second, while the first one is still being prepared."""
    async with stage() as s:
        _, work, _ = await work_on(s)

        async def both_at_once() -> None:
            async with work.commit() as tx:
                left_behind.append(asyncio.create_task(tx.execute("insert into business values ($1, null)", 1)))
                await asyncio.sleep(0)
                await tx.execute("insert into business values ($1, null)", 2)

        left_behind: list[asyncio.Task[str]] = []
        with pytest.raises(asyncpg.InterfaceError, match="another operation is in progress"):
            await both_at_once()
        await asyncio.wait(left_behind)
        assert await left(s) == (0, 1)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("rows", [[], [("no number",)], [(1,), ("no number",)]], ids=["none", "refused", "half"])
async def test_rows_that_the_driver_does_not_send_are_no_end_of_the_transaction(
    stage: OpenStage, rows: list[tuple[object]], stale: bool
) -> None:
    """For no rows it sends nothing, and for refused values a ROLLBACK: the rest would run without BEGIN and fence."""
    async with stage() as s:
        queue, work, _ = await work_on(s)
        if stale:
            await take_over(s, queue)

        async def run() -> None:
            async with asyncio.timeout(5), work.commit() as tx:
                with suppress(asyncpg.DataError):
                    await tx.connection.executemany("insert into business values ($1, null)", rows)
                await tx.execute("insert into business values ($1, null)", 3)

        if stale:
            with pytest.raises(Stale):
                await run()
            assert await left(s) == (0, 1)
            return
        await run()
        assert await left(s) == (1, 0)


INSERT = "insert into business values ($1, null)"


async def _fail(tx: Tx) -> None:
    """With the error of BEGIN, whose statement the server has lost."""
    with suppress(asyncpg.InvalidSQLStatementNameError):
        await tx.execute(INSERT, 2)


async def _give_up(tx: Tx) -> None:
    """Before the server's answer can be read."""
    statement = asyncio.create_task(tx.execute(INSERT, 2))
    await asyncio.sleep(0)
    statement.cancel()
    with suppress(asyncio.CancelledError):
        await statement


async def _nothing(connection: Any) -> None:
    pass


async def lose_begin(pool: asyncpg.Pool) -> None:
    """In the session that the next transaction takes, so that the server refuses BEGIN."""
    async with pool.acquire() as connection:
        name = await plain(connection).prepare_ahead("begin")
        await connection.execute(f"deallocate {name.decode()}")


@pytest.mark.parametrize("first", [_fail, _give_up])
@pytest.mark.parametrize("then", [_nothing, *WAYS])
async def test_nothing_is_written_in_a_run_whose_begin_failed(
    stage: OpenStage, first: Callable[[Tx], Awaitable[None]], then: Callable[[Any], Awaitable[None]]
) -> None:
    """The server is idle after that, and would execute every statement by itself."""
    async with stage() as s:
        queue, work, claim = await work_on(s)
        with suppress(ZeroDivisionError):
            async with work.commit() as tx:
                await tx.execute(INSERT, 1)
                raise ZeroDivisionError
        await lose_begin(s.database.handlers)

        async def swallow() -> None:
            async with work.commit() as tx:
                await first(tx)
                await then(tx.connection)

        with pytest.raises(asyncpg.InterfaceError):
            await swallow()
        assert work.settlement is None
        assert await left(s) == (0, 1)
        async with Work(claim, queue, s.database, s.feed, Reader(s.database)).commit() as tx:
            await tx.execute(INSERT, 1)
        assert await left(s) == (1, 0)


@pytest.mark.parametrize("first", [_fail, _give_up])
@pytest.mark.parametrize("then", [_nothing, *WAYS])
async def test_nothing_is_written_in_a_request_whose_begin_failed(
    stage: OpenStage, first: Callable[[Tx], Awaitable[None]], then: Callable[[Any], Awaitable[None]]
) -> None:
    async with stage() as s:
        await work_on(s)

        async def swallow() -> None:
            async with begin(s.database, s.feed) as tx:
                await first(tx)
                await then(tx.connection)

        async with begin(s.database, s.feed) as tx:
            await tx.execute(INSERT, 1)
        await lose_begin(s.database.work)
        with pytest.raises(asyncpg.InterfaceError):
            await swallow()
        assert await left(s) == (1, 1)
        async with begin(s.database, s.feed) as tx:
            await tx.execute(INSERT, 2)
        assert await left(s) == (2, 1)


async def test_a_run_whose_session_lost_all_its_statements_is_tried_again(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, claim = await work_on(s)
        with suppress(ZeroDivisionError):
            async with work.commit() as tx:
                await tx.execute(INSERT, 1)
                raise ZeroDivisionError
        async with s.database.handlers.acquire() as connection:
            await connection.execute("deallocate all")

        async def swallow() -> None:
            async with work.commit() as tx:
                await _fail(tx)
                await tx.execute("insert into business values (3, null)")

        with pytest.raises(asyncpg.InterfaceError, match="the transaction did not begin"):
            await swallow()
        assert await left(s) == (0, 1)
        async with Work(claim, queue, s.database, s.feed, Reader(s.database)).commit() as tx:
            await tx.execute(INSERT, 1)
        assert await left(s) == (1, 0)


async def test_a_failed_begin_that_is_not_swallowed_is_the_drivers_error_and_ends_no_session(stage: OpenStage) -> None:
    async with stage() as s:
        await work_on(s)
        async with begin(s.database, s.feed) as tx:
            pid = await tx.fetchval("select pg_backend_pid()")
        await lose_begin(s.database.work)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            async with begin(s.database, s.feed) as tx:
                await tx.execute(INSERT, 1)
        async with begin(s.database, s.feed) as tx:
            assert await tx.fetchval("select pg_backend_pid()") == pid
            await tx.execute(INSERT, 1)
        assert await left(s) == (1, 1)


async def test_a_request_whose_second_statement_was_cancelled_hears_so_with_its_commit(stage: OpenStage) -> None:
    """Its COMMIT waits for the end of that statement before anything is sent ahead."""
    async with stage() as s:
        await work_on(s)

        async def swallow() -> None:
            async with begin(s.database, s.feed) as tx:
                await tx.execute(INSERT, 1)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await tx.fetchval("select pg_sleep($1)", 30)

        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await swallow()
        assert await left(s) == (0, 1)


async def test_a_request_that_may_not_write_fails_at_its_commit(stage: OpenStage) -> None:
    """Also one that only reads, as docs/database.md says."""
    async with stage() as s:
        read = []

        async def only_read() -> None:
            async with begin(s.database, s.feed) as tx:
                await tx.execute("set transaction read only")
                read.append(await tx.fetchval("select 1"))

        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await only_read()
        assert read == [1]


class Lost(PlainConnection):
    """Interrupts between the preparation of a statement and its execution."""

    async def _get_statement(self, query: str, *args: Any, **options: Any) -> Any:
        statement = await super()._get_statement(query, *args, **options)
        if query == INSERT:
            self.terminate()
        return statement


async def test_a_connection_lost_before_the_first_statement_is_sent_raises_the_drivers_error(stage: OpenStage) -> None:
    async with stage() as s, Database.open(s.scratch.service_url, connection_class=Lost) as opened:
        await work_on(s)
        with pytest.raises(asyncpg.InterfaceError, match="connection is closed"):
            async with begin(opened, s.feed) as tx:
                await tx.execute(INSERT, 1)
        assert await left(s) == (0, 1)


async def test_a_first_statement_with_a_stale_plan_fails_with_its_run_and_not_with_the_next(stage: OpenStage) -> None:
    """The driver prepares it again, but does not repeat it inside a transaction."""
    async with stage() as s:
        queue, work, claim = await work_on(s)

        async def read(again: Work) -> None:
            async with again.commit() as tx:
                await tx.fetch("select * from business where id = $1", 1)
                await tx.execute(INSERT, 1)
                if again is work:
                    raise ZeroDivisionError

        def another() -> Work:
            return Work(claim, queue, s.database, s.feed, Reader(s.database))

        with pytest.raises(ZeroDivisionError):
            await read(work)
        await s.owner.execute("alter table business add column more int")
        with pytest.raises(asyncpg.InvalidCachedStatementError):
            await read(another())
        assert await left(s) == (0, 1)
        await read(another())
        assert await left(s) == (1, 0)
