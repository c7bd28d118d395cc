"""Root, plain users, and folders that cannot be reached or written."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from payonce.embedded import account, find_installations, reset, start, stop
from payonce.kit.outcomes import Invalid, Unavailable
from tests.embedded.conftest import QUICK, Run, ask, open_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="is about what root does: run the tests as root too")

START_AND_RESET = """
import os, sys
from pathlib import Path
from payonce.embedded import reset, start, stop
from payonce.kit.outcomes import PayonceError
folder = Path(sys.argv[1])
try:
    first = start(folder, settings={"fsync": "off"}, tie_to_parent=True)
    print(os.geteuid() != 0, oct(folder.stat().st_mode & 0o777), first.started, start(folder).started, stop(first))
    reset(folder)
    print(folder.exists())
except PayonceError as refused:
    print(f"{type(refused).__name__}: {refused}")
"""

ADOPT = """
import os, sys
from pathlib import Path
from payonce.embedded import start
server = start(Path(sys.argv[1]), settings={"fsync": "off"})
print(os.access(f"/proc/{server.pid}/cwd", os.F_OK), server.started, server.pid)
"""

LOOK_WITHOUT_A_STACK = """
import pwd, resource
from pathlib import Path
from payonce.embedded.account import Account, can_reach
from payonce.kit.outcomes import Unavailable
nobody = pwd.getpwnam("nobody")
account = Account(nobody.pw_uid, nobody.pw_gid, "nobody", switch=True)
print(can_reach(account, Path("/")))
resource.setrlimit(resource.RLIMIT_STACK, (4096, resource.getrlimit(resource.RLIMIT_STACK)[1]))
try:
    print(can_reach(account, Path("/")))
except Unavailable as unknown:
    print(unknown)
"""

FORK_BESIDE_CALLS = """
import asyncio, os, threading
import payonce
import grpc

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)[1]

async def call():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        while True:
            try:
                await channel.unary_unary("/nobody/serves/this")(b"")
            except grpc.RpcError:
                calling.set()

calling = threading.Event()
threading.Thread(target=asyncio.run, args=(call(),), daemon=True).start()
calling.wait()
print([end for end in [fork() for _ in range(200)] if end], flush=True)
os._exit(0)
"""


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that only root may enter, as /root is; what must be elsewhere goes to a store beside it."""
    # On a real disk: programs are run from here, which memory disks may forbid.
    with open_folder(Path("/tmp")) as parent:
        monkeypatch.setattr(account, "ROOT_STORES", (parent / "store",))
        (parent / "closed").mkdir(mode=0o700)
        yield parent / "closed"


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def plain_folder(place: Path) -> Path:
    folder = place / "plain"
    folder.mkdir()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return folder


def copy_wheel(folder: Path) -> Path:
    """The wheel's installation below another folder; returns its programs."""
    root = find_installations()[0].bin.parent
    libraries = root.parent.parent / f"{root.parent.name}.libs"
    shutil.copytree(root, folder / root.parent.name / root.name, symlinks=True, ignore=account.NOT_COPIED)
    shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / root.parent.name / root.name / "bin"


