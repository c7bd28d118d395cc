"""The Dockerfile names existing files, packages and commands, and runs as an unprivileged user."""

import json
import re
from fnmatch import fnmatch

from typer.main import get_command

from payonce.cli.application import app
from payonce.settings import Settings
from payonce.settings.variables import variables
from tests.deploy.documents import DEPLOY

ROOT = DEPLOY.parent
TEXT = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
INSTRUCTIONS = [line.split(None, 1) for line in TEXT.splitlines() if line and not line.startswith("#")]


def instructions(name: str) -> list[str]:
    return [rest for instruction, rest in INSTRUCTIONS if instruction == name]


def copied() -> list[str]:
    return [path for rest in instructions("COPY") if "--from" not in rest for path in rest.split()[:-1]]


def test_what_is_copied_is_there_and_not_kept_out() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in copied():
        assert (ROOT / path).exists(), path
        assert any(fnmatch(path, f"{mark}*") for mark in kept), path


def test_what_builds_it_is_locked() -> None:
    [names] = re.findall(r"\^\(([a-z|-]+)\)==", TEXT)
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE))
    assert set(names.split("|")) <= locked
    assert "--require-hashes" in TEXT


def test_it_runs_the_command_that_there_is_on_the_port_it_is_told() -> None:
    [entry], [command] = (json.loads(instructions(name)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert entry == "payonce"
    assert command in get_command(app).commands  # type: ignore[attr-defined]
    environment = dict(pair.split("=", 1) for rest in instructions("ENV")[1:] for pair in rest.split())
    assert environment["PORT"] == instructions("EXPOSE")[0]
    assert {name for name in environment if name not in ("PATH", "PYTHONUNBUFFERED")} <= variables(Settings).keys()


def test_it_does_not_run_as_root() -> None:
    [user] = instructions("USER")
    assert user.isdigit()
    assert int(user) > 0
    names = [instruction for instruction, _ in INSTRUCTIONS]
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_both_stages_have_the_python_that_is_tested() -> None:
    versions = set(re.findall(r"python:(\d+\.\d+)-slim", TEXT))
    assert len(instructions("FROM")) == 2
    assert versions == {"3.11"}
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
