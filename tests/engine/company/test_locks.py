"""Rows that one run has locked are kept from the others of its transaction, as a server keeps them from other ones."""

import asyncio
from typing import Any

from payonce.engine.company.sharing import Member
from payonce.engine.database import Connection
from payonce.testing import OpenStage
from tests.engine.company.company_stage import LOCKED, WRITE, WRITE_SOME, adding, counted, notes, noting, open_table

RUNS = 12


async def test_no_update_is_lost_between_those_who_lock_what_they_read(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        with counted() as count:
            read = await table.together(*[adding(1)] * RUNS)
        assert await table.rows() == [RUNS, 0]
        assert read == list(range(RUNS)), "in the order of asking"
    assert (count.committed, count.parted) == (1, 0)


async def test_nor_where_the_row_does_not_say_who_it_is(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        def add(row: int) -> Any:
            async def adds(connection: Connection) -> None:
                n = await connection.fetchval("select n from rows where id = $1 for no key update", row)
                await connection.execute("select 1")
                await connection.execute(WRITE_SOME, row, n + 1)

            return adds

        with counted() as count:
            await table.together(*[add(1), add(2)] * RUNS)
        assert await table.rows() == [RUNS, RUNS]
    assert (count.committed, count.parted) == (1, 0)


async def test_nor_where_some_say_who_it_is_and_some_do_not(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        write = "insert into rows (id, n) values ($1, $2) on conflict (id) do update set n = excluded.n"

        async def add_unnamed(connection: Connection) -> None:
            n = await connection.fetchval("select n from rows where id = $1 for update", 1)
            await connection.execute("select 1")
            await connection.execute(write, 1, n + 1)

        with counted() as count:
            await table.together(*[adding(1), add_unnamed] * RUNS)
        assert await table.rows() == [2 * RUNS, 0]
    assert (count.committed, count.parted) == (0, 1), "they do it alone"


async def test_who_waits_for_several_rows_gets_all_of_them(stage: OpenStage) -> None:
    async with open_table(stage, rows=3) as table:

        async def add_to_all(connection: Connection) -> None:
            rows = await connection.fetch("select id, n from rows order by id for update")
            for row in rows:
                await connection.execute(WRITE, row["id"], row["n"] + 1)

        with counted() as count:
            await table.together(adding(2), add_to_all, adding(1), adding(3), add_to_all)
        assert await table.rows() == [3, 3, 3]
    assert (count.committed, count.parted) == (1, 0)


async def test_two_that_lock_crosswise_part_and_do_it_alone(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        def both(first: int, second: int) -> Any:
            async def adds(connection: Connection) -> None:
                for row in (first, second):
                    await adding(row)(connection)

            return adds

        with counted() as count:
            came_to = await asyncio.wait_for(table.together(both(1, 2), both(2, 1), noting("a")), 30)
        # Alone they are two transactions, and PostgreSQL may have to end one of them.
        if came_to[:2] == [None, None]:
            assert await table.rows() == [2, 2]
        else:
            assert await table.rows() == [1, 1]
        assert await notes(table.s) == ["a"]
    assert (count.committed, count.parted) == (0, 1)


async def test_what_one_changed_another_waits_for(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def changes(connection: Connection) -> None:
            await connection.fetchval("update rows set n = n + 1 where id = 1 returning id")
            await connection.execute("select 1")
            await connection.execute("select 2")
            await connection.execute("update rows set n = n + 1 where id = 1 returning id")

        async def adds_later(connection: Connection) -> int:
            await connection.execute("select 0")
            return int(await adding(1)(connection))

        with counted() as count:
            assert await table.together(changes, adds_later) == [None, 2]
        assert await table.rows() == [3, 0]
    assert (count.committed, count.parted) == (1, 0)


async def test_a_change_of_what_another_has_parts_them(stage: OpenStage) -> None:
    changes = {
        "update": "update rows set n = n + 1 where id = 1 returning id",
        "delete": "delete from rows where id = 1 returning id",
        "insert": "insert into rows as r (id) values (1) on conflict (id) do update set n = r.n + 1 returning id",
    }
    for name, sql in changes.items():
        async with open_table(stage) as table:

            async def changes_later(connection: Connection, sql: str = sql) -> None:
                await connection.execute("select 1")
                await connection.fetch(sql)

            with counted() as count:
                await table.together(adding(1, to=10), changes_later, alone=False)
            assert await table.rows() == [0, 0]
            assert (count.committed, count.parted) == (0, 1), name
            await table.s.owner.execute("drop table rows, notes")


async def test_a_change_that_does_not_say_of_what_parts_them_too(stage: OpenStage) -> None:
    """Whoever comes first: one that has locked a row, or one that has changed some."""

    async def changes(connection: Connection) -> None:
        await connection.execute("update rows set n = n + 1 where id = 1")
        await connection.execute("select 2")
        await connection.execute("update rows set n = n * 2 where id = 1")

    async def changes_later(connection: Connection) -> None:
        await connection.execute("select 0")
        await changes(connection)

    async def adds_later(connection: Connection) -> None:
        await connection.execute("select 0")
        await adding(1)(connection)

    async with open_table(stage) as table:
        for bodies in ((adding(1), changes_later), (changes, adds_later)):
            with counted() as count:
                await table.together(*bodies, alone=False)
            assert (count.committed, count.parted) == (0, 1)
            assert await table.rows() == [0, 0]
        with counted() as count:
            await table.together(changes, changes_later, noting("a"))
        assert (count.committed, count.parted) == (1, 0), "nobody has decided by it"


async def test_locks_by_arguments_are_waited_for(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        order: list[str] = []

        def locks(name: str, number: int) -> Any:
            async def body(connection: Connection) -> None:
                await connection.execute("select pg_advisory_xact_lock($1)", number)
                order.append(f"{name} in")
                await connection.execute("select 1")
                await connection.execute("select 2")
                order.append(f"{name} out")

            return body

        with counted() as count:
            await table.together(locks("a", 7), locks("b", 7), locks("c", 8))
        assert (count.committed, count.parted) == (1, 0)
    assert order.index("a out") < order.index("b in")
    assert order.index("c in") < order.index("a out")


async def test_who_asks_again_for_what_it_has_goes_on(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def twice(connection: Connection) -> None:
            await connection.fetch(LOCKED, 1)
            await connection.execute("select pg_advisory_xact_lock(7)")
            await connection.execute("select pg_advisory_xact_lock(7)")
            await adding(1)(connection)

        with counted() as count:
            await table.together(twice, twice)
        assert await table.rows() == [2, 0]
    assert (count.committed, count.parted) == (1, 0)


async def test_a_row_that_went_meanwhile_is_not_given(stage: OpenStage) -> None:
    async with open_table(stage) as table:

        async def removes(connection: Connection) -> Any:
            found = await connection.fetchrow(LOCKED, 1)
            await connection.execute("select 1")
            if found is not None:
                await connection.execute("delete from rows where id = 1")
            return found and found["n"]

        assert await table.together(removes, removes, removes) == [0, None, None]


async def test_who_waits_for_one_that_is_cancelled_does_it_alone(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        there = asyncio.Event()

        async def keeps(connection: Connection) -> None:
            await connection.fetch(LOCKED, 1)
            await connection.execute(WRITE, 1, 100)
            if isinstance(connection, Member):
                there.set()
                await asyncio.Event().wait()

        holder = asyncio.create_task(table.one(0, keeps))
        waits = asyncio.create_task(table.one(1, adding(1)))
        await there.wait()
        holder.cancel()
        assert await asyncio.wait_for(waits, 10) == 0
        assert await table.rows() == [1, 0]
        assert table.alone == [1]
        await asyncio.wait([holder])
        assert holder.cancelled()
