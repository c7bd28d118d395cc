"""Worker processes that a demonstration kills, stops and replaces."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

TERMINATE_LIMIT_S: Final = 5.0


class Disruption(StrEnum):
    KILL = "kill"
    """SIGKILL: the process ends in the middle of its work."""
    STOP = "stop"
    """SIGSTOP until its leases have expired, then SIGCONT: it resumes as if it still owned its messages."""


def plan_disruptions(
    kills: int, stops: int, first: float, last: float, chance: random.Random
) -> list[tuple[float, Disruption]]:
    """Spreads disruptions over the progress from `first` to `last`, with jitter and in random order."""
    kinds = [Disruption.KILL] * kills + [Disruption.STOP] * stops
    chance.shuffle(kinds)
    step = (last - first) / max(1, len(kinds) - 1)
    return [(first + step * (place + chance.uniform(0, 0.5)), kind) for place, kind in enumerate(kinds)]


@dataclass
class ProcessPool:
    """A fixed number of processes of one command; processes that end are replaced."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log_path: Path
    size: int
    kills: int = 0
    stops: int = 0
    restarts: int = 0
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _stopped_until: dict[int, float] = field(default_factory=dict)

    def __enter__(self) -> "ProcessPool":
        self._processes += [self._start_process() for _ in range(self.size)]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        deadline = time.monotonic() + TERMINATE_LIMIT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restore(self) -> None:
        """Replaces ended processes and resumes those that were stopped long enough."""
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                self._stopped_until.pop(process.pid, None)
                self._processes[place] = self._start_process()
                self.restarts += 1
            elif time.monotonic() > self._stopped_until.get(process.pid, float("inf")):
                process.send_signal(signal.SIGCONT)
                del self._stopped_until[process.pid]

    def running(self) -> set[int]:
        """Process ids that can be disrupted."""
        return {process.pid for process in self._processes if process.poll() is None} - self._stopped_until.keys()

    def disrupt(self, disruption: Disruption, pid: int, sleep_s: float) -> None:
        process = next(process for process in self._processes if process.pid == pid)
        if disruption is Disruption.KILL:
            process.kill()
            process.wait()
            self.kills += 1
        else:
            process.send_signal(signal.SIGSTOP)
            self._stopped_until[pid] = time.monotonic() + sleep_s
            self.stops += 1

    def _start_process(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "payonce", *self.command, "--die-with", str(os.getpid())]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C goes to the demonstration alone, which ends its pool itself.
                start_new_session=True,
            )
