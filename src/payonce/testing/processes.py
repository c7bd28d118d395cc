"""Child processes for tests: started, killed, stopped and resumed at will, and always ended with the test.

    with Processes(folder) as processes:
        worker = processes.start_worker(database_url, "tally.worker", QUEUE_POLICY__TALLY_CHANGES__LEASE_S="1")
        worker.stop()       # SIGSTOP; returns when it is stopped
        worker.resume()     # SIGCONT
        worker.kill()       # SIGKILL; returns when it is gone
        await worker.says("lease_lost")

The kernel kills the remaining children when the thread that started them ends, so start processes from the main thread.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from payonce.engine.database.durability import ACCEPT_DATA_LOSS
from payonce.testing.eventually import DEFAULT_WITHIN_S, eventually

OURS: Final = ("DATABASE_", "PAYONCE_", "QUEUE_POLICY__", "PORT")
"""Prefixes of the platform's variables; one of them names the test server."""
EXTERNAL: Final = ("_URL", "_API_KEY")
"""Suffixes of variables that would direct a child to real servers or vendors."""
SHOWN_LINES: Final = 40

# Asks the kernel to kill this process with its parent (1 is PR_SET_PDEATHSIG), then runs the command.
_TIED: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent died first")
os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One child process."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str, output_path: Path) -> None:
        self._process = process
        self.name = name
        self.output_path = output_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended; also true while it is stopped."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """Its output so far, stdout and stderr."""
        return self.output_path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGSTOP; returns when it is stopped. Data it has sent may still be in transit."""
        if self.running:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not self.running:
            raise AssertionError(f"{self.name} ended before it could be stopped:\n{self.last_lines()}")

    def resume(self) -> None:
        """SIGCONT: it continues without noticing that time has passed."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: requests a drain."""
        self._process.terminate()

    async def says(self, words: str, within_s: float = DEFAULT_WITHIN_S) -> None:
        """Waits until its output contains these words. Raises AssertionError, with the output, if it ends before."""
        await eventually(lambda: words in self.output or not self.running, within_s, f"{self.name} says {words!r}")
        if words not in self.output:
            raise AssertionError(f"{self.name} ended without saying {words!r}:\n{self.last_lines()}")

    async def ended(self, within_s: float = DEFAULT_WITHIN_S) -> int:
        """Waits for its end; returns the exit code, negative after a signal."""
        await eventually(lambda: not self.running, within_s, f"{self.name} ends")
        return self._process.wait()

    def last_lines(self) -> str:
        return "\n".join(self.output.splitlines()[-SHOWN_LINES:])


class Processes:
    """The child processes of one test. Each one's output is kept in a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.children: list[Child] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self, *command: str, name: str = "", cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Starts a command, given by its full path, in the current environment without the platform's variables, plus
        `environment`."""
        name = name or f"process-{len(self.children) + 1}"
        output_path = self._folder / f"{len(self.children) + 1:03}-{name}.log"
        with output_path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env={**clean_environment(), **(environment or {})},
                # Ctrl-C goes to the test session, which ends its children.
                start_new_session=True,
            )
        child = Child(process, name, output_path)
        self.children.append(child)
        return child

    def start_worker(self, database_url: str, *roles: str, **environment: str) -> Child:
        """Starts `payonce run` with these roles on this database."""
        command = (sys.executable, "-m", "payonce", "run", *roles)
        return self.start(*command, name="worker", environment={"DATABASE_URL": database_url, **environment})

    def close(self) -> None:
        """Kills all children, also stopped ones."""
        for child in self.children:
            if child.running:
                child.kill()


def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name == ACCEPT_DATA_LOSS or not (name.startswith(OURS) or name.endswith(EXTERNAL))
    }
