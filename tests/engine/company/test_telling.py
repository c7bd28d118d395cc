"""What a statement's text tells, and that its answers are the same for many askers as for one."""

from typing import Any

import pytest

from payonce.engine.company import lateral
from payonce.engine.company.telling import ASKER, ask, shape_of
from payonce.engine.database import Connection
from payonce.testing import OpenStage
from tests.conformance.wire import on_the_wire
from tests.engine.company.company_stage import open_table

NAMES = ["plain", "it's", "( one", "two )", "-- none", "/* none", 'a "b"', "from", "for update", None]

READS = {
    "no rows": ("select id, n from rows where id = $1 + 1000", [1, 2]),
    "one row": ("select id, n from rows where id = $1", [1, 2, 3]),
    "rows of some": ("select id from rows where id > $1 order by id", [0, 9, 99]),
    "no list's end": ("select $1::int + 1", [1, 2]),
    "a value without a table": ("select exists (select from rows where id = $1)", [1, 99]),
    "an ordered aggregate": ("select percentile_disc(0.5) within group (order by n) from rows where id > $1", [0, 8]),
    "a column with such a name": ("select n as limit, id as offset from rows where id = $1", [1, 2]),
    "no columns": ("select from rows where id > $1 for update", [0, 8]),
    "an aggregate": ("select count(*), max(n) from rows where id <= $1", [0, 5]),
    "groups": ("select n, count(*) as c from rows where id > $1 group by n having count(*) > 0 order by 1", [0, 99]),
    "distinct": ("select distinct n from rows where id > $1 order by n", [0, 1]),
    "distinct on": ("select distinct on (n) n, id from rows where id > $1 order by n, id", [0, 3]),
    "order by place": ("select id, n from rows where id > $1 order by 2, 1 desc limit 3 offset 1", [0, 4]),
    "is distinct from": ("select id is distinct from $1 as other from rows order by id", [1, 2]),
    "is not distinct from": (
        "select id is not distinct from $1, n from rows where n is not distinct from 0 order by id", [1, 2],
    ),
    "from in a function": ("select extract(epoch from now() - now())::int as age from rows where id = $1", [1, 2]),
    "a union": ("select id from rows where id = $1 union all select -id from rows where id = $1", [1, 2]),
    "a union below": ("select u.id from (select 1 as id union select $1::int) u order by u.id", [1, 2]),
    "a statement with": ("with few as (select id from rows where id <= $1) select id from few order by id", [2, 3]),
    "a join": ("select a.id, b.n from rows a join rows b on b.id = a.id + $1 order by a.id", [1, 2]),
    "a window": ("select id, sum(n) over w as s from rows where id > $1 window w as (order by id) order by id", [6, 7]),
    "a lock": ("select id, n from rows where id = $1 for update", [1, 2]),
    "a lock that passes over": ("select id from rows where id > $1 order by 1 limit 1 for update skip locked", [1, 2]),
    "strings": ("select 'from (', ')', 'it''s', '--' as f, id from rows where id = $1", [1, 2]),
    "names in quotes": ('select id as "from", n as "a (" from rows where id = $1', [1, 2]),
    "comments": ("select id, -- of the row's (\n n /* from ( */ -- here\n from rows where id = $1 -- (the end", [1, 2]),
    "a comment at the end": ("select $1::int -- why", [1, 2]),
    "values": ("values ($1::int), ($1::int + 1)", [1, 2]),
    "capitals": ("SELECT id FROM rows WHERE id = $1 FOR UPDATE", [1, 2]),
    "arrays": ("select id = any(array[$1::int, 3]) as hit from rows order by id", [1, 2]),
    "case": ("select case when id = $1 then 'for' else 'where' end as word from rows order by id", [1, 2]),
}  # fmt: skip

