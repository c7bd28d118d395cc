"""`payonce crash`: points run again, and what does not exist refused."""

import pytest

from tests.cli.conftest import Payonce

POINT = "broadcast @ b-1 engine.messages.work:Work.commit #1 @ after"


def test_a_point_of_a_report_is_run_again(payonce: Payonce) -> None:
    ended = payonce("crash", "--only", POINT, "--json")
    assert ended.code == 0, ended.stderr
    figures = ended.json
    assert {name: figures[name] for name in ("scenarios", "points", "uncovered", "violations")} == {
        "scenarios": 1,
        "points": 1,
        "uncovered": 0,
        "violations": 0,
    }


def test_a_point_that_is_not_reached_fails_and_says_how_to_run_it_again(payonce: Payonce) -> None:
    nowhere = POINT.replace("#1", "#9")
    ended = payonce("crash", "--seed", "3", "--only", nowhere)
    assert ended.code == 1
    assert "not reached again" in ended.stderr
    assert f"payonce crash --seed 3 --only '{nowhere}'" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "there is no scenario 'nope'; known are: charge,"),
        (["--only", "nonsense"], "is not a point"),
        (["--backend", "rabbit"], "there is no backend 'rabbit'; there are: postgres, redis"),
        (["payout", "--backend", "redis"], "are explored over their task service; leave out --backend"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(payonce: Payonce, arguments: list[str], said: str) -> None:
    ended = payonce("crash", *arguments)
    assert ended.code == 2
    assert said in ended.sentence
