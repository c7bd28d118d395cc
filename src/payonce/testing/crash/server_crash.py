"""Crashes of the PostgreSQL server under a process that lives on, and servers that can be crashed.

One backend is killed. The server then ends all sessions, replays its log and starts again by itself, as with
`restart_after_crash = on` in production. What a transaction had written without a COMMIT is gone, and so is any trace
of its id: the server hands that id out again to the next writer.
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
    # Only a COMMIT may write the log out. The log survives the crash as far as it is written, and a transaction whose
    # records are in it keeps its id; these would write it out at moments of their own.
    "wal_writer_delay": "10s",
    "bgwriter_lru_maxpages": "0",
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
}
SETTINGS: Final = {
    **QUICK_SETTINGS,
    **QUIET,
    "restart_after_crash": "on",
    # Without standby snapshots, which wake the log's writer every 15 seconds.
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
RESTART_WITHIN_S: Final = 30.0
OTHER_WRITES: Final = 3
"""Transactions of other clients after a crash in which no id was lost."""
IDS_TAKEN_MAX: Final = 10_000
OTHERS_TABLE: Final = "create table written_by_others (id bigint generated always as identity)"


class Session:
    """A connection of the explorer's own. It has the methods of the driver's connection, on the one that is open now:
    the objects that hold a session need not know that the server was restarted."""

    def __init__(self, url: str, connection_class: type[asyncpg.Connection] = asyncpg.Connection) -> None:
        self._url = url
        self._connection_class = connection_class
        self._connection: asyncpg.Connection | None = None

    def __getattr__(self, name: str) -> Any:
        assert self._connection is not None, "a session is opened before it is used"
        return getattr(self._connection, name)

    async def open(self) -> "Session":
        """Opens it, or opens it again."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = await asyncpg.connect(self._url, connection_class=self._connection_class)
        return self

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


async def crash_server(superuser: Session) -> None:
    """Kills the superuser's own backend, and returns when the server has restarted and the session is open again."""
    before = await superuser.fetchval(_CHECKPOINTER)
    os.kill(superuser.get_server_pid(), signal.SIGKILL)

    async def restarted() -> bool:
        # A server that has not noticed yet still lets clients in, to end them a moment later.
        try:
            await superuser.open()
            return await superuser.fetchval(_CHECKPOINTER) not in (None, before)
        except BROKEN:
            return False

    await eventually(restarted, RESTART_WITHIN_S, "the restart of the crashed server")


async def open_transaction_id(superuser: Session, application_name: str) -> int | None:
    """The id of the transaction that a process has open; None when it has none, or has written nothing in it."""
    found: int | None = await superuser.fetchval(
        "select max(backend_xid::text::bigint) from pg_stat_activity where application_name = $1", application_name
    )
    return found


async def take_transaction_ids(superuser: Session, lost: int | None) -> bool:
    """Commits as other clients do, until `lost` is among the ids or has been passed; answers whether it is."""
    for taken in range(1, IDS_TAKEN_MAX + 1):
        newest = await superuser.fetchval(_WRITE)
        if lost is None and taken == OTHER_WRITES:
            return False
        if lost is not None and newest >= lost:
            return bool(newest == lost)
    raise AssertionError(f"transaction {lost} is not reached after {IDS_TAKEN_MAX} others; the newest is {newest}")


@contextmanager
def crashable_servers(count: int) -> Iterator[list[ScratchServer]]:
    """Servers that nobody else uses: a crash ends every session of its server."""
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
