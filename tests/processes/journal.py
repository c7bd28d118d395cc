"""What happened in all processes of one test, in order: a file that each appends one line to per event."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Note:
    event: str
    row: int
    pid: int


class Journal:
    """Appends of one line are atomic: the order of lines is the order of events. Readable without the database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "journal"

    def note(self, event: str, row: int) -> None:
        line = json.dumps(asdict(Note(event, row, os.getpid()))) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def notes(self, event: str | None = None, row: int | None = None, pid: int | None = None) -> list[Note]:
        """In order; only those that match."""
        if not self._path.exists():
            return []
        # A line without its end is still being written.
        complete = self._path.read_text().rpartition("\n")[0]
        found = [Note(**json.loads(line)) for line in complete.splitlines()]
        return [
            note
            for note in found
            if event in (None, note.event) and row in (None, note.row) and pid in (None, note.pid)
        ]

    def let_go(self, row: int, pid: int | None = None) -> None:
        """Every run of this row that waits, now or later, goes on; or only those in one process."""
        (self.folder / (f"go-{row}" if pid is None else f"go-{row}-{pid}")).touch()

    def may_go(self, row: int) -> bool:
        return (self.folder / f"go-{row}").exists() or (self.folder / f"go-{row}-{os.getpid()}").exists()
