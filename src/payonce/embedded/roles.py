"""The contents of a new server before payonce's migrations: two login roles and one database."""

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
# Transient errors of a server that starts, stops, recovers or is crowded; waiting does not help with others.
TRANSIENT = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)


class ServerEndedError(Exception):
    """The server ended during the wait."""


def prepare_when_ready(url: str, is_alive: Callable[[], bool], limit_s: float) -> None:
    """Waits until the server responds, then creates missing roles and the database.

    Raises ServerEndedError if the server ends first, TimeoutError after the limit, and PostgreSQL's error if it
    refuses.
    """
    # In a separate thread, because the caller may be inside a running event loop.
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
        except TRANSIENT as problem:
            if not is_alive():
                raise ServerEndedError from problem
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
