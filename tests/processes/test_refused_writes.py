"""A store that answers and takes nothing: full, or read-only. Workers wait for it and lose nothing."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from payonce.testing import ScratchDatabase, ScratchServer, eventually
from tests.processes.testbed import ProcessTestbed, open_testbed

DISK_BYTES = 32 * 1024 * 1024
MESSAGES = 1_500
SLOTS, WORKERS = 20, 2


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A file system of its own, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="payonce-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture
def scratch_on_tiny_disk(postgres: ScratchServer, tiny_disk: Path) -> Iterator[ScratchDatabase]:
    with postgres.lent():
        pass  # The template is made for the first database that is asked for.
    space = tiny_disk / "space"
    space.mkdir(mode=0o700)
    owner = next(postgres.server.data_dir.rglob("PG_VERSION")).stat()
    os.chown(space, owner.st_uid, owner.st_gid)
    tiny_disk.chmod(0o755)
    postgres.execute(f"create tablespace tiny location '{space}'")
    try:
        postgres.execute("create database on_tiny_disk owner payonce_owner template payonce_template tablespace tiny")
        yield postgres.urls("on_tiny_disk")
    finally:
        postgres.execute("drop database if exists on_tiny_disk with (force)")
        postgres.execute("drop tablespace tiny")


@pytest.fixture
def testbed_on_tiny_disk(
    scratch_on_tiny_disk: ScratchDatabase, tmp_path: Path
) -> AbstractAsyncContextManager[ProcessTestbed]:
    return open_testbed(scratch_on_tiny_disk, tmp_path)


async def test_a_full_disk_holds_work_up_and_loses_and_doubles_nothing(
    testbed_on_tiny_disk: ProcessTestbed, tiny_disk: Path
) -> None:
    testbed = testbed_on_tiny_disk
    workers = [testbed.begin_worker(slots=SLOTS) for _ in range(WORKERS)]
    await testbed.serving(*workers)
    await half_way(testbed, MESSAGES)
    fill(tiny_disk)
    try:
        let_all_go(testbed, MESSAGES)
        await eventually(lambda: any("No space left" in worker.output for worker in workers), 60, "a write is refused")
        assert await testbed.applied() < MESSAGES
    finally:
        (tiny_disk / "filler").unlink()
    await testbed.drained()
    await testbed.each_applied_once()
    assert all(worker.running for worker in workers)


@pytest.mark.parametrize("by", ["new sessions", "lifted under old sessions"])
async def test_a_database_that_became_read_only_holds_work_up_and_loses_and_doubles_nothing(
    testbed: ProcessTestbed, postgres: ScratchServer, by: str
) -> None:
    """Managed databases do this when their disk is nearly full."""
    workers = [testbed.begin_worker(slots=SLOTS) for _ in range(WORKERS)]
    await testbed.serving(*workers)
    await half_way(testbed, 400)
    name = testbed.scratch.name
    postgres.execute(f"alter database {name} set default_transaction_read_only = on")
    await testbed.drop_connections()
    let_all_go(testbed, 400)
    await eventually(lambda: all("read-only" in worker.output for worker in workers), 60, "writes are refused")
    assert await testbed.applied() < 400
    postgres.execute(f"alter database {name} reset default_transaction_read_only")
    if by == "new sessions":
        await testbed.drop_connections()
    await testbed.drained()
    await testbed.each_applied_once()
    assert all(worker.running for worker in workers)


async def half_way(testbed: ProcessTestbed, messages: int) -> None:
    """Some are applied and all slots are taken by runs that wait: the load cannot be over before the store refuses."""
    await testbed.put(range(50))
    await testbed.reached(50)
    await testbed.put(range(50, messages), deed="hold")
    await eventually(lambda: len({note.row for note in testbed.journal.notes("holding")}) >= SLOTS * WORKERS)


def let_all_go(testbed: ProcessTestbed, messages: int) -> None:
    for row in range(50, messages):
        testbed.journal.let_go(row)


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb") as filler:
        try:
            while True:
                filler.write(bytes(65_536))
                filler.flush()
        except OSError:
            pass
