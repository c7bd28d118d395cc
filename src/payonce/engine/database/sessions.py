"""Sessions with PostgreSQL: one function opens them, applies the settings after connecting, and verifies them.

The settings are not start-up parameters: PgBouncer refuses those, or is configured to drop them silently.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from payonce.engine.database.hosts import connect_to_any
from payonce.engine.database.migrate import SERVICE_ROLE, check_server
from payonce.engine.database.pipeline import PipeliningConnection
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Unavailable
from payonce.kit.postgres_hosts import hosts_of

CONNECT_TIMEOUT_S: Final = 10.0
COMMAND_TIMEOUT_S: Final = 60.0
LOCK_TIMEOUT_S: Final = 10.0
PROBE_ROUNDS: Final = 4

DURABLE: Final = {"synchronous_commit": "on"}
"""Set in every session, whatever the defaults of the role, the database or the server."""
DURABLE_VALUES: Final = ("on", "remote_apply")
"""`local` and `remote_write` acknowledge commits that a promoted standby may not have."""

_BACKEND: Final = "pg_backend_pid(), (select backend_start from pg_stat_get_activity(pg_backend_pid()))"
TOKEN_SETTING: Final = "payonce.session"  # noqa: S105 - no secret: it tells sessions apart
_SET_TOKEN: Final = f"current_setting('{TOKEN_SETTING}', true), set_config('{TOKEN_SETTING}', {{token}}, false)"
_WHICH_SESSION: Final = f"select pg_backend_pid(), current_setting('{TOKEN_SETTING}', true)"
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

FIRST_OID_OF_USERS: Final = 16_384
"""Below this, object ids are PostgreSQL's own and the same in every database of a major version."""
_built_in_types: dict[tuple[int, int], asyncpg.Record] = {}
"""By major version and object id."""
_NO_STATEMENT: Final = SimpleNamespace(name="none was needed")
"""What the driver reads of an introspection statement: only whether it replaced the unnamed statement."""

CONNECT_ERRORS: Final = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    TimeoutError,
    ValueError,
)
_STATEMENT_LOST: Final = (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError)


Connection = asyncpg.Connection | PoolConnectionProxy


class PlainConnection(PipeliningConnection):
    """A connection that leaves no state in its session, so that returning it to its pool needs no reset round trip."""

    backend_pid: int
    """Pid of the server process; through a pooler it differs from the one that the driver was given."""
    backend_started_at: datetime
    session_token: str

    @property
    def is_pooled(self) -> bool:
        """Whether a pooler is in between: it gives its clients process ids of its own."""
        return self.backend_pid != self.get_server_pid()

    def get_reset_query(self) -> str:
        return ""

    async def begin_session(self, settings: Mapping[str, str]) -> None:
        """Applies the settings. Raises Unavailable if they are not in effect, or if the session was reused without a
        reset."""
        names = list(settings)
        values = ", ".join(f"set_config({_quoted(name)}, {_wanted(name, settings[name])}, false)" for name in names)
        token = _SET_TOKEN.format(token=_quoted(new_id().hex))
        # The parent's method: subclasses count the statements of callers, and this is not one.
        found = await super().fetchrow(f"select {_BACKEND}, {token}, {values}", timeout=CONNECT_TIMEOUT_S)
        assert found is not None
        self.backend_pid, self.backend_started_at, left_behind, self.session_token, *in_effect = found
        if left_behind:
            raise shared_session("a new connection has another session's settings")
        for name, value in zip(names, in_effect, strict=True):
            if not _is_in_effect(name, settings[name], value):
                raise Unavailable(
                    f"{name} of a new session is {value!r} although it was set to {settings[name]!r}; "
                    "point DATABASE_URL at PostgreSQL itself, or at a pooler that passes SET on"
                )

    def itself(self) -> Self:
        """The connection behind a pool's proxy, which drops a lost connection."""
        return self

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> tuple[Any, Any]:  # noqa: ASYNC109
        """Caches the array types of built-in types per process. The driver would ask for them on every connection, at 8
        to 14 ms of server time each, measured."""
        major = self.get_server_version().major
        if all((major, oid) in _built_in_types for oid in typeoids):
            return [_built_in_types[major, oid] for oid in typeoids], _NO_STATEMENT
        driver: Any = super()
        types, statement = await driver._introspect_types(typeoids, timeout)
        _built_in_types.update({(major, row["oid"]): row for row in types if row["oid"] < FIRST_OID_OF_USERS})
        return types, statement


