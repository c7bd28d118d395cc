"""A transaction that several runs share: all of it or nothing, and nobody is misled by the others."""

import asyncio
from typing import Any

import pytest

from payonce.engine.company.apart import Apart
from payonce.engine.company.sharing import MOST, Member
from payonce.engine.database import Connection
from payonce.kit.outcomes import Invalid, Refused, Retry
from payonce.testing import OpenStage, eventually
from tests.conformance.wire import on_the_wire
from tests.engine.company.company_stage import (
    LOCKED,
    WRITE,
    counted,
    end_session,
    let_in,
    notes,
    noting,
    open_table,
    parted,
    session_of,
    turned_away,
)

ERRORS: list[Exception] = [Retry("later"), Refused("no"), Invalid("what"), RuntimeError("oh"), ZeroDivisionError()]


def raising(error: BaseException, text: str | None = None) -> Any:
    async def fail(connection: Connection) -> None:
        if text is not None:
            await noting(text)(connection)
        raise error

    return fail


async def test_many_are_one_transaction_and_one_trip_for_each_statement(stage: OpenStage) -> None:
    sent: list[str] = []
    async with open_table(stage) as table:

        async def which(connection: Connection) -> str:
            await noting(f"{id(connection)}")(connection)
            xact: str = await connection.fetchval("select pg_current_xact_id()::text")
            return xact

        with on_the_wire(lambda statement: sent.append(statement) or statement), counted() as count:  # type: ignore[func-returns-value]
            ids = await table.together(*[which] * 9)
        assert len(set(ids)) == 1
        assert len(await notes(table.s)) == 9
    assert len([each for each in sent if "notes" in each]) == 1
    assert len([each for each in sent if "COMMIT" in each]) == 1
    assert (count.committed, count.parted) == (1, 0)


