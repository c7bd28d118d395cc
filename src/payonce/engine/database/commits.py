"""Transactions whose outcome is known even when the answer to COMMIT is lost.

A transaction that writes also writes a random token. When the answer to its COMMIT is lost, the token is looked for on
a new connection, once the old session is gone and can no longer commit. Transaction ids prove nothing: a server that
crashed or was promoted assigns them again, and would answer for another transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import asyncpg
from asyncpg.transaction import Transaction

from payonce.engine.database.sessions import CONNECT_ERRORS, Connection, PlainConnection, plain
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable

LOOK_AGAIN_S: Final = 0.1
LOOK_AGAIN_MAX_S: Final = 2.0
FATE_LIMIT_S: Final = 300.0
"""How long the outcome of a COMMIT is looked for: long enough for crash recovery or the promotion of a standby."""
TOKENS_KEPT_S: Final = 7_200.0
"""Many times FATE_LIMIT_S: a token exists when it is looked for, unless the server's clock is stepped by hours."""
FORGET_BATCH: Final = 50_000

LOST_ANSWERS: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    TimeoutError,
)
"""Errors of a COMMIT that may have been carried out nevertheless."""
UNREACHABLE: Final = (*CONNECT_ERRORS, Unavailable)

log = get_logger(__name__)

_open: "ContextVar[_Open | None]" = ContextVar("open transaction", default=None)


class Connector(Protocol):
    """Opens connections; implemented by Database."""

    async def connect(self, **settings: str) -> PlainConnection: ...


class HasWorkPool(Protocol):
    """Has a pool for background work; implemented by Database."""

    @property
    def work(self) -> asyncpg.Pool: ...


@dataclass
class _Open:
    database: object
    connection: Connection
    token: UUID
    token_is_written: bool = False
    ended: bool = False


class Session(NamedTuple):
    """One server process. The pid alone is not enough, since another process may have it by now."""

    pid: int
    started_at: datetime


@asynccontextmanager
async def settled_transaction(database: Connector, connection: Connection) -> AsyncIterator[None]:
    """A transaction that is committed when this returns and not committed when this raises, even if the answer to
    COMMIT is lost. Raises Unavailable when the outcome could not be determined within FATE_LIMIT_S. After a
    cancellation during COMMIT the outcome is unknown."""
    own = plain(connection)
    await own.prepare_ahead(_MARK_COMMIT)
    own.begin_late()
    transaction = connection.transaction()
    await transaction.start()
    opened = _Open(database, connection, new_id())
    outer = _open.set(opened)
    try:
        yield
        if not own.is_closed() and not own.is_in_transaction():
            raise RuntimeError("a statement ended the transaction: leave BEGIN, COMMIT and ROLLBACK to the engine")
    except BaseException:
        await _roll_back(own, transaction)
        raise
    finally:
        # Tasks started inside keep this context and may outlive the transaction.
        opened.ended = True
        _open.reset(outer)
    await _commit(database, own, transaction, opened)


def transaction_of(database: Connector) -> Connection | None:
    """The connection of the caller's transaction, if it has one in this database."""
    found = _open.get()
    return found.connection if found is not None and found.database is database and not found.ended else None


def token_to_write(connection: Connection) -> UUID:
    """The token of this connection's open transaction. The caller writes it with a statement of its own."""
    opened = _open.get()
    assert opened is not None and opened.connection is connection, "the token belongs to another transaction"
    opened.token_is_written = True
    return opened.token


@contextmanager
def outside_transactions() -> Iterator[None]:
    """For work that is unrelated to the transaction of its caller."""
    outer = _open.set(None)
    try:
        yield
    finally:
        _open.reset(outer)


