"""The operating-system account that runs the server, and its access to files.

PostgreSQL refuses to run as root. A root caller therefore runs it as an unprivileged account, and whatever that account
cannot reach (such as a checkout below /root) is kept in a store that root owns and every account may traverse.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from payonce.embedded.binaries import Installation
from payonce.kit.outcomes import Unavailable

PREFERRED_ACCOUNTS = ("postgres", "nobody")
ROOT_STORES = (Path("/var/lib/payonce"), Path("/var/tmp/payonce"))  # noqa: S108 -- its owner is checked
# Headers and static archives are a third of an installation and never run.
NOT_COPIED = shutil.ignore_patterns("include", "*.a", "pkgconfig", "pgxs")


class SpawnOptions(TypedDict):
    """Keyword arguments for `subprocess`."""

    user: int | None
    group: int | None
    extra_groups: list[str | int] | None
    cwd: str
    env: dict[str, str]
    umask: int
    start_new_session: bool


@dataclass(frozen=True, slots=True)
class Account:
    """The account that runs the server; `switch` if it is not the caller's."""

    uid: int
    gid: int
    name: str
    switch: bool

    def spawn_options(self) -> "SpawnOptions":
        """Options for spawning the server's processes: as this account, in a new session, with a minimal
        environment."""
        return {
            "user": self.uid if self.switch else None,
            "group": self.gid if self.switch else None,
            "extra_groups": [] if self.switch else None,
            "cwd": "/",
            # The caller's PG* variables and locale would affect the server.
            "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            "umask": 0o077,
            "start_new_session": True,
        }

    def take(self, path: Path) -> None:
        """Makes this account the owner of a path that the caller has just created."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def server_account(cluster: Path) -> Account:
    """The caller; for root, the owner of an existing cluster, else an unprivileged account."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), account_name(os.geteuid()), switch=False)
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, account_name(owner.st_uid), switch=True)
    for name in PREFERRED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, name, switch=True)
    raise Unavailable(
        f"PostgreSQL refuses to run as root and none of the accounts {', '.join(PREFERRED_ACCOUNTS)} exists: "
        "run payonce as a plain user or set DATABASE_URL"
    )


def can_reach(account: Account, path: Path) -> bool:
    """Whether the account may enter the folder or run the program; checked by the kernel, so ACLs count, too."""
    if not account.switch:
        return os.access(path, os.X_OK)
    try:
        answer = subprocess.run(["/bin/sh", "-c", 'test -x "$1"', "sh", path], check=False, **account.spawn_options())
    except OSError as problem:
        raise Unavailable(
            f"PostgreSQL refuses to run as root and this process cannot become {account.name} "
            f"({problem.strerror}): run payonce as a plain user or set DATABASE_URL"
        ) from problem
    if answer.returncode < 0:
        raise Unavailable(
            f"it is unknown whether {account.name} can reach {path}: signal {-answer.returncode} ended the check; "
            "try again"
        )
    return answer.returncode == 0


def root_store() -> Path:
    """A folder that only root can write and every account can traverse."""
    for store in ROOT_STORES:
        try:
            store.mkdir(mode=0o755, exist_ok=True)
            if is_root_store(store):
                store.chmod(0o755)
                return store
        except OSError:
            continue
    raise Unavailable(
        f"neither {' nor '.join(map(str, ROOT_STORES))} can be a folder that only root writes: "
        "run payonce as a plain user or set DATABASE_URL"
    )


def is_root_store(folder: Path) -> bool:
    """Whether the folder is one of the known stores, and only root can have written to it."""
    if folder not in ROOT_STORES or not folder.exists():
        return False
    seen = folder.lstat()
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == 0 and not seen.st_mode & 0o022


def reachable_installation(installation: Installation, account: Account) -> Installation:
    """An installation that the account can run: this one, or a copy made once."""
    if not account.switch or can_reach(account, installation.program("postgres")):
        return installation
    root = installation.bin.resolve().parent
    copies = root_store() / "binaries"
    copies.mkdir(mode=0o755, exist_ok=True)
    copies.chmod(0o755)
    copy = copies / f"{installation.label}-{_fingerprint(root)}"
    if not copy.exists():
        _copy_installation(root, copy)
    return replace(installation, bin=copy / root.parent.name / root.name / "bin")


def _copy_installation(root: Path, copy: Path) -> None:
    making = Path(tempfile.mkdtemp(prefix=f"{copy.name}.making-", dir=copy.parent))
    try:
        shutil.copytree(root, making / root.parent.name / root.name, symlinks=True, ignore=NOT_COPIED)
        # Wheels keep shared libraries in a sibling folder that programs find by a path relative to themselves.
        libraries = root.parent.parent / f"{root.parent.name}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        for folder in _folders(making):
            folder.chmod(0o755)
        try:
            making.rename(copy)
        except OSError:
            if not copy.exists():
                raise
    except OSError as problem:
        raise Unavailable(f"PostgreSQL's programs cannot be copied to {copy}: {problem.strerror}") from problem
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _folders(root: Path) -> Iterator[Path]:
    yield root
    yield from (path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())


def _fingerprint(root: Path) -> str:
    postgres = (root / "bin" / "postgres").stat()
    return hashlib.sha256(f"{root}|{postgres.st_size}|{postgres.st_mtime_ns}".encode()).hexdigest()[:16]


def account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
