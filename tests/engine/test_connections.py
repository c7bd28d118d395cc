"""What a new connection need not ask, since another of this process has."""

import pytest

from payonce.engine import sessions
from payonce.engine.sessions import connect
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
    """Numbers of users' types mean something else elsewhere, or after the type was made again."""
    for labels in (("red", "green"), ("north", "south")):
        owner = await connect(scratch.owner_url)
        try:
            await owner.execute(f"create type kind as enum {labels}")
            assert await owner.fetchval("select enum_range(null::kind)") == list(labels)
            assert await owner.fetchval(QUESTIONS) == 1
            await owner.execute("drop type kind")
        finally:
            await owner.close()
