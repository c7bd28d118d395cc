"""The folder of an embedded server: its layout, locks and private socket folder.

    home/
      cluster/               PostgreSQL's own data, 0700, owned by the account that runs it
      cluster.making-*/      a running initdb; renamed to `cluster` when complete, deleted if it was killed
      starter.lock           held while a process starts, stops or resets the server
      server.lock            held by every process of the server, so that remaining ones can be found
      server.log             the server's log
      access.conf            access rules (PostgreSQL's pg_hba.conf), not writable by the server

The home is the requested data folder, unless root requests one that the server's account cannot reach: then it is in
root's store, and the requested folder holds only a pointer to it.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from payonce.embedded.account import Account, account_name, can_reach, is_root_store, root_store, server_account
from payonce.kit.outcomes import Invalid, Unavailable

POINTER_NAME = "data-is-elsewhere"
MAKING_PREFIX = "cluster.making-"
# The starter's lock comes last: once it is deleted, the next start may begin.
OWN_NAMES = ("cluster", "access.conf", "server.log", "server.log.1", "server.lock", POINTER_NAME, "starter.lock")
POLL_S = 0.02
# PostgreSQL limits socket paths to 107 bytes, so sockets are not in the data folder.
SOCKET_ROOTS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 -- whose folder it is, is checked
# Size of what a start writes first: lock files, statistics, a log line.
PROBE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one server, and the account that runs it."""

    requested: Path
    folder: Path
    account: Account

    @property
    def cluster(self) -> Path:
        return self.folder / "cluster"

    @property
    def server_lock(self) -> Path:
        return self.folder / "server.lock"

    @property
    def access_path(self) -> Path:
        return self.folder / "access.conf"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    def unwritable(self, problem: OSError) -> Unavailable:
        return Unavailable(f"data folder {self.folder} cannot be written: {problem.strerror or problem}")


def find_home(data_dir: Path) -> Home:
    """The home of this data folder's server."""
    requested = Path(os.path.realpath(data_dir))
    try:
        folder = _home_folder(requested)
        return Home(requested, folder, server_account(folder / "cluster"))
    except PermissionError as problem:
        raise Unavailable(f"data folder {requested} cannot be reached: {problem.strerror}; choose another") from problem


def make_home(home: Home) -> None:
    """Creates the folders, and checks that the server's account can reach them."""
    try:
        _make_folder(home.requested, 0o700, home.account)
        if home.folder != home.requested:
            _make_folder(home.folder, 0o711, home.account)
            _write_pointer(home)
        else:
            # The server's account must be able to traverse root's folder, but needs only `cluster`.
            home.folder.chmod(0o711 if home.account.switch else 0o700)
    except OSError as problem:
        raise home.unwritable(problem) from problem
    if not can_reach(home.account, home.folder):
        raise Unavailable(
            f"data folder {home.folder} cannot be reached by {home.account.name}, who runs the server: "
            "let others pass through its parent folders (chmod o+x)"
        )


