"""Services that are named by their module while they are developed: `--service hello:SERVICE`."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from payonce.app import SERVICE_MODULES
from payonce.testing.processes import clean_environment

HELLO = """
import typer
from payonce import Policy, Service, Work, handles


@handles(Policy("hello-greet"))
async def greet(work: Work) -> None: ...


def commands() -> typer.Typer:
    group = typer.Typer(help="Greets.", no_args_is_help=True)
    group.command("now")(lambda: print("Hello"))
    group.command("later")(lambda: print("Later"))
    return group


SERVICE = Service("hello", None, {"worker": [greet], "waver": []}, commands=commands)
NUMBER = 5
"""
ROLES = "import sys; from payonce.cli import serve; serve._run = lambda settings, roles, *_: print(roles); "
MAIN = "from payonce.cli.application import run_command; sys.exit(run_command(sys.argv[1:]))"


def payonce(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command in this folder; instead of serving, it prints the roles."""
    return subprocess.run(
        [sys.executable, "-P", "-c", ROLES + MAIN, *arguments],
        cwd=folder,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hello.py").write_text(HELLO)
    (tmp_path / "broken.py").write_text("import nowhere_at_all\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "variables", "roles"),
    [
        (["run", "--service", "hello:SERVICE"], {}, ["hello.worker", "hello.waver"]),
        (["run", "hello.waver", "--service", "hello:SERVICE"], {}, ["hello.waver"]),
        (["--service", "hello:SERVICE", "run"], {}, ["hello.worker", "hello.waver"]),
        (["run"], {SERVICE_MODULES: " hello:SERVICE ,"}, ["hello.worker", "hello.waver"]),
        (["run", "--service", "hello:SERVICE"], {SERVICE_MODULES: "hello:SERVICE"}, ["hello.worker", "hello.waver"]),
    ],
)
def test_run_takes_the_roles_of_a_named_service(
    folder: Path, arguments: list[str], variables: Mapping[str, str], roles: list[str]
) -> None:
    ended = payonce(folder, *arguments, **variables)
    assert (ended.returncode, ended.stdout) == (0, f"{roles}\n"), ended.stderr


def test_up_runs_a_named_service_beside_the_others(folder: Path) -> None:
    assert "'tally.worker', " in payonce(folder, "up", "--service", "hello:SERVICE").stdout
    assert "'hello.worker', 'hello.waver'" in payonce(folder, "up", "--service", "hello:SERVICE").stdout


def test_a_named_service_has_its_commands(folder: Path) -> None:
    assert payonce(folder, "--service", "hello:SERVICE", "hello", "now").stdout == "Hello\n"
    assert "Greets." in payonce(folder, "--service", "hello:SERVICE", "--help").stdout
    assert payonce(folder, "hello", "now").returncode == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hello", "the service 'hello' is not of the form MODULE:NAME; write for example hello:SERVICE"),
        ("nowhere:SERVICE", "the service nowhere:SERVICE cannot be loaded: no module nowhere is in "),
        ("hello:SERVICES", "hello.py has no SERVICES"),
        ("hello:NUMBER", "hello:NUMBER is int; it must be a payonce Service, or a tuple of them"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(folder: Path, name: str, sentence: str) -> None:
    ended = payonce(folder, "run", "--service", name)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert sentence in ended.stderr
    assert ended.stderr.startswith("error: ")


def test_a_missing_import_of_the_module_itself_is_shown_with_its_place(folder: Path) -> None:
    ended = payonce(folder, "run", "--service", "broken:SERVICE")
    assert ended.returncode == 1
    assert 'broken.py", line 1' in ended.stderr


def test_run_without_a_role_or_a_service_is_refused(folder: Path) -> None:
    ended = payonce(folder, "run")
    assert ended.returncode == 2
    assert "no role is named; give roles or --service MODULE:NAME; roles are: tally.worker," in ended.stderr
