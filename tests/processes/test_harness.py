"""The harness itself: what it starts does what it is told, and does not outlive the test."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from payonce.testing import eventually
from payonce.testing.processes import Processes, clean_environment

SLEEPER = (sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()")
PARENT = """
import asyncio
import sys
from pathlib import Path
from payonce.testing.processes import Processes

child = Processes(Path(sys.argv[1])).start(sys.executable, "-c", sys.argv[2])
asyncio.run(child.says("up"))
print(child.pid, flush=True)
sys.stdin.read()
"""


async def test_children_that_run_or_stand_still_are_ended_with_the_harness(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        running, stopped, killed = (processes.start(*SLEEPER) for _ in range(3))
        for child in (running, stopped, killed):
            await child.says("up")
        stopped.stop()
        killed.kill()
        assert (running.running, stopped.running, killed.running) == (True, True, False)
        assert state_of(stopped.pid) == "T"
    assert [child.running for child in (running, stopped, killed)] == [False] * 3
    assert await stopped.ended() == -signal.SIGKILL


async def test_a_stopped_child_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start(*SLEEPER)
        await child.says("up")
        child.stop()
        child.terminate()
        assert child.running
        child.resume()
        assert await child.ended() == -signal.SIGTERM


async def test_stopping_a_child_that_has_ended_tells_its_last_words(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start(sys.executable, "-c", "print('the last words')")
        await eventually(lambda: not child.running)
        with pytest.raises(AssertionError, match="the last words"):
            child.stop()


async def test_waiting_for_words_of_a_child_that_has_ended_tells_its_last_ones(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        child = processes.start(sys.executable, "-c", "print('the last words')")
        with pytest.raises(AssertionError, match="the last words"):
            await child.says("something else")


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), SLEEPER[-1]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert state_of(child_pid) is not None
        parent.kill()
    asyncio.run(eventually(lambda: state_of(child_pid) in (None, "Z"), what="the child is gone"))


def test_children_are_not_led_to_somebodys_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://user@host/production")
    monkeypatch.setenv("QUEUE_POLICY__ADDITIONS__LEASE_S", "1")
    assert not {"DATABASE_URL", "QUEUE_POLICY__ADDITIONS__LEASE_S"} & clean_environment().keys()
    assert clean_environment()["PATH"] == os.environ["PATH"]


def state_of(pid: int) -> str | None:
    """The letter that the kernel shows; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
