"""Whatever was killed, and whenever: the next start finds a consistent server, and no other process is harmed."""

import asyncio
import fcntl
import os
import signal
import subprocess
import threading
from pathlib import Path

import asyncpg
import pytest

from payonce.embedded import postgres, postmaster, reset, roles, start, stop
from payonce.embedded.postmaster import is_alive
from payonce.kit.outcomes import Unavailable
from tests.embedded.conftest import QUICK, Run, ask, eventually

START = """
import sys
from pathlib import Path
from payonce.embedded import start
server = start(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"})
print(server.pid, server.started, flush=True)
"""

INSERT_FOR_EVER = """
import asyncio, sys
import asyncpg

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    for number in range(1_000_000):
        await connection.execute("insert into entry values ($1)", number)
        print(number, flush=True)

asyncio.run(main())
"""


TRIES = 20


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid))


def pid_file_of_a_past_server(data_dir: Path) -> tuple[Path, list[str]]:
    server = start(data_dir, settings=QUICK)
    pid_file = data_dir / "cluster" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    stop(server)
    return pid_file, lines


def test_killed_under_load_loses_nothing_that_was_committed(made_dir: Path, run_python: Run) -> None:
    server = start(made_dir)
    ask(server.owner_url, "create table entry (number int primary key)")
    writer = run_python(INSERT_FOR_EVER, server.owner_url)
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < 50:
        pass
    kill_and_wait(server.pid)
    told = [int(line) for line in writer.communicate()[0].splitlines() if line.isdigit()]
    again = start(made_dir, tie_to_parent=True)
    assert again.started
    last_told = max(told, default=50)
    # The last insert may have been committed without its answer having arrived.
    assert ask(again.owner_url, "select count(*) from entry") in {last_told + 1, last_told + 2}


def test_backend_that_outlives_its_postmaster_is_cleared(made_dir: Path) -> None:
    server = start(made_dir, settings=QUICK)

    async def kill_beside_a_busy_backend() -> int:
        connection = await asyncpg.connect(server.owner_url)
        backend_pid: int = connection.get_server_pid()
        # Pure computation: it never looks whether its postmaster lives.
        busy = asyncio.ensure_future(connection.execute("select count(*) from generate_series(1, 10000000000)"))
        while (
            await asyncio.to_thread(
                ask, server.owner_url, f"select state from pg_stat_activity where pid = {backend_pid}"
            )
            != "active"
        ):
            pass
        await asyncio.to_thread(kill_and_wait, server.pid)
        assert is_alive(backend_pid)
        assert (await asyncio.to_thread(start, made_dir, settings=QUICK, tie_to_parent=True)).started
        with pytest.raises(asyncpg.PostgresConnectionError):
            await busy
        return backend_pid

    assert not is_alive(asyncio.run(kill_beside_a_busy_backend()))


def test_reused_pid_harms_nobody(made_dir: Path) -> None:
    pid_file, lines = pid_file_of_a_past_server(made_dir)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
        assert not stop(made_dir)
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
        assert start(made_dir, settings=QUICK, tie_to_parent=True).started
        assert stranger.poll() is None
        stranger.kill()


def test_zombie_pid_is_not_a_server(made_dir: Path) -> None:
    pid_file, lines = pid_file_of_a_past_server(made_dir)
    with subprocess.Popen(["true"]) as zombie:
        eventually(lambda: not is_alive(zombie.pid))
        pid_file.write_text("\n".join([str(zombie.pid), *lines[1:], ""]))
        assert start(made_dir, settings=QUICK, tie_to_parent=True).started


def begun(run_python: Run, data_dir: Path, half_made: str) -> "subprocess.Popen[str]":
    """A starter that has made so much, or more: on a busy machine it may be further than was to be seen."""
    starter = run_python(START, data_dir)
    eventually(lambda: any(data_dir.glob(half_made)) or (data_dir / "cluster").exists())
    return starter


