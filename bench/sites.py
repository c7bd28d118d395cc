"""The servers on which systems are measured, PostgreSQL or Redis: empty and equal for each stage of each system."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from bench import databases
from bench.children import peer_process
from bench.failure import BenchFailed
from bench.journal import Journal
from bench.peers import System
from bench.peers.command import Command
from bench.peers.port import Address
from payonce.embedded.redis import Durability, RedisServer

INSTALL_LIMIT_S = 30.0
SETTLE_LIMIT_S = 60.0
POLL_S = 0.01

# Settings that must be the same for all, and are therefore in the report.
_REDIS_CONDITIONS = ("appendonly", "appendfsync", "save", "maxmemory-policy", "io-threads")


class Site(Protocol):
    """The servers for one backend's systems."""

    def installed(self, system: System) -> AbstractContextManager[None]:
        """Installs the system before its first stage; removes it at the end."""

    def fresh(self, system: System, name: str) -> AbstractContextManager[Address]:
        """A store with the system installed and no jobs; `name` distinguishes two stores of one system."""

    def settle(self) -> None:
        """Settles the servers, so that no phase pays for writes of the previous one."""

    def conditions(self) -> dict[str, str]:
        """The server's settings for the report."""


class PostgresSite:
    """The benchmark's databases on one server, each a copy of a template that is installed once."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url

    @contextmanager
    def installed(self, system: System) -> Iterator[None]:
        try:
            url = databases.recreate(self.server_url, _template(system))
            databases.create_business_table(url)
            _install(system, Address(url, url))
            yield
        finally:
            databases.drop(self.server_url, _template(system))

    @contextmanager
    def fresh(self, system: System, name: str) -> Iterator[Address]:
        database = f"bench_{name}"
        try:
            url = databases.recreate(self.server_url, database, template=_template(system))
            yield Address(url, url)
        finally:
            databases.drop(self.server_url, database)

    def settle(self) -> None:
        databases.checkpoint(self.server_url)

    def conditions(self) -> dict[str, str]:
        return databases.server_conditions(self.server_url)


class RedisSite:
    """A new Redis server for each stage, with the same settings; for payonce also a database."""

    def __init__(self, folder: Path, durability: Durability, beside: PostgresSite) -> None:
        self._folder = folder
        self._durability = durability
        self._beside = beside
        self._running: list[RedisServer] = []

    @contextmanager
    def installed(self, system: System) -> Iterator[None]:
        with self._beside.installed(system) if system.is_ours else ExitStack():
            yield

    @contextmanager
    def fresh(self, system: System, name: str) -> Iterator[Address]:
        with ExitStack() as stack:
            database_url = ""
            if system.is_ours:
                database_url = stack.enter_context(self._beside.fresh(system, name)).url
            server = stack.enter_context(self._server())
            yield Address(server.url, database_url)

    @contextmanager
    def _server(self) -> Iterator[RedisServer]:
        # New instead of emptied: no system pays for another's command log, scripts or fragmentation.
        with tempfile.TemporaryDirectory(prefix="bench-redis-", dir=self._folder) as folder:
            server = RedisServer(Path(folder), self._durability)
            server.start()
            self._running.append(server)
            try:
                yield server
            finally:
                self._running.remove(server)
                server.close()

    def settle(self) -> None:
        self._beside.settle()
        for server in self._running:
            _wait_for_written(server.url)

    def conditions(self) -> dict[str, str]:
        import redis

        with self._server() as server, redis.Redis.from_url(server.url) as client:
            about = client.info("server")
            name = str(about.get("server_name", "redis"))
            version = str(about.get(f"{name}_version", about["redis_version"]))
            settings = client.config_get(*_REDIS_CONDITIONS)
            return {"redis_server": f"{name} {version}", **{key: str(value) for key, value in settings.items()}}


def _install(system: System, at: Address) -> None:
    with tempfile.TemporaryDirectory(prefix="payonce-bench-") as name:
        folder = Path(name)
        Journal.create(folder / "journal")
        with peer_process(system, "driver", at, folder / "journal", folder / "output") as installer:
            installer.ask(Command("install"), INSTALL_LIMIT_S)


def _template(system: System) -> str:
    return f"bench_{system.slug}_template"


def _wait_for_written(url: str) -> None:
    """Waits until the server has written its command log."""
    import redis

    deadline = time.monotonic() + SETTLE_LIMIT_S
    with redis.Redis.from_url(url) as client:
        while True:
            state = client.info("persistence")
            busy = ("aof_pending_bio_fsync", "aof_buffer_length", "aof_rewrite_in_progress")
            if not any(state.get(name) for name in busy):
                return
            if time.monotonic() > deadline:
                raise BenchFailed(f"the Redis server was still writing its log after {SETTLE_LIMIT_S:g} s")
            time.sleep(POLL_S)
