"""Statements sent ahead of the next one: a commit costs two round trips, and its fence holds nevertheless."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from io import BytesIO
from typing import Any, ClassVar

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import PlainConnection, plain
from payonce.engine.messages.model import Claim, Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Stale
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage

PAY = Policy("pay", lease_s=30)


async def work_on(s: Stage) -> tuple[PostgresQueue, Work, Claim]:
    await s.owner.execute("create table business (id int unique, note text); grant all on business to payonce_service")
    queue = await s.queue(PAY)
    await s.feed.put([Message(queue="pay")])
    [claim] = (await queue.exchange([], 1)).claims
    return queue, Work(claim, queue, s.database, s.feed, Reader(s.database)), claim


async def left(s: Stage) -> tuple[int, int]:
    """Business rows, and messages."""
    return (
        await s.owner.fetchval("select count(*) from business"),
        await s.owner.fetchval("select count(*) from payonce.messages"),
    )


async def take_over(s: Stage, queue: PostgresQueue) -> None:
    await s.clock.advance_leases(PAY.lease_s + 1)
    assert await queue.reap() == 1


async def round_trips(s: Stage, act: Callable[[Tx], Awaitable[object]]) -> int:
    """Round trips of a commit with these statements, once all of them are prepared."""
    queue = await s.queue(PAY)
    counts = []
    for _ in range(2):
        await s.feed.put([Message(queue="pay")])
        [claim] = (await queue.exchange([], 1)).claims
        work = Work(claim, queue, s.database, s.feed, Reader(s.database))
        before = await sent(s.database.handlers)
        async with work.commit() as tx:
            await act(tx)
        counts.append(await sent(s.database.handlers) - before)
    return counts[-1]


async def sent(pool: asyncpg.Pool) -> int:
    """Requests sent so far by the connection that the next transaction takes, BEGIN and COMMIT included."""
    async with pool.acquire() as connection:
        inner: Any = plain(connection)
        return int(inner._protocol.queries_count)


async def test_a_commit_takes_one_round_trip_and_one_for_each_statement(stage: OpenStage) -> None:
    async def nothing(tx: Tx) -> None:
        pass

    async def one_row(tx: Tx) -> None:
        await tx.execute("insert into business values (null, $1)", "it's one \\ two — ✓")

    async def two(tx: Tx) -> None:
        await tx.fetchval("select count(*) from business")
        await one_row(tx)

    async with stage() as s:
        await work_on(s)
        assert [await round_trips(s, act) for act in (nothing, one_row, two)] == [1, 2, 3]


async def test_a_request_takes_one_round_trip_and_one_for_each_statement(stage: OpenStage) -> None:
    async with stage() as s:
        for _ in range(2):
            before = await sent(s.database.work)
            async with begin(s.database, s.feed) as tx:
                await tx.fetchval("select $1::int", 1)
        assert await sent(s.database.work) - before == 2


class Stopped(PlainConnection):
    """Its COMMIT is not sent before the session was inspected."""

    look: ClassVar[Callable[[int], Awaitable[None]]]

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        if query == "COMMIT;":
            await Stopped.look(self.backend_pid)
        return await super().execute(query, *args, **options)


async def test_a_client_that_stops_before_its_first_commit_is_idle_to_the_server(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its locks would be kept for as long as it stalls."""
    seen: list[str] = []

    async def look(pid: int) -> None:
        seen.append(await s.database.engine.fetchval("select state from pg_stat_activity where pid = $1", pid))

    monkeypatch.setattr(Stopped, "look", look, raising=False)
    async with stage() as s, Database.open(s.scratch.service_url, connection_class=Stopped) as opened:
        async with opened.transaction() as connection:
            await connection.execute("select $1::int", 1)
        async with begin(opened, s.feed) as tx:
            await tx.execute("select")
    assert seen == ["idle in transaction"] * 2


