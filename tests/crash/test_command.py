"""`payonce crash` on the command line."""

import json

import pytest

from payonce.cli import run_command

POINT = "broadcast @ b-1 engine.work:Work.commit #1 @ after"


def test_a_point_of_a_report_is_run_again(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["crash", "--only", POINT, "--json"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert {name: figures[name] for name in ("scenarios", "points", "uncovered", "violations")} == {
        "scenarios": 1,
        "points": 1,
        "uncovered": 0,
        "violations": 0,
    }


def test_a_point_that_is_not_reached_fails_and_says_how_to_run_it_again(capfd: pytest.CaptureFixture[str]) -> None:
    nowhere = POINT.replace("#1", "#9")
    assert run_command(["crash", "--seed", "3", "--only", nowhere]) == 1
    said = capfd.readouterr()
    assert "not reached again" in said.err
    assert f"payonce crash --seed 3 --only '{nowhere}'" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "there is no scenario 'nope'; known are: charge,"),
        (["--only", "nonsense"], "is not a point"),
        (["--backend", "redis"], "there is no backend 'redis'"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(
    capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run_command(["crash", *arguments]) == 2
    assert said in capfd.readouterr().err