def plain(connection: Connection) -> PlainConnection:
    """The connection behind a pool's proxy."""
    return cast(PlainConnection, connection).itself()


async def open_session(
    url: str,
    settings: Mapping[str, str] | None = None,
    *,
    timeout: float = CONNECT_TIMEOUT_S,  # noqa: ASYNC109 - the driver's own
    command_timeout: float = COMMAND_TIMEOUT_S,
    connection_class: type[PlainConnection] = PlainConnection,
    **options: Any,
) -> PlainConnection:
    """A connection with the settings in effect. Raises the driver's errors; `connect` raises readable ones."""
    connection = cast(
        PlainConnection,
        await connect_to_any(
            url, timeout=timeout, command_timeout=command_timeout, connection_class=connection_class, **options
        ),
    )
    try:
        await connection.begin_session({**DURABLE, **(settings or {})})
    except _STATEMENT_LOST as error:
        connection.terminate()
        raise shared_session("a prepared statement was lost in the next round trip") from error
    except TimeoutError as error:
        connection.terminate()
        raise Unavailable(
            f"{described(url)} accepted a connection but did not answer on it within {CONNECT_TIMEOUT_S:g} s; if "
            "it is a pooler, its pool is exhausted: raise its pool_size to the number of sessions of all "
            "processes"
        ) from error
    except BaseException:
        connection.terminate()
        raise
    return connection


async def connect(url: str, settings: Mapping[str, str] | None = None) -> PlainConnection:
    """A connection outside any pool. Raises Unavailable, with the remedy, if none can be opened."""
    try:
        return await open_session(url, settings)
    except CONNECT_ERRORS as error:
        raise unreachable(url, error) from error


async def session_settings(url: str, shortest_lease_s: float, application_name: str) -> dict[str, str]:
    """The settings of every session, after checking the server, the role's rights and a possible pooler."""
    settings = {
        "application_name": application_name,
        "timezone": "UTC",
        "lock_timeout": f"{int(min(LOCK_TIMEOUT_S, shortest_lease_s / 2) * 1000)}",
        # A process stopped inside a transaction must release its locks before its leases end.
        "idle_in_transaction_session_timeout": f"{int(shortest_lease_s / 2 * 1000)}",
        # These apply to the server's own connection. Through a pooler that is the pooler's, which must watch its
        # clients itself.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "3",
        # The statements here are short and alike; compiling them would cost more than it saves.
        "jit": "off",
    }
    connection = await connect(url)
    try:
        await check_server(connection)
        if connection.is_pooled:
            await _refuse_shared_sessions(url, connection)
        if await connection.fetchval(MAY_DO_TOO_MUCH) and await connection.fetchval(_HAS_SERVICE_ROLE, SERVICE_ROLE):
            settings["role"] = SERVICE_ROLE
    finally:
        await connection.close()
    return settings


async def _refuse_shared_sessions(url: str, first: PlainConnection) -> None:
    """Raises unless the pooler keeps one server connection per client.

    Two clients alternate. A pooler that reassigns connections after each transaction gives the second client the one
    that the first just left or, if it rotates them, gives the first a different one next time.
    """
    second = await connect(url)
    try:
        if second.backend_pid == first.backend_pid:
            raise shared_session(f"two connections share the server process {first.backend_pid}")
        for _ in range(PROBE_ROUNDS):
            await _check_same_session(first)
            async with second.transaction():
                await _check_same_session(second)
                async with first.transaction():
                    await _check_same_session(first)
            await _check_same_session(second)
    except _STATEMENT_LOST as error:
        raise shared_session("a prepared statement was lost in the next transaction") from error
    except TimeoutError as error:
        raise shared_session("an open connection had to wait for a server connection") from error
    except asyncpg.ProtocolViolationError as error:
        # In statement mode PgBouncer refuses BEGIN.
        raise shared_session(f"it answered {_short(error)!r}") from error
    finally:
        second.terminate()


