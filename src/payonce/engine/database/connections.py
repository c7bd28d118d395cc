"""Connections to PostgreSQL: three pools, the checks at start-up, and the transaction in which handlers write."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

import asyncpg

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.migrate import SERVICE_ROLE, Migration, status
from payonce.engine.database.pools import BoundedPool
from payonce.engine.database.sessions import (
    COMMAND_TIMEOUT_S,
    CONNECT_ERRORS,
    CONNECT_TIMEOUT_S,
    MAY_DO_TOO_MUCH,
    Connection,
    PlainConnection,
    connect,
    open_session,
    session_settings,
    unreachable,
)
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable

log = get_logger(__name__)


class Statements(Protocol):
    """An open transaction, as the driver or `Tx` offers it."""

    async def execute(self, sql: str, /, *arguments: Any) -> str: ...

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any: ...


ENGINE_POOL_SIZE: Final = 8
"""For claims, settles, heartbeats and janitors; separate from the handlers' pool, which handlers may exhaust."""

ENGINE_PLANNER: Final = {
    **dict.fromkeys(
        ("enable_bitmapscan", "enable_seqscan", "enable_sort", "enable_hashjoin", "enable_mergejoin"), "off"
    ),
    "plan_cache_mode": "force_generic_plan",
}
"""Every statement of the engine has its index and locks rows in the order of the given ids. Plain index scans also mark
the dead entries they pass. Other scans revisit them every time, yet a planner misled by a table that swings between 0
and millions of rows would choose them. One generic plan suffices: planning anew cost 0.3 ms per claim from a deep
queue, measured."""

HANDLERS_PLANNER: Final = {"enable_seqscan": "off"}
"""Handlers find rows by key. A plan made while a table was empty must not scan a full one; a sequential scan stays
possible where no index fits."""
STATEMENTS_KEPT: Final = 1_000
"""Prepared statements per connection: more than a process has. The driver's default is 100."""


__all__ = ["Connection", "Database", "check_login", "is_transient"]