@needs_root
def test_root_below_a_closed_folder(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYONCE_PG_BIN", str(copy_wheel(closed / "venv")))
    data_dir, store = closed / "project" / "pg", closed.parent / "store"
    server = start(data_dir, settings=QUICK, tie_to_parent=True)
    assert ask(server.owner_url, "select 1") == 1
    assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    assert server.data_dir == data_dir
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    home = Path((data_dir / "data-is-elsewhere").read_text().strip())
    assert home.parent == store
    assert stat.S_IMODE((home / "cluster").stat().st_mode) == 0o700
    (copy,) = (store / "binaries").iterdir()
    assert copy.stat().st_uid == 0
    assert not copy.stat().st_mode & 0o022
    assert not start(data_dir).started
    assert stop(data_dir)
    assert start(data_dir, settings=QUICK, tie_to_parent=True).started
    assert list((store / "binaries").iterdir()) == [copy]
    reset(data_dir)
    assert not data_dir.exists()
    assert not home.exists()


@needs_root
def test_pointer_that_moved_with_its_folder_is_refused(closed: Path) -> None:
    stop(start(closed / "pg", settings=QUICK))
    (closed / "pg").rename(closed / "moved")
    with pytest.raises(Invalid, match="was not made for this folder: its data is in"):
        start(closed / "moved")


@needs_root
def test_store_that_others_can_write_is_not_used(place: Path, closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe = place / "unsafe"
    unsafe.mkdir()
    unsafe.chmod(0o777)
    monkeypatch.setattr(account, "ROOT_STORES", (unsafe,))
    with pytest.raises(Unavailable, match=f"neither {unsafe} can be a folder that only root writes"):
        start(closed / "pg")


@needs_root
def test_data_that_became_unreachable_is_not_forgotten(place: Path) -> None:
    parent = place / "parent"
    stop(start(parent / "pg", settings=QUICK))
    parent.chmod(0o700)
    with pytest.raises(Unavailable, match=r"cannot be reached by \w+, who runs the server: let others pass"):
        start(parent / "pg")
    parent.chmod(0o755)
    reset(parent / "pg")


@needs_root
def test_root_refuses_a_folder_of_somebody_else(place: Path) -> None:
    with pytest.raises(Unavailable, match="belongs to nobody: run payonce as that user"):
        start(plain_folder(place))


def test_plain_user(place: Path, run_python: Run) -> None:
    told = run_python(START_AND_RESET, plain_folder(place) / "pg", plain=True).communicate()[0]
    assert told.splitlines() == ["True 0o700 True False True", "False"]


def test_folder_that_may_not_be_written(place: Path, run_python: Run) -> None:
    folder = plain_folder(place)
    folder.chmod(0o555)
    told = run_python(START_AND_RESET, folder / "pg", plain=True).communicate()[0]
    assert told.strip() == f"Unavailable: data folder {folder / 'pg'} cannot be written: Permission denied"


@needs_root
def test_plain_user_is_kept_out_of_roots_data(made_dir: Path, run_python: Run) -> None:
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    told = run_python(START_AND_RESET, made_dir, plain=True).communicate()[0]
    assert told.startswith(f"Unavailable: data folder {made_dir}")
    assert ask(server.owner_url, "select 1") == 1


@needs_root
def test_root_in_a_container_that_may_not_look_into_processes(made_dir: Path) -> None:
    """Docker takes CAP_SYS_PTRACE away: root then cannot see another account's folders and open files in /proc."""
    command = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", sys.executable, "-B", "-c"]
    server = start(made_dir, settings=QUICK)
    adopted = subprocess.run([*command, ADOPT, made_dir], check=True, capture_output=True, text=True).stdout
    assert adopted.split() == ["False", "False", str(server.pid)]
    os.kill(server.pid, signal.SIGKILL)
    recovered = subprocess.run([*command, ADOPT, made_dir], check=True, capture_output=True, text=True).stdout
    assert recovered.split()[:2] == ["False", "True"]


@needs_root
def test_read_only_disk(place: Path) -> None:
    with mounted(place / "disk", "ro"), pytest.raises(Unavailable) as refused:
        start(place / "disk" / "pg")
    assert str(refused.value) == f"data folder {place / 'disk' / 'pg'} cannot be written: Read-only file system"


@needs_root
@pytest.mark.parametrize("size", ["32k", "8m"], ids=["full from the start", "full during initdb"])
def test_full_disk(place: Path, size: str) -> None:
    with mounted(place / "disk", f"size={size},mode=755"):
        with pytest.raises(Unavailable, match=r"data folder .* cannot be written: .*No space left on device"):
            start(place / "disk" / "pg", settings=QUICK)
        assert not (place / "disk" / "pg" / "cluster").exists()
        reset(place / "disk" / "pg")


@needs_root
def test_a_look_that_was_killed_is_not_taken_for_a_no(run_python: Run) -> None:
    said = run_python(LOOK_WITHOUT_A_STACK).communicate(timeout=60)[0].splitlines()
    assert said[0] == "True"
    assert said[1].startswith("it is unknown whether nobody can reach /: signal ")


def test_no_child_dies_of_grpc_before_it_is_a_program(run_python: Run) -> None:
    assert run_python(FORK_BESIDE_CALLS).communicate(timeout=60)[0] == "[]\n"
