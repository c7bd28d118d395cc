"""What the tests of the command line share: real processes of `payonce`, and a database for them."""

import asyncio
import json
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from payonce.embedded import reset
from payonce.testing import ScratchDatabase, Servers, processes
from tests.cli.warm import Warm, warm

PATIENCE_S = 60.0
POLL_S = 0.02
QUEUE = "tally-changes"
UNHURRIED = {"QUEUE_POLICY__TALLY_CHANGES__LEASE_S": "60", "QUEUE_POLICY__TALLY_CHANGES__RUN_LIMIT_S": "300"}
"""For a worker that is to keep what it took. Its own two seconds are for watching others take over, and a machine that
stands still for so long would show that."""
SIGNING_KEY = "signing-key-of-the-tests-0123456789"


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The object on the last line, with nothing before it."""
        [line] = self.stdout.splitlines()
        return json.loads(line)

    @property
    def sentence(self) -> str:
        """The one sentence of an error."""
        [line] = self.stderr.splitlines()
        assert line.startswith("error: "), line
        return line.removeprefix("error: ")


APPLICATION: Final = "payonce.cli.application"


@dataclass
class Payonce:
    """The command, in an environment of its own."""

    environment: dict[str, str]
    warm: Warm
    running: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def __call__(self, *arguments: str, stdin: str = "", module: str = APPLICATION, **variables: str) -> Ended:
        """To its end, in a process of its own that need not import anything."""
        return Ended(*self.warm.run(module, arguments, {**self.environment, **variables}, stdin, "/"))

    def at_terminal(self, *arguments: str, typed: str) -> Ended:
        """With a person at the keyboard, who has typed ahead."""
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, typed.encode())
            process = self._started(arguments, {}, terminal)
            stdout, stderr = process.communicate(timeout=100)
        finally:
            os.close(terminal)
            os.close(keyboard)
        return Ended(process.returncode, stdout, stderr)

    @contextmanager
    def start_at_terminal(self, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
        """With what it prints on a terminal, whose other end is a file descriptor."""
        screen, terminal = pty.openpty()
        try:
            yield self._started(arguments, {}, subprocess.PIPE, terminal), screen
        finally:
            os.close(terminal)
            os.close(screen)

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        """A process from its first moment, to be watched, sent signals and killed."""
        return self._started(arguments, variables, subprocess.PIPE)

    def _started(
        self, arguments: Sequence[str], variables: dict[str, str], stdin: int, stdout: int = subprocess.PIPE
    ) -> "subprocess.Popen[str]":
        # A run in the background of a script is born deaf to Ctrl-C, and its children with it.
        hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        process = subprocess.Popen(
            [sys.executable, "-c", f"{hearing}; from payonce.cli.application import main; main()", *arguments],
            env={**self.environment, **variables},
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        self.running.append(process)
        return process

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def clean_environment() -> dict[str, str]:
    """This one, without what would lead payonce to somebody's database."""
    return processes.clean_environment()


@pytest.fixture(scope="session")
def warm_parent() -> Iterator[Warm]:
    with warm() as parent:
        yield parent


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    """Their databases have the tables of all services, as the command wants them."""
    return shared_servers


@pytest.fixture
def database(scratch: ScratchDatabase) -> ScratchDatabase:
    return scratch


@pytest.fixture
def payonce(
    clean_environment: dict[str, str], database: ScratchDatabase, tmp_path: Path, warm_parent: Warm
) -> Iterator[Payonce]:
    urls = {"DATABASE_URL": database.service_url, "DATABASE_OWNER_URL": database.owner_url}
    # Beside a database of one's own payouts and billing, and so `up`, do not start without.
    keys = {
        "SUCCESS_URL_SIGNING_KEY": SIGNING_KEY,
        "TPS_HOSTPAY_SIGNING_KEY": "hostpay-key-of-the-tests-0123456789",
        "JWT_SECRET_KEY": "jwt-key-of-the-tests-0123456789abcdef",
        "WEBHOOK_SIGNING_SECRET": SIGNING_KEY,
    }
    command = Payonce({**clean_environment, **urls, **keys, "PAYONCE_DATA_DIR": str(tmp_path / "data")}, warm_parent)
    yield command
    command.close()


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """A data folder for the private server; short, and open to the account that runs it."""
    folder = Path(tempfile.mkdtemp(prefix="payonce-test-"))
    folder.chmod(0o755)
    yield folder / "data"
    reset(folder / "data" / "postgres")
    shutil.rmtree(folder)


@pytest.fixture
def private_payonce(clean_environment: dict[str, str], data_dir: Path, warm_parent: Warm) -> Iterator[Payonce]:
    # A killed demonstration leaves its log, which is to vanish with the rest.
    folders = {"PAYONCE_DATA_DIR": str(data_dir), "TMPDIR": str(data_dir.parent)}
    command = Payonce({**clean_environment, **folders}, warm_parent)
    yield command
    command.close()


def depth_of(payonce: Payonce, queue: str = QUEUE) -> Any:
    """What `queues list` says of one queue."""
    [depth] = [each for each in payonce("queues", "list", "--json").json["queues"] if each["queue"] == queue]
    return depth


def ask(url: str, statement: str, *arguments: object) -> Any:
    async def fetch() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def message_count(database: ScratchDatabase, state: str) -> int:
    """Of what the tests put: services put messages of their own on schedule."""
    ours = "select count(*) from payonce.messages where state = $1 and queue = $2"
    count: int = ask(database.owner_url, ours, state, QUEUE)
    return count


def until(condition: Callable[[], Any], what: str) -> Any:
    """Asks until the answer is truthy; a deadline, not a wait for time to pass."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: did not happen within {PATIENCE_S:g} s"
        time.sleep(POLL_S)
    return answer
