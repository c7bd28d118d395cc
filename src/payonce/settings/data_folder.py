"""The data folder, and the secrets that are made and kept in it."""

import base64
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32
DATA_FOLDER_NAME: Final = ".payonce"
PROJECT_MARKS: Final = (DATA_FOLDER_NAME, "pyproject.toml", ".git")


def kept_keys(path: Path) -> str:
    """The keys in this file."""
    return kept(path, lambda: f"k1:{base64.b64encode(os.urandom(KEY_BYTES)).decode()}")


def kept(path: Path, make: Callable[[], str]) -> str:
    """The secret in this file, for its owner alone; made if there is none. One of several who make it at once wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{make()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            # A link is made whole or not at all, and never over another's.
            os.link(draft, path)
        draft.unlink()
    return path.read_text()


def default_data_dir(start: Path, environ: Mapping[str, str]) -> Path:
    """The project's own folder, so that two projects never share data; outside of one, the user's data folder."""
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return folder / DATA_FOLDER_NAME
    shared = environ.get("XDG_DATA_HOME", "")
    root = Path(shared) if shared.startswith("/") else Path.home() / ".local" / "share"
    return root / "payonce"
