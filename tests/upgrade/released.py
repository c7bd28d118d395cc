"""Databases as earlier versions left them: for each released migration, the rows that it made possible.

`data/engine_NNNN.sql` is written when migration NNNN is released and never changed after. A database at NNNN
holds the rows of every file up to there.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import asyncpg

from payonce.engine.database.migrate import Migration, known_migrations, migrate

DATA = Path(__file__).with_name("data")
HEAD = known_migrations(())


def released() -> list[int]:
    return sorted(int(re.fullmatch(r"engine_(\d{4})", path.stem)[1]) for path in DATA.glob("*.sql"))  # type: ignore[index]


def up_to(number: int) -> list[Migration]:
    return [migration for migration in HEAD if migration.number <= number]


async def make_database_at(connection: asyncpg.Connection, number: int) -> None:
    """Rows are written while their migration is the newest, as in production; later ones find them there."""
    for earlier in released():
        if earlier <= number:
            await migrate(connection, up_to(earlier))
            await connection.execute((DATA / f"engine_{earlier:04}.sql").read_text())
    await migrate(connection, up_to(number))


async def content(connection: asyncpg.Connection) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table of ours, partitions counted with their parent."""
    tables = await connection.fetch(
        """
        select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'payonce' and c.relkind in ('r', 'p') and not c.relispartition and c.relname <> 'migrations'
        order by 1
        """
    )
    found = {}
    for (table,) in tables:
        rows = await connection.fetch(f'select * from payonce."{table}" as t order by t::text')
        found[table] = [dict(row) for row in rows]
    return found


def missing_rows(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Earlier rows without a later counterpart; columns may have been added."""
    return [old for old in before if not any(all(new.get(name) == old[name] for name in old) for new in after)]
