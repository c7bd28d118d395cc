"""What the tests of the embedded server share: places on disk that vanish with their servers, and other processes."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from payonce import testing
from payonce.embedded import Server, reset, start, stop

# These tests are about processes and files; only the crash tests need the disk's word.
QUICK = {"fsync": "off", "shared_buffers": "16MB"}
PATIENCE_S = 60.0
MEMORY_NEEDED_BYTES = 1024**3

Run = Callable[..., "subprocess.Popen[str]"]


@contextmanager
def open_folder(parent: Path) -> Iterator[Path]:
    """A folder every account can pass through; pytest's own is closed to all but its maker."""
    folder = Path(tempfile.mkdtemp(prefix="payonce-test-", dir=parent))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def quick_disk() -> Path:
    """Memory, where there is enough of it: making a cluster writes 40 MB in a thousand files."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_NEEDED_BYTES
    return memory if roomy else Path("/tmp")


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder(quick_disk()) as folder:
        yield folder


@pytest.fixture
def data_dir(place: Path) -> Iterator[Path]:
    folder = place / "pg"
    yield folder
    reset(folder)


@pytest.fixture(scope="session")
def made_once() -> Iterator[Path]:
    """A stopped server's data, to copy for tests that do not test its creation."""
    with open_folder(quick_disk()) as folder:
        stop(start(folder / "pg", settings=QUICK))
        yield folder / "pg"


@pytest.fixture
def made_dir(data_dir: Path, made_once: Path) -> Path:
    """A data folder whose server has been made and is stopped."""
    subprocess.run(["cp", "-a", made_once, data_dir], check=True)
    return data_dir


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server for all tests of a file that do it no harm."""
    with open_folder(quick_disk()) as folder:
        yield start(folder / "pg", settings=QUICK, tie_to_parent=True)
        reset(folder / "pg")


@pytest.fixture
def run_python() -> Iterator[Run]:
    """Runs a script in another process; `plain` as an account without rights. What still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: object, plain: bool = False) -> "subprocess.Popen[str]":
        command = [sys.executable, "-B", "-c", script, *map(str, arguments)]
        if plain and os.geteuid() == 0:
            # The interpreter may itself live below /root: the right to read is all that the account keeps.
            capabilities = "-all,+dac_read_search"
            command = [
                *("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"),
                *(f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}", *command),
            ]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def ask(url: str, statement: str) -> Any:
    """One value from the server."""

    async def fetch() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def eventually(condition: Callable[[], Any]) -> None:
    """Poll until it holds; a deadline, not a wait for time to pass."""
    asyncio.run(testing.eventually(condition, PATIENCE_S))
