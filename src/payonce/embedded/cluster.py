"""Clusters, the files of PostgreSQL's databases: creation and settings."""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from payonce.embedded.binaries import Installation, choose_installation, installation_at
from payonce.embedded.home import MAKING_PREFIX, Home, sweep_unfinished, sync_folder, take_server_lock
from payonce.embedded.roles import SUPERUSER
from payonce.kit.outcomes import Invalid, Unavailable

INITDB_LIMIT_S = 120.0
SHOWN_LINES = 8
PORT = 5432

DEFAULT_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "128MB",
    "max_connections": "200",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Error details and statements quote row values, and those may be secrets.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_line_prefix": "%m [%p] ",
}
PRIVATE_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(PORT),
    "logging_collector": "off",
}
UNCHANGEABLE = {*PRIVATE_SETTINGS, "unix_socket_directories", "data_directory", "hba_file", "ident_file", "config_file"}
# No password: an account that can enter the private socket folder could also read the files.
ACCESS_RULES = "local all all trust\nlocal replication all trust\n"


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The default settings, overridden by the caller's. Raises Invalid for settings that keep the server private."""
    for name in settings:
        if not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
            raise Invalid(f"server setting {name!r} is not a PostgreSQL setting name: see its documentation")
        if name in UNCHANGEABLE:
            raise Invalid(
                f"server setting {name!r} keeps the embedded server private: set DATABASE_URL to run your own"
            )
    return {**DEFAULT_SETTINGS, **settings, **PRIVATE_SETTINGS}


def installation_for(home: Home, binaries: Installation | Path | None) -> Installation:
    """The installation for this home's cluster, which requires the major version that created it."""
    made_by = _major_of(home)
    if binaries is None:
        return choose_installation(made_by)
    given = binaries if isinstance(binaries, Installation) else installation_at(binaries)
    if made_by not in {None, given.major}:
        raise Invalid(
            f"data folder {home.folder} was made by PostgreSQL {made_by}, not {given.major}: "
            f"back it up with {made_by} and restore it into a new folder"
        )
    return given


def ensure_cluster(home: Home, installation: Installation, *, durable: bool) -> None:
    """Creates the cluster in a temporary folder and renames it, so that an incomplete one is never used."""
    try:
        sweep_unfinished(home)
        home.access_path.write_text(ACCESS_RULES)
        home.access_path.chmod(0o644)
        if home.cluster.exists():
            return
        making = Path(tempfile.mkdtemp(prefix=MAKING_PREFIX, dir=home.folder))
        home.account.take(making)
        _run_initdb(home, installation, making, durable=durable)
        making.rename(home.cluster)
        sync_folder(home.folder)
    except OSError as problem:
        raise home.unwritable(problem) from problem


def _major_of(home: Home) -> int | None:
    if not home.cluster.exists():
        return None
    try:
        return int((home.cluster / "PG_VERSION").read_text())
    except (OSError, ValueError) as problem:
        raise Unavailable(
            f"{home.cluster} is not a PostgreSQL cluster any more: restore a backup into a new folder"
        ) from problem


def _run_initdb(home: Home, installation: Installation, making: Path, *, durable: bool) -> None:
    command: list[str | Path] = [installation.program("initdb"), "-D", making, "-U", SUPERUSER, "-A", "trust"]
    command += ["--encoding=UTF8", "--locale=C", *([] if durable else ["--no-sync"])]
    lock = take_server_lock(home)
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=[lock],
            timeout=INITDB_LIMIT_S,
            check=False,
            **home.account.spawn_options(),
        )
    except subprocess.TimeoutExpired as problem:
        raise Unavailable(f"initdb in {home.folder} took longer than {INITDB_LIMIT_S:.0f} s: try again") from problem
    finally:
        os.close(lock)
    if completed.returncode != 0:
        output = " / ".join(completed.stdout.strip().splitlines()[-SHOWN_LINES:])
        raise Unavailable(f"data folder {home.folder} cannot be written: initdb reported {output}")
