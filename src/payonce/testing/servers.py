"""PostgreSQL servers for a test session, and databases copied from a migrated template for single tests."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from payonce.embedded import Installation, Server, choose_installation, reset, start
from payonce.engine.database.migrate import Migration, migrate

TEMPLATE: Final = "payonce_template"
OWNER: Final = "payonce_owner"
MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - a folder with a random name is made in it
MEMORY_WANTED_BYTES: Final = 2 * 1024**3


def _memory() -> Path | None:
    """A folder in memory, if there is enough: copying a database there takes a tenth of the time."""
    if MEMORY_FOLDER.is_dir() and os.access(MEMORY_FOLDER, os.W_OK):
        space = os.statvfs(MEMORY_FOLDER)
        if space.f_bavail * space.f_frsize >= MEMORY_WANTED_BYTES:
            return MEMORY_FOLDER
    return None


MEMORY: Final = _memory()
NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}
QUICK_SETTINGS: Final = {"shared_buffers": "64MB", **({} if MEMORY else NOT_DURABLE)}
"""In memory, durability takes 3 ms of a copy's 20, so tests run with it. On a disk it takes 0.5 s of each, measured,
and tests need no data after a crash of the machine."""

BROKEN: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ScratchDatabase:
    """The database of one test. `service` is the role that services use, `owner` the one that migrates."""

    name: str
    owner_url: str
    service_url: str
    superuser_url: str


@dataclass
class ScratchServer:
    """A server with a migrated template. Its methods block, and may be called inside a running event loop."""

    server: Server
    migrations: Sequence[Migration]
    _has_template: bool = False
    _admin: "_AdminConnection" = field(init=False)

    def __post_init__(self) -> None:
        self._admin = _AdminConnection(self.server.superuser_url)

    def database(self) -> ScratchDatabase:
        """A new migrated database, copied from the template within milliseconds."""
        if not self._has_template:
            self._admin.wait_for(self._make_template())
            self._has_template = True
        name = f"scratch_{uuid4().hex}"
        # Copying files is faster where nothing waits for a disk.
        self.execute(f"create database {name} owner {OWNER} template {TEMPLATE} strategy file_copy")
        return self.urls(name)

    def empty_database(self) -> ScratchDatabase:
        """A database without payonce's schema, for tests of migrations."""
        name = f"scratch_{uuid4().hex}"
        self.execute(f"create database {name} owner {OWNER} template template0")
        return self.urls(name)

    def drop(self, database: ScratchDatabase) -> None:
        self.execute(f"drop database if exists {database.name} with (force)")

    @contextmanager
    def lent(self) -> Iterator[ScratchDatabase]:
        database = self.database()
        try:
            yield database
        finally:
            self.drop(database)

    def execute(self, statement: str) -> None:
        """Runs a statement as superuser, outside any scratch database."""
        self._admin.execute(statement)

    def close(self) -> None:
        self._admin.close()

    def urls(self, name: str) -> ScratchDatabase:
        server = self.server
        return ScratchDatabase(
            name, *(_with_path(url, name) for url in (server.owner_url, server.service_url, server.superuser_url))
        )

    async def _make_template(self) -> None:
        await self._admin.send(f"create database {TEMPLATE} owner {OWNER} template template0")
        connection = await asyncpg.connect(self.urls(TEMPLATE).owner_url)
        try:
            await migrate(connection, self.migrations)
        finally:
            await connection.close()


@dataclass
class Servers:
    """The servers of one session, each started on first use and ended with the process, however it ends."""

    migrations: Sequence[Migration]
    settings: Mapping[str, str] = field(default_factory=lambda: QUICK_SETTINGS)
    _running: dict[Path, ScratchServer] = field(default_factory=dict)

    def of(self, installation: Installation | None = None) -> ScratchServer:
        """The server of this PostgreSQL installation, or of the preferred one."""
        chosen = installation or choose_installation()
        if chosen.bin not in self._running:
            folder = make_folder("payonce-test-")
            server = start(folder / "pg", binaries=chosen, settings=self.settings, tie_to_parent=True)
            self._running[chosen.bin] = ScratchServer(server, self.migrations)
        return self._running[chosen.bin]

    def close(self) -> None:
        for scratch in self._running.values():
            scratch.close()
            reset(scratch.server.data_dir)
            shutil.rmtree(scratch.server.data_dir.parent)
        self._running.clear()


def make_folder(prefix: str) -> Path:
    """A new folder for servers, in memory if possible."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=MEMORY))
    # As root, the server runs under another account.
    folder.chmod(0o755)
    return folder


def _with_path(url: str, database: str) -> str:
    # Not through urlunsplit: it drops the empty host of a socket's address.
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{database}" + (f"?{parts.query}" if parts.query else "")


class _AdminConnection:
    """A superuser connection for all databases of a server: opening one for each costs as much as a test.

    It lives in a separate thread, because callers may be inside a running event loop. The thread starts on first use: a
    process that forks should have none.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: asyncpg.Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def execute(self, statement: str) -> None:
        self.wait_for(self.send(statement))

    def wait_for(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = Thread(target=self._loop.run_forever, name="payonce-testing", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def send(self, statement: str) -> None:
        if self._connection is not None:
            try:
                await self._connection.execute(statement)
                return
            except BROKEN:
                # A test restarted the server, or ended every session of it.
                self._connection.terminate()
        self._connection = await asyncpg.connect(self._url)
        await self._connection.execute(statement)

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self.wait_for(self._disconnect())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