WRITES = {
    "insert": ("insert into rows (id, n) values ($1, 7)", [101, 102]),
    "insert returning": ("insert into rows (id, n) values ($1, 7) returning id, n", [101, 102]),
    "insert of many": ("insert into rows (id) select $1 + g from generate_series(1, 2) g returning id", [100, 200]),
    "insert or nothing": ("insert into rows (id) values ($1) on conflict do nothing returning id", [1, 101]),
    "insert or update": (
        "insert into rows as r (id) values ($1) on conflict (id) do update set n = r.n + 1 returning id, n", [1, 101],
    ),
    "update": ("update rows set n = 9 where id = $1", [1, 2]),
    "update returning": ("update rows set n = n + 1 where id >= $1 returning id, n", [9, 10]),
    "update of none": ("update rows set n = 9 where id = $1 + 1000 returning id", [1, 2]),
    "update from": (
        """with few as (select id from rows where id = $1 for update) update rows r set n = 4 from few
        where r.id = few.id returning r.id, r.n""", [1, 2],
    ),
    "delete": ("delete from rows where id = $1", [1, 2]),
    "delete returning": ("delete from rows where id = $1 returning id, n -- gone", [1, 2]),
    "change in a with": ("with done as (update rows set n = 3 where id = $1 returning id) select id from done", [1, 2]),
    "two changes": (
        """with gone as (delete from rows where id = $1 returning id) insert into notes (note) select id from gone
        returning note""", [1, 2],
    ),
}  # fmt: skip


def plain(rows: list[Any]) -> list[list[Any]]:
    return [[value for name, value in row.items() if name != ASKER] for row in rows]


async def fill(connection: Connection) -> None:
    await connection.execute("insert into rows (id, n) select g, g % 3 from generate_series(1, 10) g")


@pytest.mark.parametrize("types", [lateral._TYPES, frozenset()], ids=["for all", "for each"])
async def test_each_asker_gets_what_it_would_get_alone(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, types: frozenset[str]
) -> None:
    monkeypatch.setattr(lateral, "_known", {})
    monkeypatch.setattr(lateral, "_TYPES", types)
    async with open_table(stage, rows=0) as table, table.s.database.shared.acquire() as connection:
        await fill(connection)
        for name, (sql, numbers) in (READS | WRITES).items():
            alone = await answered(connection, sql, [[number] for number in numbers])
            together = await answered(connection, sql, [numbers])
            assert alone == together, name


async def answered(connection: Connection, sql: str, askers: list[list[int]]) -> Any:
    """The answers to each group of askers in turn, and what is in the tables then; all of it undone."""
    undone = connection.transaction()
    await undone.start()
    answers = [each for group in askers for each in await ask(connection, sql, [(one,) for one in group])]
    rows = await connection.fetch("select * from rows order by id")
    notes = await connection.fetch("select note from notes order by note")
    await undone.rollback()
    return [plain(each) for each in answers], rows, notes


async def test_it_is_one_statement_for_all_of_them(stage: OpenStage) -> None:
    sent: list[str] = []

    def see(statement: str) -> str:
        if not statement.startswith("LISTEN"):
            sent.append(statement)
        return statement

    async with open_table(stage, rows=0) as table, table.s.database.shared.acquire() as connection:
        with on_the_wire(see):
            for name, (sql, numbers) in (READS | WRITES).items():
                await connection.execute("truncate rows, notes")
                sent.clear()
                await ask(connection, sql, [(number,) for number in numbers])
                assert len(sent) == (len(numbers) if name in ("a union", "values") else 1), name


async def test_strings_of_all_kinds_come_back_to_who_gave_them(stage: OpenStage) -> None:
    async with open_table(stage) as table, table.s.database.shared.acquire() as connection:
        answers = await ask(connection, "select $1::text as name, '(' as open", [(name,) for name in NAMES])
    assert [[row["name"] for row in rows] for rows in answers] == [[name] for name in NAMES]


def test_a_text_tells_what_it_locks_and_changes() -> None:
    def told(sql: str) -> tuple[bool, bool, str, bool]:
        shape = shape_of(sql, 1)
        return shape.locks, shape.changes, shape.table, shape.locks_arguments

    assert told("select * from a.b x where id = $1 for update of x") == (True, False, "a.b", False)
    assert told("select n from b where id = $1 for no key update skip locked") == (True, False, "b", False)
    assert told("select n from b where id = $1 for share") == (False, False, "b", False)
    assert told("select n from b where note = 'for update'") == (False, False, "b", False)
    assert told("select n from (select * from b for update) c") == (False, False, "c", False)
    assert told("update b set n = 1 where id = $1 returning id") == (False, True, "b", False)
    assert told("insert into b (id) values ($1) returning id") == (False, True, "", False)
    assert told("delete from b where id = $1 returning id") == (False, True, "b", False)
    assert told("select pg_advisory_xact_lock($1)") == (False, False, "", True)
    assert told("lock table b") == (False, False, "", False)


def test_a_statement_that_joins_lists_is_not_told_apart() -> None:
    assert shape_of("select 1 union select 2", 0).told_apart is None
    assert shape_of("values (1)", 0).told_apart is None
    assert shape_of("update b set n = 1", 0).told_apart is None
