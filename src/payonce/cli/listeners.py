"""The listening processes of a data folder, each recorded by a file that it locks until it ends."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "listening"
SUFFIX: Final = ".json"


@dataclass(frozen=True, order=True)
class Listener:
    port: int
    host: str
    process_id: int


@dataclass(frozen=True)
class _Registration:
    descriptor: int
    path: Path


@contextmanager
def registered(data_dir: Path, host: str, port: int) -> Iterator[None]:
    """Records where this process listens, for `payonce console` in the same folder. Failure to write is ignored."""
    held = _hold(data_dir / FOLDER, Listener(port, host, os.getpid()))
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):
                held.path.unlink()
            os.close(held.descriptor)


def listeners(data_dir: Path) -> list[Listener]:
    """The processes that are listening, by port."""
    found = []
    for path in sorted((data_dir / FOLDER).glob(f"*{SUFFIX}")):
        with suppress(OSError, ValueError, TypeError), path.open("rb") as file:
            if _is_locked(file.fileno()):
                found.append(Listener(**json.loads(file.read())))
    return sorted(found)


def _hold(folder: Path, listener: Listener) -> _Registration | None:
    path = folder / f"{listener.port}-{listener.process_id}{SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, json.dumps(asdict(listener)).encode())
    return _Registration(descriptor, path)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
