"""A worker's progress, in memory shared with the measuring process.

A memory-mapped file, because a write takes well under a microsecond of a handler, needs no connection, and survives
kill -9 of the worker.
"""

import mmap
import time
from pathlib import Path

LATENCIES_MAX = 4096
_HANDLED = 0
_FIRST_HANDLED_NS = 1
_SLOW_STARTS = 2
_SLOW_STARTED_NS = 3
_LATENCIES = 4
_FIRST_LATENCY = 16
_SIZE_BYTES = 8 * (_FIRST_LATENCY + LATENCIES_MAX)


class Journal:
    """Counters of one worker at a time. Times are CLOCK_MONOTONIC, which all processes of a machine share."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._slots = memoryview(mmap.mmap(file.fileno(), _SIZE_BYTES)).cast("q")

    @staticmethod
    def create(path: Path) -> "Journal":
        path.write_bytes(bytes(_SIZE_BYTES))
        return Journal(path)

    def note_handled(self) -> None:
        slots = self._slots
        if not slots[_HANDLED]:
            slots[_FIRST_HANDLED_NS] = time.monotonic_ns()
        slots[_HANDLED] += 1

    def note_latency(self, enqueued_ns: int) -> None:
        position = self._slots[_LATENCIES]
        if position < LATENCIES_MAX:
            self._slots[_FIRST_LATENCY + position] = time.monotonic_ns() - enqueued_ns
            self._slots[_LATENCIES] = position + 1

    def note_slow_start(self) -> None:
        self._slots[_SLOW_STARTED_NS] = time.monotonic_ns()
        self._slots[_SLOW_STARTS] += 1

    @property
    def handled(self) -> int:
        return self._slots[_HANDLED]

    @property
    def first_handled_ns(self) -> int:
        return self._slots[_FIRST_HANDLED_NS]

    @property
    def slow_starts(self) -> int:
        return self._slots[_SLOW_STARTS]

    @property
    def slow_started_ns(self) -> int:
        return self._slots[_SLOW_STARTED_NS]

    @property
    def latencies_ns(self) -> list[int]:
        return self._slots[_FIRST_LATENCY : _FIRST_LATENCY + self._slots[_LATENCIES]].tolist()
