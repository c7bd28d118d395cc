"""What a new connection need not query because another connection of this process has."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from payonce.engine.database import sessions
from payonce.engine.database.connections import Database
from payonce.engine.database.sessions import PlainConnection, connect
from payonce.testing import ScratchDatabase

QUESTIONS = "select count(*) from pg_prepared_statements where statement ilike 'with recursive typeinfo_tree%'"


async def test_what_arrays_of_built_in_types_are_is_asked_once_in_a_process(
    scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_built_in_types", {})
    asked = []
    for _ in range(2):
        connection = await connect(scratch.service_url)
        try:
            assert await connection.fetchval("select $1::cidr[]", ["10.0.0.0/8"])
            asked.append(await connection.fetchval(QUESTIONS))
        finally:
            await connection.close()
    assert asked == [1, 0]


async def test_types_of_a_database_are_asked_of_that_database(scratch: ScratchDatabase) -> None:
    """Object ids of users' types differ in other databases, and after the type was created again."""
    for labels in (("red", "green"), ("north", "south")):
        owner = await connect(scratch.owner_url)
        try:
            await owner.execute(f"create type kind as enum {labels}")
            assert await owner.fetchval("select enum_range(null::kind)") == list(labels)
            assert await owner.fetchval(QUESTIONS) == 1
            await owner.execute("drop type kind")
        finally:
            await owner.close()


class Hindered(PlainConnection):
    """Its rollback is kept from ending, in the given way."""

    hinder: Callable[[], Awaitable[None]] | None = None

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        if query.startswith("ROLLBACK") and Hindered.hinder is not None:
            await Hindered.hinder()
        return await super().execute(query, *args, **options)


class Original(Exception):
    """The error that the caller must get."""


async def _fail_within(opened: Database) -> None:
    async with opened.transaction() as connection:
        await connection.execute("select 1")
        raise Original


async def _fail() -> None:
    raise RuntimeError("the driver is at odds with itself")


async def _be_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


@pytest.mark.parametrize("hinder", [_fail, _be_cancelled], ids=["an error", "a cancellation"])
async def test_a_roll_back_that_fails_does_not_hide_why_it_was_wanted(
    scratch: ScratchDatabase, monkeypatch: pytest.MonkeyPatch, hinder: Callable[[], Awaitable[None]]
) -> None:
    async with Database.open(scratch.service_url, work_pool_size=1, connection_class=Hindered) as opened:
        before = await opened.work.fetchval("select pg_backend_pid()")
        monkeypatch.setattr(Hindered, "hinder", staticmethod(hinder))
        with pytest.raises(Original):
            await _fail_within(opened)
        monkeypatch.undo()
        assert await opened.work.fetchval("select pg_backend_pid()") != before, "its session is not used again"
