"""The journal of a simulator: its records in order, in a file if it has one."""

import fcntl
import os
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from payonce.kit.outcomes import Unavailable


class Journal:
    """Records are appended before they take effect. Only one process at a time has the file open."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: BinaryIO | None = None
        self.records: list[dict[str, Any]] = []
        """The records at the time of opening."""
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")  # noqa: SIM115 - kept
            # Simulations often use real card numbers and keys: restrict the files of earlier versions too.
            os.fchmod(self._file.fileno(), 0o600)
            self._take(path)

    def append(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            # Flushed to the operating system, it survives a killed process, as a simulator guarantees.
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
        # A process killed while writing leaves half a line, whose request it has not answered.
        whole = text.rfind(b"\n") + 1
        self._file.truncate(whole)
        self.records = [msgspec.json.decode(line) for line in text[:whole].splitlines()]
