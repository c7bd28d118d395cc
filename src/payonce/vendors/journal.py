"""The memory of a simulator: records in the order they were made, in a file if there is one."""

import fcntl
import os
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from payonce.kit.outcomes import Unavailable


class Journal:
    """Appended to before what it tells of counts. One process at a time holds the file."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: BinaryIO | None = None
        self.records: list[dict[str, Any]] = []
        """What was on record when it was opened."""
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")  # noqa: SIM115 - kept
            # Card numbers and keys of a simulation are often real ones: also files of earlier versions are closed.
            os.fchmod(self._file.fileno(), 0o600)
            self._take(path)

    def append(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            # In the hands of the system: it outlives a killed process, which is what a simulator promises.
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _take(self, path: Path) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise Unavailable(
                f"another process has the simulator of {path.stem} open; let one process simulate it, "
                "or name the vendor's address in the settings"
            ) from error
        self._file.seek(0)
        text = self._file.read()
        # A process killed while it wrote leaves half a line, and had not answered anybody.
        whole = text.rfind(b"\n") + 1
        self._file.truncate(whole)
        self.records = [msgspec.json.decode(line) for line in text[:whole].splitlines()]
