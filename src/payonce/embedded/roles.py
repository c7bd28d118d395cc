"""What a fresh server holds before payonce's migrations: two login roles and one database."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import asyncpg

from payonce.embedded.home import POLL_S

SUPERUSER = "postgres"
OWNER = "payonce_owner"
SERVICE = "payonce_service"
DATABASE = "payonce"
CONNECT_LIMIT_S = 5.0
STATEMENT_LIMIT_S = 60.0
# A server that comes up, goes down, recovers or is crowded; anything else is a refusal and no use waiting for.
PASSING = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)


class GoneError(Exception):
    """The server ended while it was waited for."""


def prepare_when_ready(url: str, is_alive: Callable[[], bool], limit_s: float) -> None:
    """Wait until the server answers, then make the roles and the database that are missing.

    Raises GoneError when the server ends first, TimeoutError when it takes longer than the limit, and PostgreSQL's own
    error when it refuses.
    """
    # In a thread of its own, because the caller may stand inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="payonce-embedded") as thread:
        thread.submit(asyncio.run, _prepare_when_ready(url, is_alive, limit_s)).result()


async def _prepare_when_ready(url: str, is_alive: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            connection = await asyncpg.connect(url, timeout=CONNECT_LIMIT_S, command_timeout=STATEMENT_LIMIT_S)
            try:
                await _prepare(connection)
            finally:
                await connection.close(timeout=CONNECT_LIMIT_S)
        except PASSING as problem:
            if not is_alive():
                raise GoneError from problem
            if time.monotonic() > deadline:
                raise TimeoutError(str(problem) or type(problem).__name__) from problem
            await asyncio.sleep(POLL_S)
        else:
            return


async def _prepare(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    roles = {row["rolname"] for row in await connection.fetch("select rolname from pg_roles")}
    for role in (OWNER, SERVICE):
        if role not in roles:
            await connection.execute(f"create role {role} login nosuperuser nocreatedb nocreaterole")
    if not await connection.fetchval("select 1 from pg_database where datname = $1", DATABASE):
        await connection.execute(
            f"""
            create database {DATABASE} owner {OWNER}
            template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'
            """
        )
