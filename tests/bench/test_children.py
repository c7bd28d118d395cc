"""A child that dies, errs or falls silent is an error with its last words, within its bound."""

import sys
import time
from pathlib import Path

import pytest

from bench.children import Child
from bench.failure import BenchFailed
from bench.peers.command import Command

FAR_S = 60.0
"""Above what any stand-still of the machine adds, and far below the time for which the children sleep."""


def child(script: str, log: Path, answers: bool = False) -> Child:
    return Child([sys.executable, "-c", script], "the child", log, answers=answers)


def test_dead_worker_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    script = "import sys; print('no such table: jobs'); sys.exit(3)"
    with child(script, tmp_path / "log") as worker, pytest.raises(BenchFailed) as failure:
        worker.must(lambda: False, "its first job", limit_s=30)
    assert "code 3" in str(failure.value)
    assert "its first job" in str(failure.value)
    assert "no such table: jobs" in str(failure.value)


def test_dead_driver_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    script = "import sys; print('password wrong', file=sys.stderr); sys.exit(4)"
    with child(script, tmp_path / "log", answers=True) as driver, pytest.raises(BenchFailed, match="password wrong"):
        driver.ask(Command("open"), limit_s=30)


def test_a_question_to_a_driver_that_has_ended_is_an_error_with_its_last_output(tmp_path: Path) -> None:
    script = "import sys; print('password wrong', file=sys.stderr); sys.exit(4)"
    with child(script, tmp_path / "log", answers=True) as driver:
        with pytest.raises(BenchFailed):
            driver.must(lambda: False, "its end", limit_s=30)
        with pytest.raises(BenchFailed, match="password wrong"):
            driver.ask(Command("open"), limit_s=30)


def test_silent_driver_is_given_up_in_time(tmp_path: Path) -> None:
    started = time.monotonic()
    script = "import time; time.sleep(600)"
    with child(script, tmp_path / "log", answers=True) as driver, pytest.raises(BenchFailed, match="answer to open"):
        driver.ask(Command("open"), limit_s=0.2)
    assert time.monotonic() - started < FAR_S


def test_driver_that_answers_half_a_line_is_given_up_in_time(tmp_path: Path) -> None:
    started = time.monotonic()
    script = "import time; print('{', end='', flush=True); time.sleep(600)"
    with child(script, tmp_path / "log", answers=True) as driver, pytest.raises(BenchFailed, match="answer to open"):
        driver.ask(Command("open"), limit_s=0.5)
    assert time.monotonic() - started < FAR_S


def test_a_wait_that_ends_in_time_says_whether_it_came_true(tmp_path: Path) -> None:
    with child("import time; time.sleep(600)", tmp_path / "log") as worker:
        assert worker.wait_for(lambda: True, "nothing", limit_s=1)
        assert not worker.wait_for(lambda: False, "nothing", limit_s=0.05)


def test_leaving_the_block_ends_the_child_and_what_it_started(tmp_path: Path) -> None:
    script = (
        "import pathlib, subprocess, sys, time\n"
        "grandchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'grandchild')!r}).write_text(str(grandchild.pid))\n"
        "time.sleep(600)\n"
    )
    note = tmp_path / "grandchild"
    with child(script, tmp_path / "log") as worker:
        worker.must(lambda: note.exists() and note.read_text() != "", "its child", limit_s=30)
        assert worker.memory_mb() > 1
    status = Path(f"/proc/{note.read_text()}/status")
    deadline = time.monotonic() + FAR_S
    while status.exists() and "(zombie)" not in status.read_text():
        assert time.monotonic() < deadline, "the grandchild outlived the block"