async def test_a_stale_run_hears_so_with_its_first_statement_which_is_not_executed(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, claim = await work_on(s)
        await take_over(s, queue)
        with pytest.raises(Stale, match=f"message {claim.message.id} of pay is no longer"):
            async with work.commit() as tx:
                await tx.execute("insert into business values (1, null)")
        assert await left(s) == (0, 1)
        assert await s.owner.fetchval("select count(*) from payonce.commits") == 0


async def test_a_stale_run_without_a_statement_hears_so_with_its_commit(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, _ = await work_on(s)
        await take_over(s, queue)
        with pytest.raises(Stale):
            async with work.commit():
                pass
        assert work.settlement is None
        assert await left(s) == (0, 1)


async def test_a_stale_run_that_swallows_the_error_writes_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, _ = await work_on(s)
        await take_over(s, queue)

        async def swallow() -> None:
            async with work.commit() as tx:
                with suppress(Stale):
                    await tx.execute("insert into business values ($1, null)", 1)

        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await swallow()
        assert await left(s) == (0, 1)


async def test_a_handler_that_fails_before_its_first_statement_sends_nothing(stage: OpenStage) -> None:
    async with stage() as s:
        queue, work, claim = await work_on(s)
        with pytest.raises(ZeroDivisionError):
            async with work.commit():
                1 / 0  # noqa: B018 - what is asked for
        async with s.database.handlers.acquire() as same:
            assert not same.is_in_transaction()
        assert await left(s) == (0, 1)
        assert await queue.extend([claim]) == []


@pytest.mark.parametrize("stale", [False, True])
async def test_values_that_the_driver_refuses_leave_nothing_behind(stage: OpenStage, stale: bool) -> None:
    """BEGIN and the fence are on their way by then, and nobody reads their answers."""
    async with stage() as s:
        queue, work, claim = await work_on(s)
        if stale:
            await take_over(s, queue)
        with pytest.raises(asyncpg.DataError):
            async with asyncio.timeout(5) as limit, work.commit() as tx:
                await tx.execute("insert into business values ($1, null)", "no number")
        assert not limit.expired()
        assert await left(s) == (0, 1)
        assert len(await queue.extend([claim])) == stale
        [again] = (await queue.exchange([], 1)).claims if stale else [claim]
        async with Work(again, queue, s.database, s.feed, Reader(s.database)).commit() as tx:
            await tx.execute("insert into business values ($1, null)", 1)
        assert await left(s) == (1, 0)


@pytest.mark.parametrize("sent", [False, True])
async def test_a_connection_that_is_closed_inside_a_commit_is_a_lost_connection(stage: OpenStage, sent: bool) -> None:
    """Before its first statement, or after one."""
    async with stage() as s:
        _, work, _ = await work_on(s)

        async def lose_connection() -> None:
            async with work.commit() as tx:
                if sent:
                    await tx.execute("insert into business values ($1, null)", 1)
                plain(tx.connection).terminate()

        with pytest.raises(asyncpg.InterfaceError):
            await lose_connection()
        assert await left(s) == (0, 1)


async def test_a_connection_that_is_closed_during_a_statement_raises_the_drivers_error(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, _ = await work_on(s)

        async def lose_connection() -> None:
            async with work.commit() as tx:
                asyncio.get_running_loop().call_later(0.2, plain(tx.connection).terminate)
                await tx.fetchval("select pg_sleep($1)", 30)

        with pytest.raises(asyncpg.PostgresConnectionError):
            await lose_connection()
        assert await left(s) == (0, 1)


async def _text(connection: Any) -> None:
    await connection.execute("insert into business values (1, null); insert into business values (2, null)")


async def _many(connection: Any) -> None:
    await connection.executemany("insert into business values ($1, null)", [(1,), (2,)])


async def _copy_in(connection: Any) -> None:
    await connection.copy_to_table("business", source=BytesIO(b"1\t\\N\n2\t\\N\n"))


async def _copy_out(connection: Any) -> None:
    async def drop(data: bytes) -> None:
        pass

    await connection.copy_from_query("insert into business values (1, null), (2, null) returning id", output=drop)


async def _prepared(connection: Any) -> None:
    statement = await connection.prepare("insert into business values ($1, null)")
    await statement.fetch(1)
    await statement.fetch(2)


async def _cursor(connection: Any) -> None:
    async for _ in connection.cursor("insert into business values (1, null), (2, null) returning id"):
        pass


async def _savepoint(connection: Any) -> None:
    async with connection.transaction():
        await _many(connection)


WAYS = [_text, _many, _copy_in, _copy_out, _prepared, _cursor, _savepoint]
"""The order in which statements reach the server. Each writes two rows."""


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("ends", ["kept", "undone", "stale"])
async def test_whatever_comes_first_is_part_of_the_transaction(
    stage: OpenStage, first: Callable[[Any], Awaitable[None]], ends: str
) -> None:
    async with stage() as s:
        queue, work, _ = await work_on(s)
        if ends == "stale":
            await take_over(s, queue)

        async def run() -> None:
            async with work.commit() as tx:
                await first(tx.connection)
                if ends == "undone":
                    raise ZeroDivisionError

        if ends == "kept":
            await run()
            assert await left(s) == (2, 0)
            return
        with pytest.raises(Stale if ends == "stale" else ZeroDivisionError):
            await run()
        assert await left(s) == (0, 1)


async def test_an_error_of_the_first_statement_is_its_own_and_undoes_the_fence(stage: OpenStage) -> None:
    async with stage() as s:
        _, work, _ = await work_on(s)
        await s.owner.execute("insert into business values (1, null)")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with work.commit() as tx:
                await tx.execute("insert into business values ($1, null)", 1)
        assert await left(s) == (1, 1)


async def test_a_session_that_lost_its_statements_prepares_them_again(stage: OpenStage) -> None:
    async with stage() as s:
        await s.owner.execute("create table business (id int, note text); grant all on business to payonce_service")
        connection = await s.database.connect()
        try:
            await connection.send_ahead("insert into business values ($1, null)", 1)
            await connection.execute("deallocate all")
            await connection.send_ahead("insert into business values ($1, null)", 2)
            with pytest.raises(asyncpg.InvalidSQLStatementNameError):
                await connection.fetch("select")
            await connection.reload_schema_state()
            await connection.send_ahead("insert into business values ($1, null)", 3)
            await connection.fetch("select")
        finally:
            await connection.close()
        assert [row["id"] for row in await s.owner.fetch("select id from business order by id")] == [1, 3]


@pytest.mark.parametrize("value", ["", "it's", 'a "b" \\ c', "$1; drop table business; --", "é ✓ 漢 😀", "x" * 70_000])
async def test_values_that_go_ahead_arrive_as_they_are(stage: OpenStage, value: str) -> None:
    async with stage() as s:
        await work_on(s)
        connection: PlainConnection = await s.database.connect()
        try:
            async with connection.transaction():
                await connection.send_ahead("insert into business values ($1, $2), ($3, null)", None, value, -5)
                assert await connection.fetchval("select note from business where id is null") == value
                assert await connection.fetchval("select id from business where note is null") == -5
        finally:
            await connection.close()
