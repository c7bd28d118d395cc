"""The demonstration of payouts: its own judgement by the books outside, and its seeded orders."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from payonce.cli.demo.disturb import Disturbed
from payonce.cli.demo.payouts import Report
from payonce.cli.demo.payouts_orders import BATCH_OF, Kind, seeded_orders
from payonce.cli.demo.payouts_verdict import Verdict
from payonce.services.payouts.addresses import looks_like_an_address
from payonce.services.payouts.model import State
from payonce.vendors.changenow.prices import is_address
from tests.cli.conftest import Payonce

GOOD = Verdict(
    asked=10, states={State.FINISHED: 8, State.HELD: 1, State.ACCUMULATING: 1}, double_paid=[], lost=[],
    unexplained={"USDT": Decimal(0), "ETH": Decimal(0)}, broken=[],
)  # fmt: skip


def report_of(verdict: Verdict = GOOD, kills: int = 12, faults: int = 3, wrong: list[str] | None = None) -> Report:
    disturbed = Disturbed(kills=kills, stops=0, restarts=12, seconds=1.0, log_path=Path("unused"))
    return Report(1, verdict, {"late": faults} if faults else {}, 3, wrong or [], disturbed)


def test_a_kept_promise_has_no_complaints() -> None:
    report = report_of()
    assert report.complaints() == []
    figures = report.figures()
    assert (figures["finished"], figures["held"], figures["accumulating"], figures["other"]) == (8, 1, 1, 0)
    assert figures["unexplained"] == {"USDT": "0", "ETH": "0"}


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"lost": ["payment-1"]}, "1 payouts are lost, first payment-1"),
        ({"double_paid": ["payment-1", "payment-2"]}, "2 were paid more than once, first payment-1"),
        ({"unexplained": {"ETH": Decimal("1e-18")}}, "0.000000000000000001 ETH are unexplained"),
        ({"broken": ["no part has two active swaps: 1 rows"]}, "broken: no part has two"),
    ],
)
def test_a_broken_promise_is_a_complaint(change: dict[str, Any], piece: str) -> None:
    [complaint] = report_of(replace(GOOD, **change)).complaints()
    assert complaint.startswith(piece)


def test_a_run_that_proves_nothing_is_a_complaint() -> None:
    assert "only 9 workers were killed" in report_of(kills=9).complaints()[0]
    assert "no call went wrong" in report_of(faults=0).complaints()[0]
    assert report_of(wrong=["payment-1 became two payouts"]).complaints() == ["payment-1 became two payouts"]


def test_the_orders_repeat_with_their_seed_and_hold_every_kind() -> None:
    orders = seeded_orders(200, seed=1)
    assert orders == seeded_orders(200, seed=1) != seeded_orders(200, seed=2)
    assert {order.kind for order in orders} == set(Kind)
    assert len({order.payment_id for order in orders}) == 200
    batched = Counter(order.address for order in orders if order.kind is Kind.BATCHED)
    assert set(batched.values()) == {BATCH_OF}
    alone = [order.address for order in orders if order.kind is not Kind.BATCHED]
    assert len(set(alone)) == len(alone)


def test_a_bad_address_is_one_that_only_the_exchange_refuses() -> None:
    for order in seeded_orders(200, seed=1):
        assert looks_like_an_address(order.network, order.address)
        assert is_address(order.network, order.address) is (order.kind is not Kind.BAD_ADDRESS)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_everybody_is_paid_once_whoever_is_killed(private_payonce: Payonce) -> None:
    ended = private_payonce("demo", "payouts", "--json", "--seed", "7")
    assert ended.code == 0, ended.stderr
    figures = ended.json
    assert (figures["payouts"], figures["double_paid"], figures["lost"]) == (200, 0, 0)
    assert figures["kills"] >= 10
    assert set(figures["unexplained"].values()) == {"0"}
