"""A primary and a streaming standby for tests: real servers that can be crashed, promoted and rejoined.

    with Cluster.make(migrations, synchronous=True) as cluster:
        database = cluster.database()       # its URLs name both servers
        cluster.crash_primary()             # kill -9, all processes at once
        cluster.promote()
        cluster.rejoin()                    # a fresh standby in place of the dead server

The methods block: inside an event loop call them in a thread.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import asyncpg

from payonce.embedded import Installation, Server, find_installations, reset, start
from payonce.embedded.account import reachable_installation
from payonce.embedded.cluster import PORT
from payonce.embedded.home import find_home, make_home, make_socket_folder
from payonce.embedded.postgres import untie
from payonce.embedded.postmaster import is_alive, wait_until
from payonce.embedded.roles import SUPERUSER
from payonce.engine.database.migrate import Migration
from payonce.kit.outcomes import Unavailable
from payonce.testing.servers import OWNER, QUICK_SETTINGS, ScratchDatabase, ScratchServer, make_folder

BACKUP_LIMIT_S: Final = 60.0
STREAMING_LIMIT_S: Final = 30.0
PROMOTE_LIMIT_S: Final = 30.0
DEATH_LIMIT_S: Final = 10.0
ANSWER_LIMIT_S: Final = 10.0
NODES: Final = ("a", "b")
FOLDER_PREFIX: Final = "payonce-cluster-"
SETTINGS: Final = {
    **QUICK_SETTINGS,
    "synchronous_commit": "on",
    # In the data folder, which is deleted: a killed server's shared memory would remain.
    "dynamic_shared_memory_type": "mmap",
    # The default of five seconds between attempts to reach the primary would make every test that much longer.
    "wal_retrieve_retry_interval": "100ms",
}


@dataclass
class Cluster:
    """A primary and its standby, which is None between a promotion and a rejoin."""

    folder: Path
    installation: Installation
    migrations: Sequence[Migration]
    synchronous: bool
    primary: Server
    settings: Mapping[str, str]
    standby: Server | None = None
    _scratch: ScratchServer = field(init=False)

    def __post_init__(self) -> None:
        self._scratch = ScratchServer(self.primary, self.migrations)

    @classmethod
    def make(
        cls,
        migrations: Sequence[Migration],
        *,
        synchronous: bool,
        installation: Installation | None = None,
        folder: Path | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> "Cluster":
        """Starts two servers in a new folder. A synchronous primary answers a COMMIT only once the standby has it."""
        chosen = installation or replicating_installation()
        chosen_folder, all_settings = folder or make_folder(FOLDER_PREFIX), {**SETTINGS, **settings}
        primary = start(chosen_folder / NODES[0], binaries=chosen, settings=all_settings, tie_to_parent=True)
        cluster = cls(chosen_folder, chosen, migrations, synchronous, primary, all_settings)
        try:
            cluster.rejoin()
        except BaseException:
            cluster.close()
            raise
        return cluster

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def database(self) -> ScratchDatabase:
        """A migrated database. Its URLs name both servers and lead to the one that accepts writes."""
        return self.urls(self._scratch.database().name)

    def empty_database(self) -> ScratchDatabase:
        """A database without payonce's schema."""
        name = f"scratch_{uuid4().hex}"
        self.execute(f"create database {name} owner {OWNER} template template0")
        return self.urls(name)

    def urls(self, name: str) -> ScratchDatabase:
        """The URLs of a database, which name both servers."""
        at = self._scratch.urls(name)
        return ScratchDatabase(name, *map(self._at_both, (at.owner_url, at.service_url, at.superuser_url)))

    def execute(self, statement: str) -> None:
        """Runs a statement as superuser, outside any scratch database."""
        _ask(self.primary, statement)

    def drop(self, database: ScratchDatabase) -> None:
        self._scratch.drop(database)

    def hold_replication(self) -> None:
        """Stops the process that sends to the standby: later commits are lost with the primary. A synchronous primary
        answers no further COMMIT."""
        self._signal_senders(signal.SIGSTOP)

    def resume_replication(self) -> None:
        self._signal_senders(signal.SIGCONT)

    def crash_primary(self) -> None:
        """Kills every process of the primary at once, like a power failure."""
        _kill(self.primary)

    def promote(self) -> None:
        """Promotes the standby; returns when it accepts writes. The old primary must be dead."""
        promoted, self.standby = self.standby, None
        if promoted is None:
            raise AssertionError("the cluster has no standby to promote: call rejoin() first")
        if not _ask(promoted, f"select pg_promote(true, {PROMOTE_LIMIT_S:.0f})", PROMOTE_LIMIT_S):
            raise AssertionError(f"the standby was not promoted within {PROMOTE_LIMIT_S:g} s; see {promoted.log_path}")
        self.primary = promoted
        self._scratch.close()
        self._scratch = replace(self._scratch, server=promoted)

    def rejoin(self) -> None:
        """Replaces the dead server with a fresh standby of the primary."""
        name = next(each for each in NODES if self.folder / each != self.primary.data_dir)
        reset(self.folder / name)
        self._copy_primary(name)
        source = f"host={_socket_folder(self.primary)} user={SUPERUSER} application_name={name}"
        settings = {**self.settings, "primary_conninfo": source}
        self.standby = start(self.folder / name, binaries=self.installation, settings=settings, tie_to_parent=True)
        # In the configuration file, not on the command line: after a promotion there is no standby to wait for.
        _ask(self.primary, f"alter system set synchronous_standby_names = '{name if self.synchronous else ''}'")
        _ask(self.primary, "select pg_reload_conf()")
        wanted = "sync" if self.synchronous else "async"
        _wait_until(lambda: self._replication() == [wanted], STREAMING_LIMIT_S, f"the standby streams ({wanted})")

    def close(self) -> None:
        self._scratch.close()
        for server in (self.primary, self.standby):
            # Killed, not stopped: a primary whose replication is held would wait for its standby.
            if server is not None and is_alive(server.pid):
                _kill(server)
        delete_nodes(self.folder)

    def _signal_senders(self, how: signal.Signals) -> None:
        for pid in _ask(self.primary, "select array_agg(pid) from pg_stat_replication"):
            os.kill(pid, how)

    def _replication(self) -> list[str]:
        """The state of each streaming standby: sync or async."""
        found = _ask(self.primary, "select array_agg(sync_state) from pg_stat_replication where state = 'streaming'")
        return found or []

    def _copy_primary(self, name: str) -> None:
        home = find_home(self.folder / name)
        make_home(home)
        programs = reachable_installation(self.installation, home.account)
        home.cluster.mkdir(mode=0o700)
        home.account.take(home.cluster)
        command: list[str | Path] = [programs.program("pg_basebackup"), "-D", home.cluster, "-c", "fast", "--no-sync"]
        command += ["-h", _socket_folder(self.primary), "-U", SUPERUSER]
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=BACKUP_LIMIT_S, check=False, **home.account.spawn_options()
        )
        if completed.returncode != 0:
            raise AssertionError(f"pg_basebackup failed: {completed.stderr.strip()}")
        (home.cluster / "standby.signal").touch()
        home.account.take(home.cluster / "standby.signal")

    def _at_both(self, url: str) -> str:
        """The URL with both servers, always in the same order, as in an operator's setting."""
        parts = urlsplit(url)
        folders = [str(make_socket_folder(find_home(self.folder / name))) for name in NODES]
        ports = ",".join([str(PORT)] * len(NODES))
        where = f"host={','.join(folders)}&port={ports}"
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{where}&target_session_attrs=read-write"


