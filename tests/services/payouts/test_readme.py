"""Every test and metric that the README names exists."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from payonce.engine.monitoring.metrics import REGISTRY

TESTS = Path(__file__).parents[2]
CRITERIA, NOTES, METRICS = 8, 6, 5
"""Of the requirements: success criteria, implementation notes and key metrics."""


def promises() -> dict[str, str]:
    """By requirement, the rest of its row."""
    readme = (files("payonce.services.payouts") / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Requirements and their tests")[2]
    rows = re.findall(r"^\| (?!success criterion|note |metric )([^|]+?) \| (.+) \|$", table, re.MULTILINE)
    return dict(rows)


PROMISES = promises()


@pytest.fixture(scope="module")
def written() -> set[str]:
    return {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_every_requirement_has_a_row() -> None:
    numbers = [int(name.split()[0]) for name in PROMISES if name[0].isdigit()]
    assert numbers == [*range(1, CRITERIA + 1), *range(1, NOTES + 1)]
    assert len(PROMISES) == CRITERIA + NOTES + METRICS


@pytest.mark.parametrize("requirement", PROMISES)
def test_a_promise_names_existing_tests_and_metrics(requirement: str, written: set[str]) -> None:
    named = re.findall(r"`(\w+)`", PROMISES[requirement])
    tests = {name for name in named if name.startswith("test_")}
    assert tests, f"{requirement} names no test"
    assert tests <= written
    metrics = {name.removesuffix("_total") for name in set(named) - tests}
    assert metrics <= {family.name for family in REGISTRY.collect()}
