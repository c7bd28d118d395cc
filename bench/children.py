"""The benchmark's child processes: started in their own process group, queried within a time limit, ended by their own
id."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from bench.failure import BenchFailed
from bench.peers import System
from bench.peers.command import Command, Reply
from bench.peers.port import Address

ROOT = Path(__file__).resolve().parents[1]
LAST_OUTPUT_CHARACTERS = 2000
POLL_S = 0.001
READ_BYTES = 65_536
# After SIGKILL only the kernel can delay the end.
KILL_LIMIT_S = 10.0


class Child:
    """A process of one system. Leaving the `with` block ends it and everything it started."""

    def __init__(self, arguments: list[str], name: str, log: Path, answers: bool) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                # Only a queried child gets a pipe; others' pipes would not be read, and a full one blocks its writer.
                stdout=subprocess.PIPE if answers else output,
                stderr=output,
                # The import path of `-m bench.…`.
                cwd=ROOT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Sends SIGKILL to the group that was started here, and reaps the child."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(KILL_LIMIT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # A command that the child did not live to read is still in the pipe's buffer.
                with suppress(BrokenPipeError):
                    pipe.close()

    def wait_for(self, condition: Callable[[], bool], what: str, limit_s: float) -> bool:
        """Returns whether the condition became true in time; raises BenchFailed if the child ended meanwhile."""
        deadline = time.monotonic() + limit_s
        while not condition():
            self._check_alive(what)
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def must(self, condition: Callable[[], bool], what: str, limit_s: float) -> None:
        if not self.wait_for(condition, what, limit_s):
            raise self._late(what, limit_s)

    def ask(self, command: Command, limit_s: float) -> Reply:
        """Sends one command to a driver and waits for its reply."""
        what = f"an answer to {command.do}"
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(msgspec.json.encode(command) + b"\n")
            stdin.flush()
        except BrokenPipeError:
            self._process.wait(KILL_LIMIT_S)
        line = self._read_line(stdout.fileno(), what, limit_s)
        reply = msgspec.json.decode(line, type=Reply)
        if reply.error is not None:
            raise BenchFailed(f"{self.name}: {command.do} failed: {reply.error[-LAST_OUTPUT_CHARACTERS:]}")
        return reply

    def _read_line(self, source: int, what: str, limit_s: float) -> bytes:
        """Reads in pieces, because a child may stop writing in the middle of a line."""
        deadline = time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._late(what, limit_s)
            piece = os.read(source, READ_BYTES)
            if not piece:
                self._process.wait(KILL_LIMIT_S)
                self._check_alive(what)
            line += piece
        return line

    def memory_mb(self) -> float:
        """Resident memory of the process and its descendants."""
        return sum(_resident_bytes(process) for process in _family(self._process.pid)) / 1e6

    def last_output(self) -> str:
        text = self._log.read_text(errors="replace").strip()
        return text[-LAST_OUTPUT_CHARACTERS:] or "(none)"

    def _late(self, what: str, limit_s: float) -> BenchFailed:
        return BenchFailed(f"{self.name}: waited {limit_s:g} s for {what}. Its last output: {self.last_output()}")

    def _check_alive(self, what: str) -> None:
        code = self._process.poll()
        if code is not None:
            raise BenchFailed(
                f"{self.name} ended with code {code} while we waited for {what}. Its last output: {self.last_output()}"
            )


@contextmanager
def peer_process(system: System, role: str, at: Address, journal: Path, log: Path) -> Iterator[Child]:
    arguments = [sys.executable, "-m", f"bench.peers.{system.program}", role, "--journal", str(journal)]
    arguments += ["--url", at.url, "--database-url", at.database_url]
    with Child(arguments, f"{system.name} {role}", log, answers=role == "driver") as child:
        yield child


def _family(process: int) -> Iterator[int]:
    yield process
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))


def _resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
