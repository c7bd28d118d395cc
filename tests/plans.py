"""What statements read, whatever they were planned for."""

from collections.abc import Awaitable, Callable

from payonce.testing import Stage


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