async def _check_same_session(connection: PlainConnection) -> None:
    row = await connection.fetchrow(_WHICH_SESSION, timeout=CONNECT_TIMEOUT_S)
    assert row is not None
    if tuple(row) != (connection.backend_pid, connection.session_token):
        raise shared_session(
            f"a session of server process {connection.backend_pid} continued in {row[0]}, or was reset"
        )


def shared_session(evidence: str) -> Unavailable:
    return Unavailable(
        f"the pooler in front of PostgreSQL shares server connections between sessions ({evidence}), so settings, "
        "LISTEN and prepared statements are lost; set pool_mode = session and server_reset_query = DISCARD ALL in it, "
        "or point DATABASE_URL at PostgreSQL itself"
    )


MAY_DO_TOO_MUCH: Final = """
    select (select rolsuper from pg_roles where rolname = current_user)
        or exists (select from pg_namespace where nspname = 'payonce' and nspowner = current_user::regrole)
"""
_HAS_SERVICE_ROLE: Final = (
    "select exists (select from pg_roles where rolname = $1 and pg_has_role(current_user, oid, 'member'))"
)


def unreachable(url: str, error: BaseException) -> Unavailable:
    return Unavailable(f"cannot connect to {described(url)}: {_short(error)}; {_way_out(error)}")


def described(url: str) -> str:
    """The URL without its password, for display."""
    parts = urlsplit(url)
    if "@" in parts.path:
        return "PostgreSQL at an unreadable address"
    if not parts.hostname:
        where = "a local socket" if parts.scheme.startswith("postgres") else "an unreadable address"
        return f"PostgreSQL at {where}{parts.path}"
    return f"PostgreSQL at {_hosts(url)}{parts.path}"


def _wanted(name: str, value: str) -> str:
    """The setting as SQL. An operator's choice of the one stronger value is kept."""
    if name == "synchronous_commit" and value == "on":
        return "case current_setting('synchronous_commit') when 'remote_apply' then 'remote_apply' else 'on' end"
    return _quoted(value)


def _is_in_effect(name: str, wanted: str, found: str) -> bool:
    if name.startswith("tcp_keepalives_"):
        # They do not apply to Unix sockets, for which the server shows 0.
        return True
    if name == "synchronous_commit" and wanted == "on":
        return found in DURABLE_VALUES
    return found == wanted or (wanted.isdigit() and _in_milliseconds(found) == int(wanted))


def _in_milliseconds(shown: str) -> int | None:
    """The server shows durations in the largest unit that fits."""
    number = shown.rstrip("mshind")
    scale = _MILLISECONDS.get(shown[len(number) :])
    return int(number) * scale if number.isdigit() and scale else None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _short(error: BaseException) -> str:
    if isinstance(error, ValueError):
        # The driver quotes the unreadable part, which may be the password.
        return "its address cannot be read"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text[:200]


def _way_out(error: BaseException) -> str:
    if isinstance(error, (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError)):
        return "check the user, password and database name in DATABASE_URL"
    if isinstance(error, (ValueError, asyncpg.InterfaceError)):
        return "DATABASE_URL has the form postgresql://user@host:5432/database"
    return "is the server running, and does DATABASE_URL name it?"


def _hosts(url: str) -> str:
    try:
        hosts = hosts_of(url)
    except ValueError:
        return urlsplit(url).hostname or ""
    # A single host is shown as written, with its port if that was given.
    return ",".join(map(str, hosts)) if len(hosts) > 1 or urlsplit(url).port else hosts[0].name
