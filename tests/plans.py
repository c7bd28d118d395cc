"""What statements read, whatever they were planned for."""

from collections.abc import Awaitable, Callable

import pytest

from payonce.testing import Stage

EMPTY = pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while empty"])
"""Of the one the planner expects a few rows on each page, of the other none."""


async def plan_while_empty(s: Stage, table: str, doing: Callable[[], Awaitable[object]], analysed: bool) -> None:
    """Has a table of the engine stand as it does after its rows are gone, and the statements planned then."""
    await doing()
    if analysed:
        await s.owner.execute(f"delete from payonce.{table}")
        await s.owner.execute(f"analyze payonce.{table}")
        await doing()


async def index_entries_read(s: Stage, table: str, doing: Callable[[], Awaitable[object]]) -> int:
    """Of one table of the engine, by what is done over one connection of its pool, one statement after the other."""
    before = await _read_so_far(s, table)
    await doing()
    return await _read_so_far(s, table) - before


async def _read_so_far(s: Stage, table: str) -> int:
    for connection in (s.database.engine, s.owner):
        await connection.execute("select pg_stat_force_next_flush()")
    read: int = await s.owner.fetchval(
        """
        select sum(idx_tup_read)::bigint from pg_stat_user_indexes where schemaname = 'payonce' and relname = $1
        """,
        table,
    )
    return read