def probe_space(home: Home) -> None:
    """Raises Unavailable for a full or read-only disk, before PostgreSQL fails on it."""
    try:
        with tempfile.NamedTemporaryFile(prefix=MAKING_PREFIX, dir=home.folder) as probe:
            probe.write(bytes(PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as problem:
        raise home.unwritable(problem) from problem


@contextmanager
def starter_lock(home: Home, limit_s: float) -> Iterator[None]:
    """Lets only one process at a time start, stop or reset this home."""
    path = home.folder / "starter.lock"
    deadline = time.monotonic() + limit_s
    while True:
        handle = open_lock(home, path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A reset deletes the lock file: a lock on a deleted file protects nothing.
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        except BlockingIOError:
            pass
        os.close(handle)
        if time.monotonic() > deadline:
            raise Unavailable(
                f"another process has been starting or stopping {home.folder} for {limit_s:.0f} s: try again"
            )
        time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(handle)


def open_lock(home: Home, path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise home.unwritable(problem) from problem


def take_server_lock(home: Home) -> int:
    """Takes the lock for the server's processes, which inherit and hold it until the last one has ended. Other
    containers see it, too."""
    lock = open_lock(home, home.server_lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        os.close(lock)
        raise Unavailable(f"{home.server_lock} was taken by another process just now: try again") from problem
    return lock


def sweep_unfinished(home: Home) -> None:
    """Deletes clusters whose creation was killed. Requires the starter's lock, and no running initdb."""
    for leftover in home.folder.glob(f"{MAKING_PREFIX}*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def delete_home(home: Home) -> None:
    """Deletes everything of a server, and no other files: a mistyped folder loses nothing."""
    try:
        if home.cluster.exists():
            shutil.rmtree(home.cluster)
        sweep_unfinished(home)
        for folder in dict.fromkeys((home.folder, home.requested)):
            for name in OWN_NAMES:
                (folder / name).unlink(missing_ok=True)
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as problem:
        raise Unavailable(f"data folder {home.folder} cannot be deleted: {problem.strerror}") from problem


def make_socket_folder(home: Home) -> Path:
    """A folder with a short path that only the server's account and root can enter."""
    for root in SOCKET_ROOTS:
        folder = root / _socket_name(home)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            seen = folder.lstat()
            # Another account's folder or link under this name would let it listen in our place.
            if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in {os.geteuid(), home.account.uid}:
                continue
            folder.chmod(0o700)
            home.account.take(folder)
        except OSError:
            continue
        return folder
    raise Unavailable(
        f"no private socket folder {_socket_name(home)} can be made in {' or '.join(map(str, SOCKET_ROOTS))}"
    )


def delete_socket_folder(home: Home) -> None:
    """Deletes the socket folder if it belongs to the server's account."""
    for root in SOCKET_ROOTS:
        folder = root / _socket_name(home)
        if folder.exists() and folder.lstat().st_uid == home.account.uid:
            shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _socket_name(home: Home) -> str:
    return f"payonce-{home.account.uid}-{_name_for(home.folder)}"


def _name_for(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def _home_folder(requested: Path) -> Path:
    if os.geteuid() == 0 and requested.exists() and (owner := requested.stat().st_uid) != 0:
        # Root must not write where another account could plant links.
        raise Unavailable(f"data folder {requested} belongs to {account_name(owner)}: run payonce as that user")
    if (requested / POINTER_NAME).exists():
        return _pointed_home(requested)
    if (requested / "cluster").exists():
        return requested
    account = server_account(requested / "cluster")
    if not account.switch or can_reach(account, _nearest_existing(requested.parent)):
        return requested
    return root_store() / _name_for(requested)


def _pointed_home(requested: Path) -> Path:
    pointer = requested / POINTER_NAME
    target = Path(pointer.read_text().strip())
    # A pointer copied or moved with its folder would make two data folders share one server.
    if target.name != _name_for(requested) or not is_root_store(target.parent):
        raise Invalid(
            f"{pointer} was not made for this folder: its data is in {target}; "
            f"move that to {target.with_name(_name_for(requested))} and delete the pointer, "
            "or only delete the pointer to start afresh"
        )
    return target


def _write_pointer(home: Home) -> None:
    pointer = home.requested / POINTER_NAME
    if not pointer.exists():
        handle, making = tempfile.mkstemp(prefix=MAKING_PREFIX, dir=home.requested)
        with os.fdopen(handle, "w") as file:
            file.write(f"{home.folder}\n")
        os.rename(making, pointer)


def _make_folder(folder: Path, mode: int, account: Account) -> None:
    if not folder.exists():
        for parent in reversed(folder.parents):
            if not parent.exists():
                parent.mkdir(exist_ok=True)
                # Root's umask may close folders that the server's account must traverse.
                if account.switch:
                    parent.chmod(0o711)
        folder.mkdir(mode=mode, exist_ok=True)
        folder.chmod(mode)
    strangers = sorted(
        {path.name for path in folder.iterdir() if not path.name.startswith(MAKING_PREFIX)} - {*OWN_NAMES}
    )
    if strangers:
        raise Invalid(f"data folder {folder} holds other files ({', '.join(strangers[:3])}): name an empty folder")


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
