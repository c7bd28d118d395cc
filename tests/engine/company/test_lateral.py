"""One statement for many askers gives each what it would get alone, and is not made of what may change something."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from payonce.engine.company import lateral
from payonce.engine.company.asking import Asking
from payonce.engine.company.telling import ask
from payonce.engine.database import Connection
from payonce.testing import OpenStage, eventually
from tests.engine.company.company_stage import LOCKED, Table, open_table
from tests.engine.company.test_telling import READS, plain
from tests.locks import waits_for_a_lock

TAKE = """
    create function take(which integer) returns integer language sql volatile
    as 'update rows set n = n + 1 where id = which returning n';
"""
TAKEN = "select take(id) as n from rows where id = $1 and n = 0"
TEN = ", ".join(f"${number}::int as c{number}" for number in range(1, 12))

ODD = {
    "a string": "select '$1' as said, id from rows where id = $1",
    "a string with a quote": "select 'it''s $1' as said, id from rows where id = $1",
    "a string with a backslash": r"select e'it\'s $1' as said, id from rows where id = $1",
    "a string between dollars": "select $a$it's $1$a$ as said, id from rows where id = $1",
    "a string between dollars with a number": "select $a1$it's $1$a1$ as said, id from rows where id = $1",
    "a name": 'select id as "$1" from rows where id = $1',
    "a name with a dollar": "select id as a$1 from rows where id = $1",
    "a comment": "select id -- it's $1\n from rows where id = $1 /* it's $1 */",
    "a comment in a comment": "select id, /* a /* b */ it's */ '$1' as said from rows where id = $1",
}
NONE: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "an array": ("select id from rows where id = any($1::int[]) order by id", [([1, 2],), ([],), ([3],)]),
    "no argument": ("select count(*) from rows", [(), ()]),
    "an aggregate of what is asked": ("select count($1::int) as c from rows", [(1,), (None,)]),
    "a change": ("with done as (update rows set n = 3 where id = $1 returning id) select id from done", [(1,), (2,)]),
    "something volatile": ("select random() < 2 as less, id from rows where id = $1", [(1,), (2,)]),
}


@asynccontextmanager
async def opened(stage: OpenStage, rows: int = 3) -> AsyncIterator[tuple[Table, Connection]]:
    async with open_table(stage, rows=rows) as table, table.s.database.shared.acquire() as connection:
        yield table, connection


async def form(connection: Connection, sql: str) -> str | None:
    return (await lateral.known(connection, sql)).for_all


async def both(connection: Connection, sql: str, askers: list[tuple[Any, ...]]) -> tuple[Any, Any]:
    """What they get together, and what each gets alone."""
    together = [plain(rows) for rows in await ask(connection, sql, askers)]
    return together, [plain(await connection.fetch(sql, *arguments)) for arguments in askers]


async def test_reads_have_a_form_for_many(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        without = {name for name, (sql, _) in READS.items() if await form(connection, sql) is None}
    assert without == {"a statement with", "values"}


async def test_nulls_equals_and_those_who_get_nothing(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        sql = "select id, n, $2::text as name from rows where id >= $1 or $1 is null order by id desc"
        askers = [(2, "a"), (None, None), (9, "b"), (2, "a"), (1, None), (2, "")]
        assert await form(connection, sql)
        together, alone = await both(connection, sql, askers)
    assert together == alone
    assert [[row[0] for row in rows] for rows in together] == [[3, 2], [3, 2, 1], [], [3, 2], [3, 2, 1], [3, 2]]


async def test_the_tenth_argument_is_not_the_first(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        assert await form(connection, f"select {TEN}")
        together, alone = await both(connection, f"select {TEN}", [tuple(range(11)), tuple(range(20, 31))])
    assert together == alone == [[list(range(11))], [list(range(20, 31))]]


async def test_columns_of_one_name_and_columns_of_none(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        for sql in (
            "select a.id, b.id from rows a, rows b where a.id = $1 order by b.id",
            "select from rows where id > $1",
        ):
            assert await form(connection, sql)
            together, alone = await both(connection, sql, [(1,), (2,), (9,)])
            assert together == alone
            assert [bool(rows) for rows in together] == [True, True, False]


async def test_what_looks_like_an_argument_and_is_none_stays(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        for name, sql in ODD.items():
            together, alone = await both(connection, sql, [(1,), (2,), (9,)])
            assert together == alone, name
            names = [list(rows[0].keys())[:-1] for rows in await ask(connection, sql, [(1,), (2,)])]
            assert names == [list((await connection.fetch(sql, 1))[0].keys())] * 2, name


async def test_a_column_that_is_called_like_a_bound_is_none(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        for columns, rest, unbound in (("n as limit", "", True), ("n as offset", "", True), ("n", "limit 2", False)):
            found = await form(connection, f"select {columns} from rows where id = $1 {rest}")
            assert found
            assert ("offset 0" in found) is unbound, columns


async def test_what_has_no_form_is_answered_all_the_same(stage: OpenStage) -> None:
    """Also inside a transaction, which goes on."""
    async with opened(stage) as (_, connection), connection.transaction():
        for name, (sql, askers) in NONE.items():
            assert await form(connection, sql) is None, name
            together, alone = await both(connection, sql, askers)
            assert together == alone, name


async def test_what_changes_something_is_done_for_one_after_the_other(stage: OpenStage) -> None:
    """The second sees what the first has done."""
    async with opened(stage) as (table, connection):
        await table.s.owner.execute(TAKE)
        assert plain_each(await ask(connection, TAKEN, [(2,), (1,), (2,), (9,)])) == [[[1]], [[1]], [], []]
        by_name = TAKEN.replace("take", '"take"').replace("n = 0", "n = 1")
        assert plain_each(await ask(connection, by_name, [(2,), (1,), (2,), (9,)])) == [[[2]], [[2]], [], []]
        assert await table.rows() == [2, 2, 0]


async def test_it_is_also_done_for_each_of_those_who_ask_the_same(stage: OpenStage) -> None:
    async with opened(stage) as (table, _):
        await table.s.owner.execute(TAKE)
        asking = Asking(table.s.database.shared)
        assert await asyncio.gather(*[asking.fetchval("select take($1)", 3) for _ in range(3)]) == [1, 2, 3]


async def test_rows_are_locked_in_the_order_of_asking_and_given_as_they_are_then(stage: OpenStage) -> None:
    async with opened(stage, rows=5) as (table, connection):
        sql = LOCKED.replace(" for", " and n < 5 for")
        assert await form(connection, sql)
        async with connection.transaction():
            async with table.s.owner.transaction():
                await table.s.owner.execute("update rows set n = id * 2 where id in (1, 4)")
                asked = asyncio.create_task(ask(connection, sql, [(3,), (1,), (4,), (2,), (1,)]))
                await eventually(lambda: waits_for_a_lock(table.s))
                free = await table.s.database.work.fetch("select id from rows order by id for update skip locked")
            answers = await asked
            then_free = await table.s.database.work.fetch("select id from rows order by id for update skip locked")
    assert [row["id"] for row in free] == [2, 5], "who comes behind the one that waits has locked nothing yet"
    assert plain_each(answers) == [[[3, 0]], [[1, 2]], [], [[2, 0]], [[1, 2]]], "the fourth is no longer below five"
    assert not {1, 2, 3} & {row["id"] for row in then_free}


async def test_so_are_those_that_are_found_by_others(stage: OpenStage) -> None:
    """As payouts are locked that a swap carries."""
    async with opened(stage) as (table, connection):
        sql = """
            select r.id, r.n from rows r
            where r.id = any(array(select id from rows where id >= $1)) order by r.id for update
        """
        assert await form(connection, sql)
        async with connection.transaction():
            async with table.s.owner.transaction():
                await table.s.owner.execute("update rows set n = 7 where id = 2")
                asked = asyncio.create_task(ask(connection, sql, [(3,), (2,), (1,)]))
                await eventually(lambda: waits_for_a_lock(table.s))
            answers = await asked
    assert plain_each(answers) == [[[3, 0]], [[2, 7], [3, 0]], [[1, 0], [2, 7], [3, 0]]]


async def test_what_is_known_has_a_bound(stage: OpenStage) -> None:
    async with opened(stage) as (_, connection):
        for number in range(lateral.MOST_KNOWN - len(lateral._known) + 2):
            await lateral.known(connection, f"insert {number}")
    assert len(lateral._known) <= lateral.MOST_KNOWN


def plain_each(answers: list[Any]) -> list[Any]:
    return [plain(rows) for rows in answers]
