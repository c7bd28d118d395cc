"""Faults are drawn by seed and call alone, in the shares asked for, and enacted as they are described."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.testing import eventually
from payonce.testing.faults import Fault, FaultPlan, Odds, Script
from payonce.testing.faulty import Draws, Faulty
from payonce.testing.server import serving


class Counting:
    """Counts what reaches it and answers with the number."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        self.bodies.append(body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"count": %d}' % len(self.bodies)})


def test_the_same_seed_draws_the_same_and_another_one_does_not() -> None:
    calls = [("POST /pay", f"call-{number}", 1) for number in range(200)]
    drawn = [FaultPlan(1, 0.5).draw(*call) for call in calls]
    assert drawn == [FaultPlan(1, 0.5).draw(*call) for call in calls]
    assert drawn != [FaultPlan(2, 0.5).draw(*call) for call in calls]
    assert drawn != [FaultPlan(1, 0.5).draw(route, call, 2) for route, call, _ in calls]


def test_the_share_and_the_weights_are_kept() -> None:
    plan = FaultPlan(5, 0.2, {Fault.SLOW: 3, Fault.LATE: 1})
    drawn = Counter(plan.draw("POST /pay", f"call-{number}", 1) for number in range(20_000))
    assert set(drawn) == {None, Fault.SLOW, Fault.LATE}
    assert 0.19 < 1 - drawn[None] / 20_000 < 0.21
    assert 2.6 < drawn[Fault.SLOW] / drawn[Fault.LATE] < 3.4


def test_routes_have_their_own_odds_and_the_longest_beginning_wins() -> None:
    plan = FaultPlan(1, 1.0, routes={"GET /": Odds(0.0), "GET /pay": Odds(1.0, {Fault.SLOW: 1})})
    assert plan.draw("GET /balance", "a", 1) is None
    assert plan.draw("GET /payments", "a", 1) is Fault.SLOW
    assert plan.draw("POST /payments", "a", 1) is not None
    spared = Odds(1.0).without(Fault.DUPLICATE)
    assert Fault.DUPLICATE not in {
        FaultPlan(1, 1.0, spared.weights).draw("POST /", str(number), 1) for number in range(500)
    }


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(Invalid, match="between 0 and 1"):
        FaultPlan(1, share)


def test_weights_that_draw_nothing_are_refused() -> None:
    with pytest.raises(Invalid, match="weights"):
        Odds(0.5, {Fault.SLOW: 0})


async def ask(faulty: Faulty, *bodies: str) -> list[str]:
    async with HttpClient("vendor", "https://vendor.example", transport=faulty) as http:

        async def one(body: str) -> str:
            try:
                return str((await http.request("POST", "/pay", json=body)).status)
            except (NotSent, Unknown) as outcome:
                return type(outcome).__name__

        return list(await asyncio.gather(*(one(body) for body in bodies)))


async def test_the_order_in_which_calls_come_does_not_change_what_becomes_of_them() -> None:
    bodies = [f"call-{number}" for number in range(60)]
    plan = FaultPlan(3, 0.5, Odds(0.5).without(Fault.SLOW).weights)
    forwards, backwards = Faulty(Counting(), plan), Faulty(Counting(), plan)
    first = dict(zip(bodies, await ask(forwards, *bodies), strict=True))
    second = dict(zip(reversed(bodies), await ask(backwards, *reversed(bodies)), strict=True))
    assert first == second
    assert forwards.enacted == backwards.enacted
    assert len(set(first.values())) > 3


async def test_only_the_enacted_is_counted() -> None:
    faulty = Faulty(Counting(), Script([None, Fault.ERROR_AFTER]))
    assert await ask(faulty, "a") == ["200"]
    assert await ask(faulty, "a") == ["502"]
    assert faulty.enacted == {Fault.ERROR_AFTER: 1}


@pytest.mark.parametrize(
    ("fault", "reached"),
    [
        (
            fault,
            2
            if fault is Fault.DUPLICATE
            else 0
            if fault
            in (
                Fault.REFUSED_CONNECTION,
                Fault.TOO_MANY_REQUESTS,
                Fault.ERROR_BEFORE,
                Fault.TIMEOUT_BEFORE,
                Fault.LATE,
            )
            else 1,
        )
        for fault in Fault
    ],
)
async def test_before_means_not_done_and_after_means_done(fault: Fault, reached: int) -> None:
    vendor = Counting()
    await ask(Faulty(vendor, Script([fault]), slow_s=0.0), "a")
    assert vendor.bodies == [b'"a"'] * reached


async def test_what_is_slow_is_waited_for_by_the_clock_that_was_given() -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    assert await ask(Faulty(Counting(), Script([Fault.SLOW]), slow_s=30.0, wait=wait), "a") == ["200"]
    assert waited == [30.0]


async def test_what_is_late_arrives_by_itself_or_when_told() -> None:
    vendor, over = Counting(), asyncio.Event()

    async def wait(seconds: float) -> None:
        await over.wait()

    faulty = Faulty(vendor, Script([Fault.LATE, Fault.LATE]), late_s=5.0, wait=wait)
    assert await ask(faulty, "a", "b") == ["Unknown", "Unknown"]
    assert not vendor.bodies
    assert await faulty.deliver() == 2
    over.set()
    await faulty.close()
    assert vendor.bodies == [b'"a"', b'"b"']

    by_itself = Faulty(vendor, Script([Fault.LATE]), late_s=0.0)
    await ask(by_itself, "c")
    await eventually(lambda: vendor.bodies[-1] == b'"c"')
    assert not by_itself.held


async def test_closing_carries_out_what_is_late() -> None:
    vendor = Counting()
    faulty = Faulty(vendor, Script([Fault.LATE]), late_s=600.0)
    await ask(faulty, "a")
    await faulty.close()
    assert vendor.bodies == [b'"a"']


async def test_a_wrong_answer_has_other_figures_and_a_malformed_one_no_end() -> None:
    plan: Draws = Script([Fault.WRONG_ANSWER, Fault.MALFORMED_ANSWER])
    faulty = Faulty(Counting(), plan, over_sockets=True)
    async with serving(faulty) as url, HttpClient("vendor", url, allow_private=True) as http:
        wrong = await http.request("POST", "/pay", json="a")
        assert (wrong.status, wrong.json()) == (200, {"count": 2})
        with pytest.raises(Unknown):
            (await http.request("POST", "/pay", json="a")).json()