async def _commit(database: Connector, connection: PlainConnection, transaction: Transaction, opened: _Open) -> None:
    session = Session(connection.backend_pid, connection.backend_started_at)
    try:
        if not opened.token_is_written:
            await connection.send_ahead(_MARK_COMMIT, opened.token)
        await transaction.commit()
    except LOST_ANSWERS as error:
        connection.terminate()
        committed = await was_committed(database, session, opened.token)
        log.warning("commit_answer_lost", error=type(error).__name__, committed=committed)
        if not committed:
            raise
    except BaseException:
        if connection.is_in_transaction():
            connection.terminate()
        raise


async def was_committed(database: Connector, session: Session, token: UUID) -> bool:
    """Whether the transaction with this token was committed. Returns only once its session is gone."""
    try:
        async with asyncio.timeout(FATE_LIMIT_S):
            wait_s = LOOK_AGAIN_S
            while True:
                if (found := await _find(database, session, token)) is not None:
                    return found
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LOOK_AGAIN_MAX_S)
    except TimeoutError as error:
        raise Unavailable(
            f"the answer to a COMMIT was lost, and its outcome could not be determined within {FATE_LIMIT_S:g} s: "
            f"the database did not answer, or its process {session.pid} did not end; nothing was done after it"
        ) from error


async def _find(database: Connector, session: Session, token: UUID) -> bool | None:
    """None while it is uncertain."""
    try:
        connection = await database.connect()
    except UNREACHABLE:
        return None
    try:
        found_session = await connection.fetchrow(_IS_ALIVE, session.pid, session.started_at)
        assert found_session is not None
        standby, alive = found_session
        if alive:
            await _terminate(connection, session)
        if standby or alive:
            # A standby may not have replayed the COMMIT yet, and a live session may still carry it out.
            return None
        # A separate statement, so that its snapshot is taken after the session was seen to be gone.
        found: bool = await connection.fetchval("select exists (select from payonce.commits where token = $1)", token)
        if found:
            await connection.execute(_REPLICATE)
        return found
    except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedTableError):
        raise
    except UNREACHABLE:
        return None
    finally:
        connection.terminate()


async def _terminate(connection: Connection, session: Session) -> None:
    """Terminates a session that has no client any more. Without the right to do so, the session's own time-outs
    end it."""
    with suppress(asyncpg.InsufficientPrivilegeError):
        await connection.execute("select pg_terminate_backend($1)", session.pid)


async def forget_tokens(database: HasWorkPool) -> int:
    """Deletes expired tokens; returns how many."""
    forgotten = 0
    while True:
        tag = await database.work.execute(
            """
            delete from payonce.commits where ctid = any(array(
                select ctid from payonce.commits
                where written_at < payonce.lease_now() - make_interval(secs => $1::float8) limit $2))
            """,
            TOKENS_KEPT_S,
            FORGET_BATCH,
        )
        deleted = int(tag.split()[-1])
        forgotten += deleted
        if deleted < FORGET_BATCH:
            return forgotten


async def _roll_back(connection: PlainConnection, transaction: Transaction) -> None:
    """Raises nothing, so that the caller can raise the original error. A cancellation meanwhile gives way to that error
    too."""
    try:
        await transaction.rollback()
    except (Exception, asyncio.CancelledError):
        # Without its session the transaction ends, and the pool does not reuse the session.
        connection.terminate()


# A transaction that wrote nothing has nothing to lose and leaves no token.
_MARK_COMMIT: Final = """
    insert into payonce.commits (token) select $1::uuid where pg_current_xact_id_if_assigned() is not null"""

# A commit that was cancelled while it waited for a synchronous standby, as by our own time-out, exists on the primary
# only. WAL has a single order: once this later commit is acknowledged, the standby has the earlier one too.
_REPLICATE: Final = "select pg_logical_emit_message(true, 'payonce', '')"

# A role sees the start time of its own sessions only; for others the pid has to suffice.
_IS_ALIVE: Final = """
    select pg_is_in_recovery(), exists (
        select from pg_stat_activity where pid = $1 and coalesce(backend_start = $2, true))"""
