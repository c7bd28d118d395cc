"""Runs that are ended from outside while they share a transaction: the others go on, and nobody waits for ever."""

import asyncio
from typing import Any

import pytest

from payonce.engine.company.apart import Apart
from payonce.engine.database import Connection
from payonce.testing import OpenStage
from tests.engine.company.company_stage import Table, counted, notes, noting, open_table, turns_of_the_loop


async def cancelled_at(table: Table, body: Any, moment: asyncio.Event) -> list[Any]:
    """One of three is cancelled at that moment."""
    tasks = [
        asyncio.create_task(table.one(number, each)) for number, each in enumerate((noting("a"), body, noting("c")))
    ]
    await moment.wait()
    tasks[1].cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_that_is_cancelled_in_its_body_undoes_all_and_the_others_go_on(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        there = asyncio.Event()

        async def never_ends(connection: Connection) -> None:
            await noting("b")(connection)
            there.set()
            await asyncio.Event().wait()

        came_to = await cancelled_at(table, never_ends, there)
        assert isinstance(came_to[1], asyncio.CancelledError)
        assert (came_to[::2], sorted(table.alone), await notes(table.s)) == (["a", "c"], [0, 2], ["a", "c"])


async def test_one_that_is_cancelled_behind_its_part_undoes_all_while_others_are_at_it(stage: OpenStage) -> None:
    """An intent that nobody is going to send must not be left on record."""
    async with open_table(stage) as table:
        there, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(connection: Connection) -> None:
            await noting("slow")(connection)
            there.set()
            await goes_on.wait()

        others = asyncio.create_task(table.one(0, slow))
        ended = asyncio.create_task(table.one(1, noting("ended")))
        await there.wait()
        await turns_of_the_loop()
        ended.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ended
        goes_on.set()
        await others
        assert (table.alone, await notes(table.s)) == ([0], ["slow"])


async def test_one_that_is_cancelled_before_it_began_is_not_waited_for(stage: OpenStage) -> None:
    """While the transaction waits for a connection: it has no part in it."""
    async with open_table(stage) as table:
        pool = table.s.database.shared
        taken = [await pool.acquire() for _ in range(pool.get_max_size())]
        tasks = [asyncio.create_task(table.one(number, noting(str(number)))) for number in range(3)]
        await turns_of_the_loop()
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        for connection in taken:
            await pool.release(connection)
        with counted() as count:
            came_to = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert isinstance(came_to[1], asyncio.CancelledError)
        assert (table.alone, await notes(table.s), count.committed) == ([], ["0", "2"], 1)


async def test_a_transaction_of_nobody_is_no_trouble(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        pool = table.s.database.shared
        taken = [await pool.acquire() for _ in range(pool.get_max_size())]
        task = asyncio.create_task(table.one(0, noting("0")))
        await turns_of_the_loop()
        task.cancel()
        await asyncio.wait([task])
        for connection in taken:
            await pool.release(connection)
        assert await asyncio.wait_for(table.one(1, noting("1")), 10) == "1"
        assert await notes(table.s) == ["1"]


async def test_nobody_waits_for_turns_that_were_ended(stage: OpenStage) -> None:
    async with open_table(stage) as table:
        there = asyncio.Event()

        async def stays(connection: Connection) -> None:
            await noting("b")(connection)
            there.set()
            await connection.fetch("select pg_sleep(60)")

        first = asyncio.create_task(table.one(0, stays, alone=False))
        await there.wait()
        second = asyncio.create_task(table.one(1, noting("later"), alone=False))
        await asyncio.sleep(0)
        assert table.sharing._task is not None
        table.sharing._task.cancel()
        for each in (first, second):
            with pytest.raises(Apart):
                await each
        assert await notes(table.s) == []
        assert await table.one(2, noting("again")) == "again"
