"""Where the next crash of the server is to hit, told to processes through a file that survives the crash."""

import os
from enum import StrEnum
from pathlib import Path


class Moment(StrEnum):
    ANY = "any"
    """Whatever is under way."""
    BEFORE_COMMIT = "before commit"
    """The workers' COMMITs are held back, and other writers pause: nobody writes out the log, so that the ids of these
    transactions are lost with them."""
    AFTER_COMMIT = "after commit"
    """The workers' COMMITs are carried out, and their answers held back."""


class Aim:
    """The test takes aim; workers and writers look at it, and workers say when they wait for the crash."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "aim"
        self._waiting = folder / "waiting"

    def take(self, moment: Moment) -> None:
        self._waiting.write_bytes(b"")
        new = self._file.with_suffix(".new")
        new.write_text(moment)
        # At once: a reader never sees half of it.
        new.rename(self._file)

    def drop(self) -> None:
        self._file.unlink(missing_ok=True)

    def moment(self) -> Moment | None:
        try:
            return Moment(self._file.read_text())
        except FileNotFoundError:
            return None

    def wait_begins(self) -> None:
        descriptor = os.open(self._waiting, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b".")
        finally:
            os.close(descriptor)

    def waiting(self) -> int:
        return self._waiting.stat().st_size if self._waiting.exists() else 0
