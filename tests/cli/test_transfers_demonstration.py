"""The demonstration of transfers: its own judgement, its seeded orders, and its workers with simulated banks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from payonce.cli.demo.disruption import DisruptedRun
from payonce.examples.transfers.demo.run import Report, seeded_orders
from payonce.examples.transfers.demo.verdict import Verdict
from payonce.kit.money import Amount, well_known
from payonce.testing import ScratchDatabase
from tests.cli.conftest import PATIENCE_S, Payonce, ask, until

EUR = well_known("EUR")
GOOD = Verdict(
    requested=10,
    finished=8,
    refused=1,
    compensated=1,
    in_review=0,
    lost=[],
    doubled=[],
    unexplained={"EUR": Amount(0, EUR)},
    broken=[],
)


def report_of(verdict: Verdict = GOOD, kills: int = 12, faults: int = 3) -> Report:
    disrupted = DisruptedRun(kills=kills, stops=2, restarts=12, seconds=1.0, log_path=Path("unused"))
    return Report(1, verdict, {"late": faults} if faults else {}, disrupted)


def test_a_kept_promise_has_no_complaints() -> None:
    report = report_of()
    assert report.complaints() == []
    assert report.figures()["unexplained"] == {"EUR": "0"}


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"lost": ["t-1"]}, "1 transfers are lost, first t-1"),
        ({"doubled": ["t-1", "t-2"]}, "2 transfers happened more than once, first t-1"),
        ({"in_review": 1}, "1 orders still wait for a person"),
        ({"unexplained": {"EUR": Amount(1, EUR)}}, "0.01 EUR are unexplained"),
        ({"broken": ["no transfer is both paid and refunded: 1 rows"]}, "broken: no transfer is both"),
    ],
)
def test_a_broken_promise_is_a_complaint(change: dict[str, Any], piece: str) -> None:
    [complaint] = report_of(replace(GOOD, **change)).complaints()
    assert complaint.startswith(piece)


def test_a_run_that_proves_nothing_is_a_complaint() -> None:
    assert "only 9 workers were killed" in report_of(kills=9).complaints()[0]
    assert "no call went wrong" in report_of(faults=0).complaints()[0]


def test_the_orders_repeat_with_their_seed_and_hold_every_kind() -> None:
    orders = seeded_orders(500, seed=1)
    assert orders == seeded_orders(500, seed=1) != seeded_orders(500, seed=2)
    assert {order.currency for order in orders} == {"EUR", "JPY"}
    assert any(order.source == "n-poor" for order in orders)
    assert any(order.target.startswith("closed-") for order in orders)
    assert len({order.id for order in orders}) == 500


@pytest.mark.full
def test_without_addresses_the_banks_are_simulated_and_their_books_outlive_the_worker(
    payonce: Payonce, database: ScratchDatabase, tmp_path: Path
) -> None:
    def ask_for(transfer_id: str) -> None:
        order = {"id": transfer_id, "source": "ann", "target": "bob", "amount": "4000.00", "currency": "EUR"}
        payonce("queues", "put", "transfers-requests", json.dumps(order))

    def ended(transfer_id: str) -> Any:
        question = "select state from transfers.transfers where id = $1 and state in ('paid', 'refused')"
        return until(lambda: ask(database.owner_url, question, transfer_id), f"{transfer_id} ends")

    first = payonce.start("run", "transfers.worker", PAYONCE_LOG="json")
    ask_for("t-1")
    assert ended("t-1") == "paid"
    refused = payonce("run", "transfers.worker")
    assert (refused.code, "another process has the simulator of northbank open" in refused.stderr) == (1, True)
    first.kill()
    _, said = first.communicate(timeout=PATIENCE_S)
    assert said.count("vendor_simulated") == 2
    assert "set PAYONCE_NORTHBANK_URL" in said

    payonce.start("run", "transfers.worker")
    for transfer_id, state in (("t-2", "paid"), ("t-3", "refused")):
        ask_for(transfer_id)
        assert ended(transfer_id) == state
    assert (tmp_path / "data" / "simulators" / "northbank.journal").is_file()
