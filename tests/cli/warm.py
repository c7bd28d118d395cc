"""Commands of `payonce` in processes that begin with everything imported: a parent that has done it forks one for each.

Started anew, a command spends most of its second on imports, and the tests type hundreds of commands. What a start of
its own adds is tested where processes are started, killed and sent signals.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[2]
REQUEST_MAX_BYTES: Final = 4 * 1024 * 1024
REPLY_MAX_BYTES: Final = 64
ANSWER_LIMIT_S: Final = 100.0
PRELOADED: Final = (
    "payonce.cli.application",
    "payonce.app.process",
    "payonce.app.registry",
    "payonce.http.server",
    "payonce.services.billing.cli.commands",
    "payonce.embedded.backups",
    "payonce.engine.messages.job_log",
    "payonce.app.logging",
    "rich.table",
    "payonce.vendors.northbank.client",
    "payonce.vendors.northbank.simulator",
    "payonce.vendors.southbank.client",
    "payonce.vendors.southbank.simulator",
    "payonce.vendors.changenow.simulator",
    "payonce.vendors.gateway.simulator",
)
"""What commands load when they run."""


class Warm:
    """The side of the tests."""

    def __init__(self, address: str) -> None:
        self._address = address

    def run(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], stdin: str, cwd: str
    ) -> tuple[int, str, str]:
        """Runs one command to its end: exit code, standard output and standard error."""
        request = json.dumps([module, list(arguments), dict(environment), cwd]).encode()
        with _file(stdin) as given, _file() as out, _file() as err, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_LIMIT_S)
            connection.connect(self._address)
            length = len(request).to_bytes(4, "big")
            socket.send_fds(connection, [length], [file.fileno() for file in (given, out, err)])
            connection.sendall(request)
            code = int(connection.recv(REPLY_MAX_BYTES))
            return code, _whole(out), _whole(err)


@contextmanager
def warm() -> Iterator[Warm]:
    """A parent that forks; it goes away with the test run, also when that is killed."""
    with tempfile.TemporaryDirectory(prefix="payonce-warm-") as folder:
        address = f"{folder}/socket"
        command = [sys.executable, "-m", "tests.cli.warm", address]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            try:
                assert parent.stdout is not None
                assert parent.stdout.readline() == b"ready\n"
                yield Warm(address)
            finally:
                parent.kill()


def serve(address: str) -> None:
    """The parent: it has loaded everything, holds no thread and no connection, and only forks."""
    for name in PRELOADED:
        import_module(name)
    # A collection in a child would copy every page that it shares with us.
    gc.collect()
    gc.freeze()
    # Whoever answers for a command is not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        print("ready", flush=True)
        while True:
            connection, _ = door.accept()
            if os.fork() == 0:
                door.close()
                _ending(partial(_answer, connection))
            connection.close()


def _answer(connection: socket.socket) -> int:
    """In a process of its own, which waits for the command and tells its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, files, _, _ = socket.recv_fds(connection, 4, 3)
    module, arguments, environment, cwd = json.loads(_received(connection, int.from_bytes(length, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        _ending(partial(_command, module, arguments, environment, cwd, files))
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _command(module: str, arguments: list[str], environment: dict[str, str], cwd: str, files: list[int]) -> int:
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    # The streams that were inherited belong to the parent's files.
    sys.stdin, sys.stdout, sys.stderr = (
        open(place, mode, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115 - they end with the process
        for place, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["payonce", *arguments]
    main: Callable[[], None] = import_module(module).main
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _ending(act: Callable[[], int]) -> None:
    code = 70
    try:
        code = act()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        code = 1
    finally:
        os._exit(code)


def _received(connection: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length <= REQUEST_MAX_BYTES and (part := connection.recv(length - len(found))):
        found += part
    return found


@contextmanager
def _file(text: str = "") -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        file.write(text.encode(errors="surrogateescape"))
        file.seek(0)
        yield file


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="surrogateescape")


if __name__ == "__main__":
    serve(sys.argv[1])