async def test_more_than_fit_into_one_make_up_the_next(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        with counted() as count:
            done = await table.together(*[noting(f"{number:03}") for number in range(MOST + 2)])
        assert await notes(table.s) == done
    assert (count.committed, count.parted) == (2, 0)


async def test_nobody_returns_before_the_commit(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        there, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(connection: Connection) -> None:
            await noting("slow")(connection)
            there.set()
            await goes_on.wait()

        quick = asyncio.create_task(table.one(0, noting("quick")))
        others = asyncio.create_task(table.one(1, slow))
        await there.wait()
        await asyncio.wait([quick], timeout=0.1)
        assert not quick.done()
        assert await notes(table.s) == []
        goes_on.set()
        await asyncio.gather(quick, others)
        assert await notes(table.s) == ["quick", "slow"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_one_that_raises_undoes_all_and_each_does_it_alone(stage: OpenStage, error: Exception) -> None:
    async with open_table(stage) as table:
        came_to = await table.together(noting("a"), raising(error, "b"), noting("c"))
        assert await notes(table.s) == ["a", "c"]
    assert came_to == ["a", error, "c"]
    assert sorted(table.alone) == [0, 1, 2]


async def test_with_nobody_beside_it_an_error_is_its_own_at_once(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        assert [str(each) for each in await table.together(raising(Retry("later"), "b"))] == ["later"]
        assert (table.alone, await notes(table.s)) == ([], [])


async def test_a_statement_that_fails_undoes_all(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        came_to = await table.together(noting("a"), noting("b"), noting("a"))
        assert await notes(table.s) == ["a", "b"]
    assert [type(each).__name__ for each in came_to] in (
        ["str", "str", "UniqueViolationError"], ["UniqueViolationError", "str", "str"],
    )  # fmt: skip


async def test_what_one_made_of_the_others_is_not_taken_for_its_own(stage: OpenStage) -> None:
    """It saw what was undone, and says no because of it, after that."""
    async with open_table(stage, rows=1) as table:
        before = parted()

        async def fails(connection: Connection) -> None:
            await connection.execute(WRITE, 1, 7)
            await connection.execute("select 2")
            raise Retry("not now")

        async def decides(connection: Connection) -> int:
            await connection.execute("select 1")
            n: int = await connection.fetchval("select n from rows where id = 1")
            await eventually(lambda: parted() > before)
            if n:
                raise Refused("there is no room")
            return n

        came_to = await table.together(fails, decides)
        assert isinstance(came_to[0], Retry)
        assert came_to[1] == 0, "alone there is room"


async def test_who_may_not_write_leaves_the_others_alone(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def stale() -> str:
            async with table.sharing.join(turned_away) as connection:
                if connection is None:
                    return "stale"
            return "written"

        with counted() as count:
            came_to = await asyncio.gather(table.one(0, noting("a")), stale(), table.one(2, noting("c")))
        assert list(came_to) == ["a", "stale", "c"]
        assert await notes(table.s) == ["a", "c"]
    assert (count.committed, count.parted, table.alone) == (1, 0, [])


async def test_what_who_may_not_write_raises_is_its_own(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def stale() -> None:
            async with table.sharing.join(turned_away) as connection:
                assert connection is None
                raise ZeroDivisionError

        came_to = await asyncio.gather(table.one(0, noting("a")), stale(), return_exceptions=True)
        assert isinstance(came_to[1], ZeroDivisionError)
        assert (table.alone, await notes(table.s)) == ([], ["a"])


async def test_a_fence_that_fails_undoes_all(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def broken(connection: Connection) -> bool:
            return bool(await connection.fetchval("select 1 / 0"))

        async def fenced() -> None:
            async with table.sharing.join(broken):
                raise AssertionError("not reached")

        came_to = await asyncio.gather(table.one(0, noting("a")), fenced(), return_exceptions=True)
        assert isinstance(came_to[1], Apart)
        assert (table.alone, await notes(table.s)) == ([0], ["a"])


async def test_an_error_that_is_swallowed_is_not_forgotten(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        seen: list[str] = []

        async def swallows(connection: Connection) -> str:
            try:
                await connection.fetch("select 1 / 0")
            except Exception as error:
                seen.append(type(error).__name__)
            return "swallowed"

        came_to = await table.together(swallows, noting("a"), alone=False)
        assert [type(each).__name__ for each in came_to] == ["Apart", "Apart"]
        assert (seen, await notes(table.s)) == (["Apart"], [])


@pytest.mark.parametrize("what", ["transaction", "executemany", "copy_records_to_table", "cursor", "terminate"])
async def test_what_is_for_one_alone_is_done_alone(stage: OpenStage, what: str) -> None:
    async with open_table(stage) as table:

        async def asks(connection: Connection) -> str:
            if isinstance(connection, Member):
                getattr(connection, what)("anything")
            await noting("alone")(connection)
            return "alone"

        assert await table.together(asks, noting("a")) == ["alone", "a"]
        assert await notes(table.s) == ["a", "alone"]


async def test_a_deed_is_done_once_for_all_that_are_about_to_do_it(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        done: list[list[str]] = []

        async def deed(connection: Connection, items: Any) -> list[str]:
            done.append(list(items))
            await connection.executemany("insert into notes (note) values ($1)", [(item,) for item in items])
            return [f"did {item}" for item in items]

        def doing(item: str) -> Any:
            return lambda connection: connection.gather(deed, item)

        assert await table.together(doing("a"), noting("x"), doing("b")) == ["did a", "x", "did b"]
        assert done == [["a", "b"]]
        assert await notes(table.s) == ["a", "b", "x"]


async def test_one_at_a_time_as_on_any_connection(stage: OpenStage) -> None:
    async with open_table(stage, rows=1) as table:

        async def twice(connection: Connection) -> None:
            await asyncio.gather(connection.fetch("select 1"), connection.fetch("select 2"))

        came_to = await table.together(twice, noting("a"), alone=False)
        assert [type(each).__name__ for each in came_to] == ["Apart", "Apart"]
        assert "one thing after the other" in str(came_to[0])


async def test_who_gave_up_an_answer_does_not_go_on_in_company(stage: OpenStage) -> None:
    """A time-out inside the transaction, over a statement that stands still."""
    async with open_table(stage, rows=1) as table:

        async def hurries(connection: Connection) -> str:
            try:
                async with asyncio.timeout(0.1):
                    await connection.fetch(LOCKED, 1)
            except TimeoutError:
                await connection.fetch("select 1")
                return "went on"
            return "had it"

        async with table.s.owner.transaction():
            await table.s.owner.execute("update rows set n = 1")
            doing = asyncio.create_task(table.together(hurries, noting("a"), alone=False))
            await asyncio.wait([doing], timeout=0.4)
        came_to = await doing
        assert [type(each).__name__ for each in came_to] == ["Apart", "Apart"]
        assert await notes(table.s) == []


async def test_a_session_that_is_ended_loses_nothing(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        calls = 0

        async def loses(connection: Connection) -> str:
            nonlocal calls
            calls += 1
            await noting("b")(connection)
            if isinstance(connection, Member):
                await end_session(table.s, await session_of(connection))
                await connection.fetch("select 1")
            return "b"

        assert await table.together(noting("a"), loses, noting("c")) == ["a", "b", "c"]
        assert await notes(table.s) == ["a", "b", "c"]
        assert (calls, sorted(table.alone)) == (2, [0, 1, 2])


async def test_what_the_commit_itself_refuses_is_done_alone(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        await table.s.owner.execute(
            "alter table notes drop constraint notes_note_key, "
            "add constraint late unique (note) deferrable initially deferred"
        )
        came_to = await table.together(noting("a"), noting("b"), noting("a"))
        assert await notes(table.s) == ["a", "b"]
    assert sorted(type(each).__name__ for each in came_to) == ["UniqueViolationError", "str", "str"]


async def test_a_run_that_waits_for_its_transaction_joins_in_when_there_is_a_connection(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        pool = table.s.database.shared
        taken = [await pool.acquire() for _ in range(pool.get_max_size())]
        doing = asyncio.create_task(table.together(noting("a"), noting("b")))
        await asyncio.wait([doing], timeout=0.1)
        assert not doing.done()
        for connection in taken:
            await pool.release(connection)
        assert await doing == ["a", "b"]


async def test_without_a_server_all_are_told_to_do_it_alone(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        await table.s.database.shared.close()
        came_to = await table.together(noting("a"), noting("b"), alone=False)
    assert [type(each) for each in came_to] == [Apart, Apart]


async def test_nothing_is_left_running(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        before = asyncio.all_tasks()
        await table.together(noting("a"), raising(Retry("later")), noting("b"))
        await eventually(lambda: asyncio.all_tasks() <= before, what="no task is left")
        assert table.sharing._task is None
        async with table.sharing.join(let_in):
            pass


async def test_a_session_that_stayed_read_only_is_left_behind(stage: OpenStage) -> None:
    """It began while the database was so, and those that do their part alone have others."""

    async def stay_read_only(connection: Connection) -> None:
        await connection.execute("set session characteristics as transaction read only")

    async with open_table(stage) as table:
        await table.together(stay_read_only)
        await table.together(noting("a"), noting("b"))
        assert table.alone == [0, 1]
        await table.together(noting("c"), noting("d"))
        assert table.alone == [0, 1]
        assert await notes(table.s) == ["a", "b", "c", "d"]
