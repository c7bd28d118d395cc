"""CPU time of processes, by the kernel's accounting."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import asyncpg

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
USER_TIME, SYSTEM_TIME, DEAD_CHILDRENS = 11, 12, (13, 14)
"""Fields of /proc/PID/stat behind the name, counted from 0; see proc(5)."""


def cpu_seconds(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """CPU time so far by name, including children that have ended."""
    return {name: sum(_spent(pid) for pid in of) for name, of in pids.items()}


def _spent(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(int(fields[index]) for index in (USER_TIME, SYSTEM_TIME, *DEAD_CHILDRENS)) / TICKS_PER_S


async def postgres_pids(superuser_url: str, database: str | None = None) -> list[int]:
    """CPU time of the server's current processes: the postmaster and its children. With a database: only sessions on
    it, and processes that belong to none, such as the WAL writer."""
    connection = await asyncpg.connect(superuser_url)
    try:
        rows = await connection.fetch(
            """
            select pid from pg_stat_activity
            where pid <> pg_backend_pid() and ($1::text is null or datname is null or datname = $1)
            """,
            database,
        )
    finally:
        await connection.close()
    return [row["pid"] for row in rows]
