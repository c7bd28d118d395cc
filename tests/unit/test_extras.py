"""Missing extras are named together, with one command that installs them."""

import re

import pytest

from payonce.app import extras
from payonce.app.extras import check_extras
from payonce.kit.outcomes import Unavailable
from payonce.settings import load_settings

ROLES = ["tally.worker"]


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setattr(extras, "find_installations", list)
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "CLOUD_TASKS_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, "run: pip install 'payonce[embedded]', or set DATABASE_URL"),
        ({"REDIS_URL": "redis://localhost"}, "run: pip install 'payonce[embedded,redis]', or set DATABASE_URL"),
        (
            {"DATABASE_URL": "postgresql://p@h/d", "REDIS_URL": "redis://h", "CLOUD_TASKS_PROJECT_ID": "project-1"},
            "run: pip install 'payonce[gcp,redis]'",
        ),
    ],
)
def test_one_command_installs_all_that_is_missing(
    environment: dict[str, str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(Unavailable, match=f"{re.escape(command)}$"):
        check_extras(load_settings(), ROLES)


def test_a_deployment_with_its_own_database_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://p@h/d")
    check_extras(load_settings(), ROLES)


def test_a_command_needs_no_google_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://p@h/d")
    monkeypatch.setenv("CLOUD_TASKS_PROJECT_ID", "project-1")
    check_extras(load_settings(), ())
