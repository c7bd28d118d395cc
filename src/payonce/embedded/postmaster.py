"""The server's main process: found, identified and stopped through the operating system.

A pid in a file proves nothing: it may be a zombie's, or belong to another process by now. Linux's /proc decides.
"""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from payonce.embedded.home import POLL_S, Home, open_lock
from payonce.kit.outcomes import Unavailable

# Idle backends end at once when their postmaster dies; one inside a query continues until it ends.
ORPHAN_GRACE_S = 2.0
FAST_STOP_LIMIT_S = 30.0
IMMEDIATE_STOP_LIMIT_S = 10.0
KILL_LIMIT_S = 10.0
DEAD_STATES = {"Z", "X"}
# Only PostgreSQL's processes: a caller that forked during a start has the lock open, too, and must not be killed.
HOLDERS_SCRIPT = """
for process in /proc/[0-9]*; do
    read -r name < "$process/comm" || continue
    case "$name" in postgres|initdb) ;; *) continue ;; esac
    for handle in "$process"/fd/*; do
        if [ "$handle" -ef "$1" ]; then echo "${process#/proc/}"; break; fi
    done
done
"""


@dataclass(frozen=True, slots=True)
class Postmaster:
    """A running server of a home."""

    pid: int
    port: int
    socket_folder: Path
    ready: bool

    @property
    def socket(self) -> Path:
        return self.socket_folder / f".s.PGSQL.{self.port}"


def settle_postmaster(home: Home) -> Postmaster | None:
    """The running server, after a short wait for one that is starting (its starter was killed) or stopping."""
    wait_until(lambda: find_postmaster(home) is not None or not _is_held(home), ORPHAN_GRACE_S)
    return find_postmaster(home)


def find_postmaster(home: Home) -> Postmaster | None:
    """The running server named by postmaster.pid; None for a stale, reused or zombie pid, or an incomplete file."""
    try:
        lines = (home.cluster / "postmaster.pid").read_text().splitlines()
        pid = abs(int(lines[0]))
        # The line with the socket folder is written after the others.
        if not lines[4] or not is_postmaster(pid, home):
            return None
        return Postmaster(
            pid=pid, port=int(lines[3]), socket_folder=Path(lines[4]), ready=lines[-1].startswith("ready")
        )
    except (FileNotFoundError, IndexError, ValueError):
        return None


def is_postmaster(pid: int, home: Home) -> bool:
    """Whether this pid is a running postmaster of this very cluster.

    It works in the cluster's folder, and was started with -D; backends replace their command line by a title.
    """
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if not arguments[0].endswith(b"postgres") or b"-D" not in arguments or not is_alive(pid):
            return False
        try:
            return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), home.cluster.stat())
        except PermissionError:
            # Root in a container without CAP_SYS_PTRACE can read another account's command line, but not its folder.
            return os.fsencode(home.cluster) in arguments
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        # The second field is the program's name in brackets, which may contain brackets and spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in DEAD_STATES
    except OSError:
        return False


def stop_postmaster(pid: int, home: Home) -> None:
    """Stops the server: fast shutdown, then immediate shutdown, then kill. Committed work survives all three."""
    for how, limit_s in (
        (signal.SIGINT, FAST_STOP_LIMIT_S),
        (signal.SIGQUIT, IMMEDIATE_STOP_LIMIT_S),
        (signal.SIGKILL, KILL_LIMIT_S),
    ):
        if not is_postmaster(pid, home):
            return
        _signal(pid, how, home)
        if wait_until(lambda: not is_alive(pid), limit_s):
            return
    raise Unavailable(f"the server of {home.folder} (pid {pid}) does not end: see {home.log_path}")


def clear_remains(home: Home) -> None:
    """Kills processes left by a dead postmaster or a killed initdb, and deletes stale files.

    PostgreSQL refuses to start beside old backends. Killing them is safe: their commits are in the log that the next
    start replays.
    """
    if _is_held(home):
        for pid in _holders(home):
            _signal(pid, signal.SIGKILL, home)
        if not wait_until(lambda: not _is_held(home), KILL_LIMIT_S):
            raise Unavailable(
                f"{home.server_lock} is held by a process that cannot be seen or killed from here: "
                "if the folder is shared with another container, stop the server there"
            )
    (home.cluster / "postmaster.pid").unlink(missing_ok=True)


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _is_held(home: Home) -> bool:
    """Whether any process holds the lock that every start takes. Requires the starter's lock."""
    if not home.server_lock.exists():
        return False
    lock = open_lock(home, home.server_lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _holders(home: Home) -> list[int]:
    """PostgreSQL processes that have this home's lock open.

    Searched as the account that runs them, because root in a container may not inspect its processes.
    """
    command: list[str | Path] = ["/bin/sh", "-c", HOLDERS_SCRIPT, "sh", home.server_lock]
    answer = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, **home.account.spawn_options()
    )
    return [int(pid) for pid in answer.stdout.split()]


def _signal(pid: int, how: signal.Signals, home: Home) -> None:
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass
    except PermissionError as problem:
        raise Unavailable(
            f"the server of {home.folder} (pid {pid}) belongs to another account: stop it as its owner"
        ) from problem
