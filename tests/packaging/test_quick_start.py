"""The quick start as a reader follows it: the wheel, an empty virtual environment, an empty folder, one file."""

import re
import shlex
import signal
from pathlib import Path
from typing import Final

import pytest

from payonce.testing import eventually
from tests.docs.documents import ROOT, blocks
from tests.packaging.conftest import Install

PAGE: Final = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
LINES_MAX: Final = 25
PATIENCE_S: Final = 60.0


def shell_lines() -> list[str]:
    return [line for block in blocks(PAGE, "sh") for line in block.splitlines()]


@pytest.mark.timeout(300)
async def test_the_quick_start_runs_from_the_wheel_in_an_empty_folder(payonce_wheel: Path, install: Install) -> None:
    [program] = blocks(PAGE, "python")
    assert len(program.splitlines()) <= LINES_MAX
    [extra] = re.findall(r"^pip install 'payonce(\[\w+\])'$", PAGE, re.MULTILINE)
    reader = install([f"{payonce_wheel}{extra}"])
    (reader.folder / "hello.py").write_text(program)

    [run] = [line for line in shell_lines() if line.startswith("payonce run ")]
    worker = reader.start(*shlex.split(run))
    await eventually(
        lambda: "worker_started" in reader.log() or worker.poll() is not None, PATIENCE_S, "the worker starts"
    )
    assert worker.poll() is None, reader.log()

    [put] = [line for line in shell_lines() if line.startswith("payonce queues put ")]
    assert [reader.json(*shlex.split(put)[1:])["accepted"] for _ in range(2)] == [True, False]
    [trace] = [line for line in shell_lines() if line.startswith("payonce trace ")]
    await eventually(lambda: "success" in reader(*shlex.split(trace)), PATIENCE_S, "Ada is greeted")
    shown = reader(*shlex.split(trace))
    assert "shy at first" in shown

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    report = reader.json("--service", "hello:SERVICE", "audit", "run")
    assert report["findings"] == []
    psql = reader.json("db", "psql")["command"]
    assert reader(*psql, "-Atc", "select name from hello.greetings") == "Ada\n"
