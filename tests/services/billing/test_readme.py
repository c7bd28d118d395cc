"""The README names every room, state and handler by the name that it has, and for all that was asked for a test."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from payonce.services.billing import ROLES
from payonce.services.billing.subscriptions.model import State

ROOMS = Path(str(files("payonce.services.billing")))
README = (ROOMS / "README.md").read_text(encoding="utf-8")
TESTS = Path(__file__).parents[2]
SECTIONS = {3, 4, 5, 6, 7, 8, 10, 11, 13, 14, 15, 16}
"""Of the requirements, those that ask for something that can be shown."""
PROMISES = dict(
    re.findall(r"^\| (\d[^|]+?) \| (.+) \|$", README.partition("## Requirements and their tests")[2], re.MULTILINE)
)


def test_every_state_and_every_handler_of_the_seed_is_named() -> None:
    for state in State:
        assert re.search(rf"\b{state}\b", README), state
    handlers = {handler.function.__name__ for role in ROLES.values() for handler in role}
    assert {name for name in handlers if name.startswith("process_")} <= set(re.findall(r"\b\w+\b", README))


@pytest.fixture(scope="module")
def written() -> set[str]:
    return {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_everything_that_was_asked_for_has_a_row() -> None:
    assert {int(re.match(r"\d+", asked)[0]) for asked in PROMISES} == SECTIONS  # type: ignore[index]
    assert all("`test_" in shown for shown in PROMISES.values())


def test_every_test_that_is_named_is_there(written: set[str]) -> None:
    named = set(re.findall(r"`(test_\w+)`", README))
    assert named - written == set()


def test_every_file_that_is_linked_or_named_is_there() -> None:
    root = TESTS.parent
    named = [root / path for path in re.findall(r"`(tests/[\w/.]+|docs/[\w/.-]+)`", README)]
    linked = [ROOMS / path for path in re.findall(r"\]\(([^)#:]+)\)", README)]
    assert linked
    assert [str(path) for path in (*named, *linked) if not path.exists()] == []