def delete_nodes(folder: Path) -> None:
    """Stops the servers in a cluster's folder, if they run, and deletes it."""
    for name in NODES:
        reset(folder / name)
    folder.rmdir()


def replicating_installation() -> Installation:
    """The preferred installation that can create a standby; raises Unavailable if there is none."""
    for found in replicating_installations():
        return found
    raise Unavailable(
        "no PostgreSQL with pg_basebackup was found, which a standby needs: install the distribution's package "
        "postgresql"
    )


def replicating_installations() -> list[Installation]:
    """Installations that can create a standby, the preferred one first."""
    return [found for found in find_installations() if (found.bin / "pg_basebackup").exists()]


def _socket_folder(server: Server) -> str:
    return parse_qs(urlsplit(server.superuser_url).query)["host"][0]


def _kill(server: Server) -> None:
    # A stopped postmaster cannot restart the server when its children die.
    os.kill(server.pid, signal.SIGSTOP)
    victims = [*_children_of(server.pid), server.pid]
    for pid in victims:
        # A backend whose client has disconnected may end by itself.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: not any(map(is_alive, victims)), DEATH_LIMIT_S, f"the processes of {server.data_dir} end")
    untie(server.pid)


def _ask(server: Server, statement: str, limit_s: float = ANSWER_LIMIT_S) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(server.superuser_url, timeout=ANSWER_LIMIT_S, command_timeout=limit_s)
        try:
            return await connection.fetchval(statement)
        finally:
            connection.terminate()

    # In a separate thread, because the caller may be inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="payonce-testing") as thread:
        return thread.submit(asyncio.run, ask()).result()


def _children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # Processes may end meanwhile. The name in brackets may contain spaces and brackets.
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    if not wait_until(condition, limit_s):
        raise AssertionError(f"not within {limit_s:g} s: {what}")