@dataclass(frozen=True)
class Database:
    """Three pools: `handlers` for the runs of messages, `engine` for the engine itself, `work` for everything else that
    reads and writes business rows (HTTP, console, commands, janitors)."""

    url: str
    work: asyncpg.Pool
    handlers: asyncpg.Pool
    engine: asyncpg.Pool
    settings: dict[str, str]

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        work_pool_size: int = 10,
        shortest_lease_s: float = 30.0,
        application_name: str = "payonce",
        connection_class: type[PlainConnection] = PlainConnection,
        settings: dict[str, str] | None = None,
    ) -> AsyncIterator["Database"]:
        """`connection_class` is the seam at which tests watch, stop or cut statements. `settings` may be reused from
        another database of the same server."""
        if settings is None:
            settings = await session_settings(url, shortest_lease_s, application_name)
        async with (
            _pool("work", url, settings, work_pool_size, connection_class) as work,
            _pool("handlers", url, {**settings, **HANDLERS_PLANNER}, work_pool_size, connection_class, 0) as handlers,
            _pool("engine", url, {**settings, **ENGINE_PLANNER}, ENGINE_POOL_SIZE, connection_class) as engine,
        ):
            yield cls(url, work, handlers, engine, settings)

    async def check(self, known: Sequence[Migration]) -> None:
        """Refuses to serve a database with other migrations, rights or clocks than this code needs."""
        async with self.engine.acquire() as connection:
            await _check_schema(connection, known)
            await _check_role(connection)
            await _check_clocks(connection)

    async def installation(self) -> str:
        """The unique name of this database's installation, with which its objects in other stores are marked."""
        name: str = await self.engine.fetchval("select id::text from payonce.installation")
        return name

    async def connect(self, **settings: str) -> PlainConnection:
        """A separate connection outside the pools."""
        return await connect(self.url, {**self.settings, **settings})

    async def leave_read_only_sessions(self, error: BaseException) -> None:
        """Expires the pools' connections after a read-only error: a session keeps its initial read-only default even
        after that was lifted."""
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            await self.engine.expire_connections()
            await self.work.expire_connections()
            await self.handlers.expire_connections()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction whose outcome is known even after a lost answer."""
        async with self.work.acquire() as connection, settled_transaction(self, connection):
            yield connection


def is_transient(error: BaseException) -> bool:
    """True for errors that pass by themselves: a lost connection, a restart, a full disk, a deadlock."""
    if isinstance(error, asyncpg.PostgresError):
        code = error.sqlstate or ""
        return code[:2] in ("08", "53", "57", "58", "40") or code in ("55P03", "25006", "25P03", "XX000", "28000")
    return isinstance(error, (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError, Unavailable))


async def _connect_in_pool(url: str, **options: Any) -> asyncpg.Connection:
    """Connects for a pool, which may happen at any time. While a server restarts, nothing listens: a handler must get
    Unavailable then, since a bare OSError would look like a bug of its own."""
    try:
        return await open_session(url, **options)
    except OSError as error:
        raise unreachable(url, error) from error


@asynccontextmanager
async def _pool(
    name: str, url: str, settings: dict[str, str], size: int, connection_class: type[PlainConnection], least: int = 1
) -> AsyncIterator[asyncpg.Pool]:
    pool = BoundedPool(
        url,
        min_size=least,
        max_size=size,
        timeout=CONNECT_TIMEOUT_S,
        command_timeout=COMMAND_TIMEOUT_S,
        connect=partial(_connect_in_pool, settings=settings),
        connection_class=connection_class,
        statement_cache_size=STATEMENTS_KEPT,
        max_inactive_connection_lifetime=300.0,
        max_queries=50_000,
        record_class=asyncpg.Record,
        loop=None,
    )
    pool.name = name
    try:
        await pool
    except CONNECT_ERRORS as error:
        raise unreachable(url, error) from error
    try:
        yield pool
    finally:
        pool.terminate()


async def _check_schema(connection: Connection, known: Sequence[Migration]) -> None:
    pending = (await status(cast(asyncpg.Connection, connection), known)).pending
    if pending:
        raise Unavailable(f"the database lacks {len(pending)} migrations, first {pending[0]}; run: payonce db migrate")


async def _check_role(connection: Connection) -> None:
    if await connection.fetchval(MAY_DO_TOO_MUCH):
        user = await connection.fetchval("select current_user")
        raise Unavailable(
            f"services must not run as {user}, which is a superuser or owns the tables; "
            f"use a login that is a member of {SERVICE_ROLE}"
        )


ACCEPT_SUPERUSER: Final = "PAYONCE_ACCEPT_SUPERUSER"
ACCEPT_OWNER: Final = "PAYONCE_ACCEPT_OWNER"


async def check_login(connection: Any, *, superuser_accepted: bool, owner_accepted: bool) -> None:
    """Refuses a login that is a superuser or owns the schema, or can become such a role. Services switch to a role with
    fewer rights, but an intruder could switch back."""
    login, superuser, owner = await connection.fetchrow(
        """
        select session_user::text,
            (select rolname from pg_roles where rolsuper and pg_has_role(session_user, oid, 'member')
             order by rolname <> session_user limit 1),
            (select rolname from pg_namespace join pg_roles on pg_roles.oid = nspowner
             where nspname = 'payonce' and pg_has_role(session_user, nspowner, 'member'))
        """
    )
    if superuser is not None:
        if not superuser_accepted:
            how = "is" if superuser == login else f"is a member of {superuser},"
            raise _refused_login(
                login, f"{how} a superuser", "read and change everything on that server", ACCEPT_SUPERUSER
            )
        log.warning("superuser_accepted", login=login, setting=ACCEPT_SUPERUSER)
    elif owner is not None:
        if not owner_accepted:
            how = (
                "owns the schema payonce"
                if owner == login
                else f"is a member of {owner}, the owner of the schema payonce"
            )
            raise _refused_login(
                login, how, "change its tables and clocks and switch row-level security off", ACCEPT_OWNER
            )
        log.warning("owner_accepted", login=login, setting=ACCEPT_OWNER)


def _refused_login(login: str, what: str, harm: str, switch: str) -> Unavailable:
    return Unavailable(
        f"DATABASE_URL logs in as {login}, which {what}: an intruder in a service could {harm}; use a login that "
        f"is only a member of {SERVICE_ROLE}, as docs/operating.md describes, with the owner's login in "
        f"DATABASE_OWNER_URL for migrations and backups, or start anyway with {switch}=true"
    )


async def _check_clocks(connection: Connection) -> None:
    """A moved clock in production would hand out leases that never end."""
    genuine = await connection.fetchval(
        """
        select count(*) = 2 and bool_and(
                coalesce(pg_get_function_sqlbody(p.oid), '') = 'RETURN statement_timestamp()' and p.provolatile = 's')
            or (select purpose = 'test' from payonce.installation)
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = 'payonce' and p.proname in ('due_now', 'lease_now')
        """
    )
    if not genuine:
        raise Unavailable(
            "the clock functions of this database were replaced, and it is not marked as a test database; "
            "restore payonce.due_now() and payonce.lease_now() from engine/migrations/0001_clocks.sql"
        )
