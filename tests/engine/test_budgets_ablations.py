"""With a safeguard of the budgets removed, named tests fail. A check that cannot fail is none."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from payonce.engine.database import rate_limits
from payonce.testing import OpenStage
from tests.ablations import patched
from tests.conformance.wire import without
from tests.engine import test_budgets
from tests.engine.test_outbox_ablations import taking

Check = Callable[[OpenStage, pytest.MonkeyPatch], Awaitable[None]]


def plain(check: Callable[..., Awaitable[None]], *arguments: Any) -> Check:
    return lambda stage, _: check(stage, *arguments)


async def never_held(*_: object) -> bool:
    return False


ABLATIONS: dict[str, tuple[Callable[[], AbstractContextManager[None]], Check]] = {
    "what was spent": (
        taking(
            r"set arrival_at = greatest\(arrival_at, payonce\.due_now\(\)\)",
            "set arrival_at = payonce.due_now()",
            "as asked_at",
        ),
        plain(test_budgets.test_a_burst_goes_at_once_and_then_calls_go_at_the_rate),
    ),
    "what others spent meanwhile": (
        # As if each process had a row of its own and did not see the others.
        lambda: without(r"set arrival_at = greatest\(arrival_at,", "set arrival_at = greatest('epoch',", "as asked_at"),
        plain(test_budgets.test_processes_at_once_share_one_budget),
    ),
    "the present as the earliest time to pay from": (
        taking(
            r"set arrival_at = greatest\(arrival_at, payonce\.due_now\(\)\)",
            "set arrival_at = arrival_at",
            "as asked_at",
        ),
        plain(test_budgets.test_no_window_holds_more_than_rate_and_burst, 0),
    ),
    "refusing without spending": (
        taking(r"and greatest\(arrival_at, [^<]*<= payonce\.due_now\(\)", "and $3 >= 0", "as asked_at"),
        plain(test_budgets.test_a_turn_that_comes_too_late_is_refused_and_spends_nothing),
    ),
    "the penalty": (
        taking(r"secs => \$2::float8", "secs => $2::float8 * 0", "held_until = greatest"),
        plain(test_budgets.test_a_penalty_holds_everybody_back),
    ),
    "the longer of two penalties": (
        taking(r"greatest\( arrival_at,", "greatest('epoch',", "held_until = greatest"),
        plain(test_budgets.test_a_penalty_holds_everybody_back),
    ),
    "the burst that a penalty takes": (
        taking(r"\(burst - 1\)", "0", "held_until = greatest"),
        plain(test_budgets.test_after_a_penalty_calls_go_one_by_one),
    ),
    "the look after a wait": (
        patched(rate_limits, "is_held", never_held),
        test_budgets.test_a_penalty_voids_turns_that_are_being_waited_for,
    ),
    "the lapse of a turn": (
        patched(rate_limits, "late_max_s", lambda rate_per_s, usual_s: 1e9),
        test_budgets.test_a_process_that_was_stopped_loses_its_turn,
    ),
}


@pytest.mark.parametrize("name", ABLATIONS)
async def test_without_it_the_named_test_fails(stage: OpenStage, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ablation, check = ABLATIONS[name]
    with ablation():
        try:
            await check(stage, monkeypatch)
        except (AssertionError, pytest.fail.Exception):
            return
    raise AssertionError(f"without {name} the test passes all the same")
