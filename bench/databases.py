"""The benchmark's databases on the given server: created, settled before a phase, dropped."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import asyncpg

from bench.peers.port import BUSINESS_TABLE

ANSWER_LIMIT_S = 60.0
Answer = TypeVar("Answer")

# Settings that must be the same for all, and are therefore in the report.
_CONDITIONS = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")


def database_url(url: str, database: str) -> str:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}/{database}{query}"


def recreate(url: str, database: str, template: str = "template0") -> str:
    """Recreates a database from the template; returns its URL."""

    async def act(connection: asyncpg.Connection) -> None:
        await connection.execute(f'drop database if exists "{database}" with (force)')
        await connection.execute(f'create database "{database}" template "{template}"')

    _ask(url, act)
    return database_url(url, database)


def create_business_table(url: str) -> None:
    async def act(connection: asyncpg.Connection) -> None:
        await connection.execute(BUSINESS_TABLE)

    _ask(url, act)


def count_business_rows(url: str) -> int:
    async def act(connection: asyncpg.Connection) -> int:
        return int(await connection.fetchval("select count(*) from bench_business"))

    return _ask(url, act)


def drop(url: str, database: str) -> None:
    async def act(connection: asyncpg.Connection) -> None:
        await connection.execute(f'drop database if exists "{database}" with (force)')

    _ask(url, act)


def checkpoint(url: str) -> None:
    """Settles the server, so that no phase pays for dirty pages of the previous one."""

    async def act(connection: asyncpg.Connection) -> None:
        await connection.execute("checkpoint")

    _ask(url, act)


def vacuum(url: str) -> None:
    async def act(connection: asyncpg.Connection) -> None:
        await connection.execute("vacuum analyze")

    _ask(url, act)


@contextmanager
def open_snapshot(url: str) -> Iterator[None]:
    """Holds a snapshot until the block ends, which vacuum cannot pass."""
    with asyncio.Runner() as runner:
        connection = runner.run(_connect(url))
        runner.run(connection.execute("begin isolation level repeatable read"))
        # The first statement takes the snapshot, not `begin`.
        runner.run(connection.execute("select 1"))
        try:
            yield
        finally:
            connection.terminate()


def server_conditions(url: str) -> dict[str, str]:
    async def act(connection: asyncpg.Connection) -> dict[str, str]:
        return {name: str(await connection.fetchval("select current_setting($1)", name)) for name in _CONDITIONS}

    return _ask(url, act)


def _ask(url: str, act: Callable[[asyncpg.Connection], Awaitable[Answer]]) -> Answer:
    async def bounded() -> Answer:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            connection = await _connect(url)
            try:
                return await act(connection)
            finally:
                await connection.close()

    return asyncio.run(bounded())


async def _connect(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url, timeout=ANSWER_LIMIT_S)
