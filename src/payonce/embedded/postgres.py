"""The launcher of a private PostgreSQL, which starts from a folder, outlives its starter, and is adopted by the next
one.

A server runs until `stop`, whoever started it: several commands share it. `tie_to_parent` is for tests: the server then
ends with the process that started it, however that ends.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from payonce.embedded.account import reachable_installation
from payonce.embedded.binaries import Installation
from payonce.embedded.cluster import PORT, SHOWN_LINES, checked_settings, ensure_cluster, installation_for
from payonce.embedded.home import (
    Home,
    delete_home,
    delete_socket_folder,
    find_home,
    make_home,
    make_socket_folder,
    probe_space,
    starter_lock,
    take_server_lock,
)
from payonce.embedded.postmaster import Postmaster, clear_remains, is_alive, settle_postmaster, stop_postmaster
from payonce.embedded.roles import DATABASE, OWNER, SERVICE, SUPERUSER, ServerEndedError, prepare_when_ready
from payonce.kit.outcomes import Unavailable

# After a crash under load at most max_wal_size is replayed: in seconds, on slow disks in a minute.
START_LIMIT_S = 120.0
# Longer than any start or stop, so that waiting processes see its result.
LOCK_LIMIT_S = 300.0
LOG_LIMIT_BYTES = 16 * 1024 * 1024

# The shell ends at once, so init adopts the server, and no zombie remains with a caller that never waits for it.
LAUNCH_SCRIPT = '"$@" </dev/null >&2 & echo $!'
# Standard input is a pipe from the caller: end of file means that the caller has ended.
TIE_SCRIPT = 'read -r _; grep -qsF -e "$2" "/proc/$1/cmdline" && kill -INT "$1"'
_ties: dict[int, "subprocess.Popen[bytes]"] = {}


@dataclass(frozen=True, slots=True)
class Server:
    """A running embedded server."""

    owner_url: str
    service_url: str
    superuser_url: str
    data_dir: Path
    pid: int
    started: bool
    log_path: Path


def start(
    data_dir: Path,
    *,
    binaries: Installation | Path | None = None,
    settings: Mapping[str, str] | None = None,
    tie_to_parent: bool = False,
) -> Server:
    """Starts the server of this data folder, or adopts the running one.

    `settings` and `tie_to_parent` apply only to a start. Blocks; may be called inside a running event loop.
    """
    if not Path("/proc/self").exists():
        raise Unavailable("the embedded PostgreSQL needs Linux and its /proc: set DATABASE_URL")
    chosen = checked_settings(settings or {})
    home = find_home(data_dir)
    make_home(home)
    with starter_lock(home, LOCK_LIMIT_S):
        trim_log(home.log_path)
        running = settle_postmaster(home)
        if running is not None and _await_ready(home, running):
            return _server(home, running, started=False)
        clear_remains(home)
        probe_space(home)
        installation = reachable_installation(installation_for(home, binaries), home.account)
        ensure_cluster(home, installation, durable=chosen["fsync"] != "off")
        return _server(home, _launch(home, installation, chosen, tie=tie_to_parent), started=True)


def stop(server: Server | Path) -> bool:
    """Stops the server, after a start in progress. Returns False if none was running."""
    home = find_home(server.data_dir if isinstance(server, Server) else server)
    if not home.folder.exists():
        return False
    with starter_lock(home, LOCK_LIMIT_S):
        return _stop(home)


def reset(data_dir: Path) -> None:
    """Stops the server and deletes all its data."""
    home = find_home(data_dir)
    if home.folder.exists():
        with starter_lock(home, LOCK_LIMIT_S):
            _stop(home)
            delete_home(home)


def trim_log(log_path: Path) -> None:
    """Trims a log to LOG_LIMIT_BYTES, and keeps as much of the previous part next to it.

    Done at every start and adoption; a long-running caller may do it, too. The server only appends, so it is not
    affected.
    """
    try:
        if log_path.stat().st_size > LOG_LIMIT_BYTES:
            with log_path.open("rb+") as log:
                log.seek(-LOG_LIMIT_BYTES, os.SEEK_END)
                log_path.with_name(f"{log_path.name}.1").write_bytes(log.read(LOG_LIMIT_BYTES))
                log.truncate(0)
    except FileNotFoundError:
        pass


def _stop(home: Home) -> bool:
    running = settle_postmaster(home)
    if running is not None:
        stop_postmaster(running.pid, home)
        untie(running.pid)
    clear_remains(home)
    delete_socket_folder(home)
    return running is not None


def _launch(home: Home, installation: Installation, settings: Mapping[str, str], *, tie: bool) -> Postmaster:
    log_start_bytes = home.log_path.stat().st_size if home.log_path.exists() else 0
    launched = _spawn(home, installation, settings)
    if tie:
        _tie(home, launched)
    if not _await_ready(home, launched):
        untie(launched.pid)
        raise Unavailable(f"PostgreSQL did not start in {home.folder}: {_log_since(home, log_start_bytes)}")
    return launched


def _spawn(home: Home, installation: Installation, settings: Mapping[str, str]) -> Postmaster:
    socket_folder = make_socket_folder(home)
    # The folder is exclusive to this server, and none is running: its contents are stale, whatever pid they name.
    for stale in socket_folder.iterdir():
        stale.unlink()
    command: list[str | Path] = ["/bin/sh", "-c", LAUNCH_SCRIPT, "sh", installation.program("postgres")]
    command += ["-D", home.cluster, "-k", socket_folder, "-c", f"hba_file={home.access_path}"]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    lock = take_server_lock(home)
    try:
        log = os.open(home.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with os.fdopen(log, "wb") as log_file:
            shell = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log_file,
                pass_fds=[lock],
                check=True,
                **home.account.spawn_options(),
            )
    except OSError as problem:
        raise home.unwritable(problem) from problem
    finally:
        os.close(lock)
    return Postmaster(pid=int(shell.stdout), port=PORT, socket_folder=socket_folder, ready=False)


def _await_ready(home: Home, postmaster: Postmaster) -> bool:
    """Waits until the server responds and has our roles and database. Returns False if it ended instead."""
    if postmaster.ready and not postmaster.socket.exists():
        raise Unavailable(
            f"the server of {home.folder} (pid {postmaster.pid}) runs, but its socket {postmaster.socket} is gone: "
            "stop it and start again"
        )
    try:
        prepare_when_ready(_url(SUPERUSER, "postgres", postmaster), lambda: is_alive(postmaster.pid), START_LIMIT_S)
    except ServerEndedError:
        return False
    except asyncpg.PostgresError as problem:
        raise Unavailable(
            f"the server of {home.folder} (pid {postmaster.pid}) refuses to be set up: {problem}; see {home.log_path}"
        ) from problem
    except TimeoutError as problem:
        # Not killed: a long recovery would never finish if every starter aborted it.
        raise Unavailable(
            f"the server of {home.folder} (pid {postmaster.pid}) does not answer after {START_LIMIT_S:.0f} s "
            f"({problem}): try again later, or stop it"
        ) from problem
    return True


def _tie(home: Home, postmaster: Postmaster) -> None:
    """Ties the server to this process: a shell waits on a pipe and stops the server when the pipe breaks.

    PR_SET_PDEATHSIG is no alternative: it fires when the starting *thread* ends, not the process.
    """
    _ties[postmaster.pid] = subprocess.Popen(
        ["/bin/sh", "-c", TIE_SCRIPT, "sh", str(postmaster.pid), str(home.cluster)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **home.account.spawn_options(),
    )


def untie(pid: int) -> None:
    """Ends the shell that would stop the server with this process, for a server that is dead or stopping."""
    if tie := _ties.pop(pid, None):
        # Killed, because a forked child may hold the other end of its pipe open.
        tie.kill()
        tie.communicate()


def _server(home: Home, postmaster: Postmaster, *, started: bool) -> Server:
    return Server(
        owner_url=_url(OWNER, DATABASE, postmaster),
        service_url=_url(SERVICE, DATABASE, postmaster),
        superuser_url=_url(SUPERUSER, DATABASE, postmaster),
        data_dir=home.requested,
        pid=postmaster.pid,
        started=started,
        log_path=home.log_path,
    )


def _url(user: str, database: str, postmaster: Postmaster) -> str:
    # The port is explicit because drivers otherwise take it from PGPORT.
    return f"postgresql://{user}@/{database}?host={postmaster.socket_folder}&port={postmaster.port}"


def _log_since(home: Home, start_bytes: int) -> str:
    with home.log_path.open("rb") as log:
        log.seek(start_bytes)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return " / ".join(lines[-SHOWN_LINES:]) or f"its log is empty; see {home.log_path}"