def test_starter_killed_in_the_middle_of_initdb(data_dir: Path, run_python: Run) -> None:
    for _ in range(TRIES):
        starter = begun(run_python, data_dir, "cluster.making-*/PG_VERSION")
        starter.kill()
        starter.wait()
        # Half-made: the version file is among the first that initdb writes.
        if any(data_dir.glob("cluster.making-*/PG_VERSION")) and not (data_dir / "cluster").exists():
            break
        reset(data_dir)
    else:
        raise AssertionError(f"in {TRIES} tries no starter was killed in the middle")
    server = start(data_dir, settings=QUICK, tie_to_parent=True)
    assert server.started
    assert ask(server.owner_url, "select 1") == 1
    assert not any(data_dir.glob("cluster.making-*"))


def test_starter_killed_while_the_server_comes_up(data_dir: Path, run_python: Run) -> None:
    starter = run_python(START, data_dir)
    eventually((data_dir / "cluster" / "postmaster.pid").exists)
    starter.kill()
    starter.wait()
    assert not start(data_dir).started


def test_two_starters_at_once_share_one_server(data_dir: Path, run_python: Run) -> None:
    starters = [run_python(START, data_dir) for _ in range(2)]
    answers = [starter.communicate()[0].split() for starter in starters]
    assert answers[0][0] == answers[1][0]
    assert sorted(started for _, started in answers) == ["False", "True"]


def test_stop_in_the_middle_of_a_start_waits_and_stops(data_dir: Path, run_python: Run) -> None:
    starter = begun(run_python, data_dir, "cluster.making-*")
    assert stop(data_dir)
    pid, started = starter.communicate()[0].split()
    assert started == "True"
    assert not is_alive(int(pid))


def test_start_beside_a_stop_ends_with_a_server(made_dir: Path) -> None:
    start(made_dir, settings=QUICK)
    stopper = threading.Thread(target=stop, args=(made_dir,))
    stopper.start()
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    stopper.join()
    # Whichever came first, the loser saw a whole state: a server that answers, or none at all.
    if is_alive(server.pid):
        assert ask(server.owner_url, "select 1") == 1
    else:
        assert not stop(made_dir)


def test_adopting_a_server_that_is_going_down_starts_a_new_one(made_dir: Path) -> None:
    first = start(made_dir, settings=QUICK)
    os.kill(first.pid, signal.SIGINT)
    second = start(made_dir, settings=QUICK, tie_to_parent=True)
    assert second.started
    assert second.pid != first.pid


def test_lock_held_out_of_sight_gives_a_sentence(made_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server in another container would hold it, whose processes are not in our /proc."""
    monkeypatch.setattr(postmaster, "ORPHAN_GRACE_S", 0.1)
    monkeypatch.setattr(postmaster, "KILL_LIMIT_S", 0.1)
    with (made_dir / "server.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="if the folder is shared with another container, stop the server there"):
            start(made_dir)


def test_server_that_does_not_answer_is_reported_and_left_alone(
    made_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr(postgres, "START_LIMIT_S", 0.1)
            impatient.setattr(roles, "CONNECT_LIMIT_S", 0.1)
            with pytest.raises(Unavailable, match=rf"\(pid {server.pid}\) does not answer after 0 s .*try again later"):
                start(made_dir)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert start(made_dir).pid == server.pid


def test_server_that_refuses_its_set_up_is_reported(made_dir: Path) -> None:
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    ask(server.superuser_url, "alter database postgres rename to elsewhere")
    with pytest.raises(Unavailable, match=r'refuses to be set up: database "postgres" does not exist'):
        start(made_dir)


def test_damaged_cluster_gives_a_sentence(made_dir: Path) -> None:
    (made_dir / "cluster" / "PG_VERSION").unlink()
    with pytest.raises(Unavailable, match="is not a PostgreSQL cluster any more: restore a backup"):
        start(made_dir)
