"""Crashes of the PostgreSQL server under a running process, and servers for that.

One backend is killed. The server then ends all sessions, replays its log and restarts by itself, as with
`restart_after_crash = on` in production. Uncommitted changes are gone, and so is any trace of their transaction's id:
the server assigns it to the next writer.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import asyncpg

from payonce.testing.eventually import eventually
from payonce.testing.servers import BROKEN, QUICK_SETTINGS, ScratchServer, Servers

QUIET: Final = {
    # Only a COMMIT may flush the log. What is flushed survives the crash, and a transaction with flushed records keeps
    # its id; these processes would flush at times of their own.
    "wal_writer_delay": "10s",
    "bgwriter_lru_maxpages": "0",
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
}
SETTINGS: Final = {
    **QUICK_SETTINGS,
    **QUIET,
    "restart_after_crash": "on",
    # No standby snapshots, which wake the WAL writer every 15 seconds.
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
RESTART_WITHIN_S: Final = 30.0
OTHER_WRITES: Final = 3
"""Other clients' transactions after a crash that lost no id."""
IDS_TAKEN_MAX: Final = 10_000
OTHERS_TABLE: Final = "create table written_by_others (id bigint generated always as identity)"


class Session:
    """A connection of the explorer that survives a server restart: it forwards to the driver's connection that is open
    now, so that its holders need not know of the restart."""

    def __init__(self, url: str, connection_class: type[asyncpg.Connection] = asyncpg.Connection) -> None:
        self._url = url
        self._connection_class = connection_class
        self._connection: asyncpg.Connection | None = None

    def __getattr__(self, name: str) -> Any:
        assert self._connection is not None, "the session is not open"
        return getattr(self._connection, name)

    async def open(self) -> "Session":
        """Opens or reopens the connection."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = await asyncpg.connect(self._url, connection_class=self._connection_class)
        return self

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def crash_server(superuser: Session) -> None:
    """Crashes the server by killing the superuser's own backend; returns when it has restarted and the session is open
    again."""
    before = await superuser.fetchval(_CHECKPOINTER)
    os.kill(superuser.get_server_pid(), signal.SIGKILL)

    async def restarted() -> bool:
        # A server that has not noticed the crash yet accepts clients, and ends them a moment later.
        try:
            await superuser.open()
            return await superuser.fetchval(_CHECKPOINTER) not in (None, before)
        except BROKEN:
            return False

    await eventually(restarted, RESTART_WITHIN_S, "the restart of the crashed server")


async def open_transaction_id(superuser: Session, application_name: str) -> int | None:
    """The id of a process's open transaction; None if there is none, or it has not written."""
    found: int | None = await superuser.fetchval(
        "select max(backend_xid::text::bigint) from pg_stat_activity where application_name = $1", application_name
    )
    return found


async def take_transaction_ids(superuser: Session, lost: int | None) -> bool:
    """Commits like other clients, until `lost` is assigned again or has been passed; returns whether it was
    assigned."""
    for taken in range(1, IDS_TAKEN_MAX + 1):
        newest = await superuser.fetchval(_WRITE)
        if lost is None and taken == OTHER_WRITES:
            return False
        if lost is not None and newest >= lost:
            return bool(newest == lost)
    raise AssertionError(f"transaction {lost} is not reached after {IDS_TAKEN_MAX} others; the newest is {newest}")


@contextmanager
def crashable_servers(count: int) -> Iterator[list[ScratchServer]]:
    """Dedicated servers: a crash ends every session of its server."""
    with ExitStack() as stack:
        running = []
        for _ in range(count):
            servers = Servers((), SETTINGS)
            stack.callback(servers.close)
            server = servers.of()
            server.execute(OTHERS_TABLE)
            running.append(server)
        yield running


_CHECKPOINTER: Final = "select pid from pg_stat_activity where backend_type = 'checkpointer'"
_WRITE: Final = "insert into written_by_others default values returning pg_current_xact_id()::text::bigint"
