"""A temporary database on the private server, so that demonstrations never touch the user's data."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from payonce.kit.ids import new_id

if TYPE_CHECKING:
    import asyncpg

    from payonce.app.addresses import Addresses
    from payonce.settings import Settings

PREFIX: Final = "payonce_demo_"


@asynccontextmanager
async def scratch_database(settings: "Settings") -> AsyncIterator["Addresses"]:
    """Creates a database and drops it at the end. Databases of killed demonstrations are dropped by the next one."""
    from payonce import embedded
    from payonce.app.addresses import Addresses
    from payonce.engine.database.sessions import connect

    server = await asyncio.to_thread(embedded.start, settings.server_dir)
    connection = await connect(server.superuser_url)
    name = f"{PREFIX}{new_id().hex}"
    owner = urlsplit(server.owner_url).username
    try:
        await _drop_abandoned(connection)
        # Held while this process lives, so that the next one can recognise abandoned databases.
        await connection.execute("select pg_advisory_lock($1)", _lock_of(name))
        await connection.execute(f"create database {name} owner {owner} template template0 encoding 'UTF8' locale 'C'")
        try:
            yield Addresses(_at(server.service_url, name), _at(server.owner_url, name))
        finally:
            await connection.execute(f"drop database if exists {name} with (force)")
    finally:
        await connection.close()


async def _drop_abandoned(connection: "asyncpg.Connection") -> None:
    for row in await connection.fetch("select datname from pg_database where datname ~ $1", f"^{PREFIX}[0-9a-f]+$"):
        lock = _lock_of(row["datname"])
        if await connection.fetchval("select pg_try_advisory_lock($1)", lock):
            await connection.execute(f"drop database if exists {row['datname']} with (force)")
            await connection.execute("select pg_advisory_unlock($1)", lock)


def _lock_of(name: str) -> int:
    return zlib.crc32(name.encode())


def _at(url: str, database: str) -> str:
    # Not through urlunsplit: it drops the empty host of a socket's address.
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{database}?{parts.query}"
