"""Without DATABASE_URL: a private server by itself, the demonstration on it, and its end."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from payonce import __version__
from payonce.embedded import start
from tests.cli.conftest import PATIENCE_S, QUEUE, Payonce, ask, depth_of, until

ROUNDS_MAX = 3


def test_help_comes_before_anything_heavy_is_imported(private_payonce: Payonce) -> None:
    ended = private_payonce("--help")
    assert ended.code == 0
    assert "payonce demo" in ended.stdout
    assert private_payonce("--version").stdout == f"payonce {__version__}\n"
    heavy = {"aiohttp", "asyncpg", "pydantic", "starlette", "structlog", "uvicorn", "msgspec"}
    script = f"import sys, payonce.cli; print(sorted(set(sys.modules) & {heavy}))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_simulated_vendor_does_not_load_the_client_of_sockets() -> None:
    script = (
        "import sys; from payonce.kit.http import HttpClient, parse_url\n"
        "HttpClient('vendor', 'https://vendor.example', transport=lambda scope, receive, send: None)\n"
        "print('aiohttp' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


@pytest.mark.parametrize(
    "module",
    ["payonce.app.process", "payonce.app.logging", "payonce.queues.postgres.admin", "payonce.engine.messages.process"],
)
def test_a_command_that_looks_does_not_load_what_draws_tracebacks(module: str) -> None:
    script = f"import sys, {module}; print(sorted(set(sys.modules) & {{'structlog', 'rich', 'pygments'}}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "['structlog']\n"


def test_who_loaded_rich_before_has_it_afterwards() -> None:
    script = "import rich.table, payonce.app.logging, rich.console, sys; print(sys.modules['rich'] is rich)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_the_first_command_starts_and_migrates_a_private_server(private_payonce: Payonce, data_dir: Path) -> None:
    assert private_payonce("queues", "put", QUEUE, "{}", "--json").json["accepted"] is True
    status = private_payonce("db", "status", "--json").json
    assert (status["embedded"], status["data_dir"], status["pending"]) == (True, str(data_dir), [])
    assert private_payonce("db", "psql", "--json").json["command"][0].endswith("psql")
    assert private_payonce("db", "stop", "--json").json == {"stopped": True}
    assert private_payonce("db", "stop", "--json").json == {"stopped": False}
    depth = depth_of(private_payonce)
    assert depth["ready"] == 1


@pytest.mark.timeout(400)
@pytest.mark.full
def test_the_demonstration_accounts_for_every_message_and_leaves_nothing_behind(
    private_payonce: Payonce, data_dir: Path
) -> None:
    before = depth_of(private_payonce)
    killed = private_payonce.start("demo", "queue")
    until(lambda: len(workers_of(killed.pid)) == 3, "a demonstration has its workers")
    killed.kill()
    until(lambda: not workers_of(killed.pid), "its workers die with it")

    figures = demonstrated(private_payonce)
    assert (figures["messages"], figures["lost"], figures["doubled"]) == (300, 0, 0)
    assert figures["applied"] + figures["parked"] == 300
    assert figures["parked"] >= figures["poison"] >= 2
    assert figures["kills"] >= 10

    left = "select count(*) from pg_database where datname like 'payonce_demo_%'"
    assert ask(start(data_dir / "postgres").superuser_url, left) == 0
    after = depth_of(private_payonce)
    assert after | {"oldest_ready_s": 0} == before | {"oldest_ready_s": 0}


def demonstrated(payonce: Payonce) -> dict[str, Any]:
    """Of a demonstration with enough blows: where its own process stands still the work may be over before them, of
    which it complains. That is no broken promise, and it is tried again; every other complaint is one."""
    for seed in range(5, 5 + ROUNDS_MAX):
        ended = payonce("demo", "queue", "--json", "--seed", str(seed), "--messages", "300")
        complaints = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        if [line for line in complaints if not line.endswith("the work ended too early")] or not complaints:
            break
    assert ended.code == 0, ended.stderr
    figures: dict[str, Any] = ended.json
    return figures


@pytest.mark.full
def test_transfers_survive_lying_banks_and_killed_workers(private_payonce: Payonce) -> None:
    ended = private_payonce("demo", "--json", "--seed", "9", "--size", "300")
    figures = ended.json
    assert ended.code == 0, ended.stderr
    assert (figures["transfers"], figures["lost"], figures["doubled"], figures["in_review"]) == (300, 0, 0, 0)
    assert figures["finished"] + figures["refused"] + figures["compensated"] == 300
    assert figures["unexplained"] == {"EUR": "0", "JPY": "0"}
    assert figures["kills"] >= 10
    assert sum(figures["faults"].values()) > 60


def test_ctrl_c_ends_a_demonstration_cleanly(private_payonce: Payonce) -> None:
    process = private_payonce.start("demo", "queue")
    until(lambda: len(workers_of(process.pid)) == 3, "a demonstration has its workers")
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (130, "", "")
    assert not workers_of(process.pid)


def test_reset_deletes_only_when_told_so(private_payonce: Payonce, data_dir: Path) -> None:
    private_payonce("queues", "put", QUEUE, "{}")
    refused = private_payonce("db", "reset")
    assert (refused.code, "add --yes" in refused.sentence) == (2, True)
    assert private_payonce("db", "reset", "--yes", "--json").json["reset"] is True
    assert not (data_dir / "postgres").exists()
    depth = depth_of(private_payonce)
    assert depth["ready"] == 0


def workers_of(pid: int) -> list[str]:
    """Command lines of the processes that a demonstration started, zombies not counted."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if "--die-with" in words and str(pid) in words:
            lines.append(" ".join(words))
    return lines
