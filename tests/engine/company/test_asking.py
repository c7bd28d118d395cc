"""Statements of many askers at once: one trip for each, and nobody's fault is another's."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
import pytest

from payonce.engine.company.asking import MOST, Asking
from payonce.engine.company.telling import shape_of
from payonce.testing import OpenStage, eventually
from tests.conformance.wire import on_the_wire
from tests.engine.company.company_stage import end_session, notes, open_table
from tests.locks import waits_for_a_lock

NOTE = "insert into notes (note) values ($1) returning note"


@contextmanager
def sent(*words: str) -> Iterator[list[str]]:
    found: list[str] = []

    def see(statement: str) -> str:
        if any(word in statement for word in words):
            found.append(statement)
        return statement

    with on_the_wire(see):
        yield found


async def test_what_many_ask_in_one_moment_is_one_trip_for_each_statement(stage: OpenStage) -> None:
    async with open_table(stage, rows=9) as table:
        asking = Asking(table.s.database.shared)
        with sent("rows") as found:
            rows, counts = await asyncio.gather(
                asyncio.gather(*(asking.fetchrow("select id, n from rows where id = $1", one) for one in range(1, 12))),
                asyncio.gather(*(asking.fetchval("select count(*) from rows where id > $1", one) for one in range(4))),
            )
    assert len(found) == 2
    assert [row and row["id"] for row in rows] == [*range(1, 10), None, None]
    assert counts == [9, 8, 7, 6]


async def test_who_comes_meanwhile_is_asked_for_in_the_next_turn(stage: OpenStage) -> None:
    async with open_table(stage, rows=1) as table:
        asking = Asking(table.s.database.shared)
        async with table.s.owner.transaction():
            await table.s.owner.execute("update rows set n = 5")
            first = asyncio.create_task(asking.fetchval("update rows set n = n + 1 returning n"))
            await eventually(lambda: waits_for_a_lock(table.s))
            with sent("from notes") as found:
                others = [asyncio.create_task(asking.fetchval("select count(*) from notes")) for _ in range(MOST + 1)]
                await asyncio.sleep(0)
        with sent("from notes") as found:
            assert await first == 6
            assert await asyncio.gather(*others) == [0] * (MOST + 1)
        assert len(found) == 2, "no more than so many in one turn"


async def test_one_that_fails_does_not_trouble_the_others(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        asking = Asking(table.s.database.shared)
        asked = [asking.fetchval(NOTE, text) for text in ("a", None, "b", "a", "c")]
        answers = await asyncio.gather(*asked, asking.fetchval("select 1"), return_exceptions=True)
        assert await notes(table.s) == ["a", "b", "c"]
    assert [str(each) if isinstance(each, str | int) else type(each).__name__ for each in answers] == [
        "a", "NotNullViolationError", "b", "UniqueViolationError", "c", "1",
    ]  # fmt: skip


async def test_nor_are_they_done_again_where_each_is_sent_by_itself(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        asking = Asking(table.s.database.shared)
        note_and_more = f"with noted as ({NOTE}) select note from noted union all select 'more'"
        assert shape_of(note_and_more, 1).told_apart is None
        asked = [asking.fetchval(note_and_more, text) for text in ("a", None, "b")]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert await notes(table.s) == ["a", "b"]
    assert [each if isinstance(each, str) else type(each).__name__ for each in answers] == [
        "a", "NotNullViolationError", "b",
    ]  # fmt: skip


async def test_an_asker_that_is_gone_is_no_trouble(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        asking = Asking(table.s.database.shared)
        tasks = [asyncio.create_task(asking.fetchval("select $1::int", number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[::2] == [0, 2]
        assert isinstance(answers[1], asyncio.CancelledError)
        assert await asking.fetchval("select 7") == 7


async def test_a_connection_that_is_lost_is_told_to_those_who_asked_on_it(stage: OpenStage) -> None:
    async with open_table(stage, rows=1) as table:
        asking = Asking(table.s.database.shared)
        async with table.s.owner.transaction():
            await table.s.owner.execute("update rows set n = 5")
            tasks = [
                asyncio.create_task(asking.fetch("update rows set n = $1 returning n", number)) for number in (1, 2)
            ]
            later = asyncio.create_task(asking.fetchval("select 7"))
            await eventually(lambda: waits_for_a_lock(table.s))
            waiting = await table.s.owner.fetchval("select pid from pg_locks where not granted limit 1")
            await end_session(table.s, waiting)
            answers = await asyncio.gather(*tasks, later, return_exceptions=True)
        assert all(isinstance(each, asyncpg.PostgresError | asyncpg.InterfaceError) for each in answers), answers
        assert await asking.fetchval("select 7") == 7, "the next turn has a connection again"
        assert await table.rows() == [5]


async def test_nobody_waits_for_a_turn_that_was_ended(stage: OpenStage) -> None:
    async with open_table(stage, rows=1) as table:
        asking = Asking(table.s.database.shared)
        async with table.s.owner.transaction():
            await table.s.owner.execute("update rows set n = 5")
            under_way = asyncio.create_task(asking.fetch("update rows set n = 6"))
            await eventually(lambda: waits_for_a_lock(table.s))
            waiting = asyncio.create_task(asking.fetch("select 1"))
            await asyncio.sleep(0)
            assert asking._turn is not None
            asking._turn.cancel()
            for each in (under_way, waiting):
                with pytest.raises(asyncpg.InterfaceError, match="the process stops"):
                    await each
        assert await table.rows() == [5]
        assert await asking.fetchval("select 7") == 7


async def test_who_finds_no_connection_hears_so(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        asking = Asking(table.s.database.shared)
        await table.s.database.shared.close()
        with pytest.raises(asyncpg.InterfaceError, match="closed"):
            await asking.fetch("select 1")
