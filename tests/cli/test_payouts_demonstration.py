"""The demonstration of payouts: its own judgement by the books outside, and its seeded orders."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from payonce.cli.demo import disruption
from payonce.cli.demo.disruption import DisruptedRun, progress_bar
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.services.payouts.api.webhook import WebhookRefused, read_webhook
from payonce.services.payouts.demo import orders as payouts_orders
from payonce.services.payouts.demo.orders import (
    BATCH_OF,
    DIRECT_LEAST_CENTS,
    DemoOrder,
    Kind,
    WebhookCaller,
    seeded_orders,
)
from payonce.services.payouts.demo.run import (
    BACKLOG,
    LATE_S,
    LIMIT_S,
    MOVED_BEHIND_S,
    MOVED_MAX_S,
    MOVED_S,
    STALLED_S,
    Report,
    StallTimer,
    _moved_s,
)
from payonce.services.payouts.demo.verdict import Outcome, PayoutRecord, Verdict, find_discrepancies, undecided
from payonce.services.payouts.domain.addresses import wrong_with
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.model import ETH, Hold, State
from payonce.vendors.changenow.books import Entry, ExchangeBooks, Fate
from payonce.vendors.changenow.port import Pair, Status
from payonce.vendors.changenow.prices import is_address
from tests.cli.conftest import Payonce

GOOD = Verdict(
    asked=10,
    states={State.FINISHED: 8, State.HELD: 1, State.ACCUMULATING: 1},
    double_paid=[],
    lost=[],
    unexplained={"USDT": Decimal(0), "ETH": Decimal(0)},
    broken=[],
)


def report_of(verdict: Verdict = GOOD, kills: int = 12, faults: int = 3, wrong: list[str] | None = None) -> Report:
    disrupted = DisruptedRun(kills=kills, stops=0, restarts=12, seconds=1.0, log_path=Path("unused"))
    return Report(1, verdict, {"late": faults} if faults else {}, 3, 2, wrong or [], disrupted)


def test_a_kept_promise_has_no_complaints() -> None:
    report = report_of()
    assert report.complaints() == []
    figures = report.figures()
    assert (figures["finished"], figures["held"], figures["accumulating"], figures["other"]) == (8, 1, 1, 0)
    assert figures["unexplained"] == {"USDT": "0", "ETH": "0"}
    assert (figures["webhooks_repeated"], figures["webhooks_signed_again"]) == (3, 2)
    printed = Console(width=200, file=StringIO())
    printed.print(report.rendered())
    assert re.search(r"webhooks_signed_again\W+2\W+too old", printed.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"lost": ["payment-1 is paying"]}, "1 payouts are lost: payment-1 is paying"),
        ({"double_paid": ["payment-1", "payment-2"]}, "2 were paid more than once: payment-1; payment-2"),
        ({"lost": [f"payment-{n}" for n in range(99)]}, "99 payouts are lost: payment-0; payment-1; "),
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


ADDRESS = "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4"


def ordered(kind: Kind = Kind.SWAPPED, name: str = "payment-1") -> DemoOrder:
    return DemoOrder(name, kind, 7_000_000_001, "-1001", ADDRESS, "btc", "btc", "100.00")


def ending(
    state: State = State.FINISHED, hold: Hold | None = None, paid: str = "0.04", name: str = "payment-1"
) -> PayoutRecord:
    return PayoutRecord(name, state, hold, Amount.from_decimal("0.04", ETH), Amount.from_decimal(paid, ETH))


FAILED, VERIFYING = (State.REVIEW, Hold.EXCHANGE_FAILED), (State.HELD, Hold.VERIFYING)


@pytest.mark.parametrize(
    ("order", "found", "seen", "stopped"),
    [
        (ordered(), ending(), "0.04", ()),
        (ordered(Kind.SMALL), ending(State.ACCUMULATING, paid="0"), "0", ()),
        (ordered(Kind.BAD_ADDRESS), ending(State.HELD, Hold.BAD_ADDRESS, "0"), "0", ()),
        (ordered(), ending(*FAILED), "0.04", {FAILED}),
        (ordered(Kind.LARGE), ending(*VERIFYING, paid="0.01"), "0.01", {FAILED, VERIFYING}),
    ],
    ids=["finished", "small", "bad address", "failed", "a part is verified"],
)
def test_what_stands_where_it_should_is_no_complaint(
    order: DemoOrder, found: PayoutRecord, seen: str, stopped: set[Outcome]
) -> None:
    assert find_discrepancies([order], {"payment-1": found}, {ADDRESS: Decimal(seen)}, {ADDRESS: stopped}) == ([], [])


@pytest.mark.parametrize(
    ("order", "found", "seen", "stopped", "words"),
    [
        (ordered(), ending(), "0.03", (), "payment-1: 0.03 ETH were paid, 0.04 on record"),
        (
            ordered(),
            ending(paid="0.03"),
            "0.03",
            (),
            "payment-1 (swapped) is finished, and 0.030000000000000000 ETH of 0.040000000000000000 ETH were paid",
        ),
        (ordered(), ending(State.PAYING), "0.04", (), "payment-1 (swapped) is paying"),
        (ordered(), ending(State.HELD, Hold.REFUSED, "0"), "0", (), "payment-1 (swapped) is held refused"),
        (ordered(), ending(*FAILED), "0.04", {VERIFYING}, "payment-1 (swapped) is review exchange_failed"),
        (ordered(), ending(), "0.04", {FAILED}, "payment-1 (swapped) is finished"),
        (ordered(Kind.SMALL), ending(), "0.04", (), "payment-1 (small) is finished"),
        (
            ordered(Kind.SMALL),
            ending(State.ACCUMULATING),
            "0.04",
            (),
            "payment-1 (small) is accumulating, and 0.040000000000000000 ETH were paid",
        ),
        (ordered(name="payment-2"), ending(), "0", (), "payment-2 is not on record"),
    ],
)
def test_what_is_less_or_elsewhere_is_lost(
    order: DemoOrder, found: PayoutRecord, seen: str, stopped: set[Outcome], words: str
) -> None:
    double, lost = find_discrepancies([order], {"payment-1": found}, {ADDRESS: Decimal(seen)}, {ADDRESS: stopped})
    assert (double, lost) == ([], [words])


def test_what_is_more_than_our_record_says_was_paid_twice() -> None:
    orders = [ordered(Kind.BATCHED), ordered(Kind.BATCHED, "payment-2")]
    endings = {order.payment_id: ending(name=order.payment_id) for order in orders}
    assert find_discrepancies(orders, endings, {ADDRESS: Decimal("0.08")}, {}) == ([], [])
    double, lost = find_discrepancies(orders, endings, {ADDRESS: Decimal("0.120000000000000001")}, {})
    assert (double, lost) == (["payment-1: 0.120000000000000001 ETH were paid, 0.08 on record"], [])


def test_a_run_ends_that_does_not_come_to_its_end() -> None:
    now = 0.0
    patience = StallTimer(lambda: now)
    while now < LIMIT_S:
        assert patience.lasts(int(now))
        now += STALLED_S - 1
    assert not patience.lasts(int(now))


def test_a_run_ends_in_which_nothing_comes_to_its_end() -> None:
    now = 0.0
    patience = StallTimer(lambda: now)
    now = STALLED_S - 1
    assert patience.lasts(7)
    now += STALLED_S - 1
    assert patience.lasts(7)
    now += 1
    assert not patience.lasts(7)


def exchange(status: Status, deposit: str, refund: str | None = None) -> Entry:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    return Entry(
        "0123456789abcd",
        Pair("eth", "eth", "btc", "btc"),
        Decimal(deposit),
        Decimal(1),
        "0x1",
        None,
        ADDRESS,
        None,
        None,
        None,
        None,
        None,
        Fate.REFUND,
        at,
        at,
        at,
        status,
        Decimal(deposit),
        refund_amount=None if refund is None else Decimal(refund),
    )


@pytest.mark.parametrize(
    ("entry", "stand"),
    [
        (exchange(Status.FINISHED, "0.1"), None),
        (exchange(Status.FAILED, "0.1"), FAILED),
        (exchange(Status.VERIFYING, "0.1"), VERIFYING),
        (exchange(Status.REFUNDED, "0.1", "0.09"), None),
        (exchange(Status.REFUNDED, "0.1", "0.0899"), FAILED),
        (exchange(Status.REFUNDED, "1", "0.9895"), None),
        (exchange(Status.REFUNDED, "1", "0.9894"), FAILED),
    ],
)
def test_a_person_has_what_the_exchange_did_not_end_or_not_give_back_whole(entry: Entry, stand: Outcome | None) -> None:
    found = undecided(ExchangeBooks(entries={entry.id: entry}))
    assert found == ({} if stand is None else {entry.id: stand})


@pytest.mark.parametrize(
    ("due", "late_s", "at_work", "next_s", "moved_s"),
    [
        (BACKLOG + 1, None, 30, -9.0, MOVED_BEHIND_S),
        (BACKLOG, None, 30, -9.0, MOVED_S),
        (0, LATE_S + 1, 1, -400.0, MOVED_BEHIND_S),
        (0, LATE_S, 1, -300.0, MOVED_S),
        (0, -40.0, 1, 40.0, MOVED_S),
        (0, -40.0, 0, 40.0, 40.0),
        (0, None, 0, 1.0, MOVED_S),
        (0, None, 0, 4_000.0, MOVED_MAX_S),
        (0, None, 0, None, MOVED_S),
    ],
)
def test_the_clock_waits_for_those_who_work(
    due: int, late_s: float | None, at_work: int, next_s: float | None, moved_s: float
) -> None:
    assert _moved_s(due, late_s, at_work, next_s) == moved_s


def test_who_has_no_terminal_reads_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(disruption, "NOTE_EVERY_S", float("inf"))
    with progress_bar(200) as show_progress:
        show_progress(1, 0)
        monkeypatch.setattr(disruption, "NOTE_EVERY_S", 0.0)
        show_progress(17, 3)
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"\d+ s: 17 of 200 done, 3 workers killed\n", said.err), said.err


def test_the_orders_repeat_with_their_seed_and_hold_every_kind() -> None:
    orders = seeded_orders(200, seed=1)
    assert orders == seeded_orders(200, seed=1) != seeded_orders(200, seed=2)
    assert {order.kind for order in orders} == set(Kind)
    assert len({order.payment_id for order in orders}) == 200
    batched = Counter(order.address for order in orders if order.kind is Kind.BATCHED)
    assert set(batched.values()) == {BATCH_OF}
    alone = [order.address for order in orders if order.kind is not Kind.BATCHED]
    assert len(set(alone)) == len(alone)


def test_an_order_that_needs_no_exchange_is_worth_its_gas() -> None:
    """One that is not would wait for another of its client, and there is none."""
    prices = [Decimal(order.price) for order in seeded_orders(2_000, seed=1) if order.kind is Kind.DIRECT]
    assert len(prices) == 160
    assert min(prices) == Decimal(DIRECT_LEAST_CENTS) / 100


def test_a_bad_address_is_one_that_only_the_exchange_refuses() -> None:
    for order in seeded_orders(200, seed=1):
        assert wrong_with(order.network, order.address) is None
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


class BusyIntake:
    """The webhook's own check, on a machine so busy that minutes go by between a signature and its check."""

    def __init__(self, key: bytes, late: int) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.late = late
        self.taken: list[str] = []
        self._terms = PayoutConfig([key], "0x" + "ab" * 20)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        if self.late:
            self.late -= 1
            self.now += timedelta(seconds=400)
        try:
            asked = read_webhook(self._terms, headers.get("x-webhook-signature"), body, self.now)
            self.taken.append(asked.payment_id or "")
            status, answer = 200, {"payout_id": "p-1"}
        except WebhookRefused as no:
            status, answer = no.status, {"detail": str(no)}
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


class NeverTwice(random.Random):
    def random(self) -> float:
        return 1.0


async def test_the_caller_signs_again_what_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payouts_orders, "TRY_AGAIN_S", 0.0)
    key = b"a key of the demonstration"
    intake = BusyIntake(key, late=3)
    async with HttpClient("payonce", "https://payonce.example", transport=intake) as http:
        caller = WebhookCaller(http, key, lambda: intake.now)
        await caller.order(ordered(), NeverTwice())
        assert (caller.wrong, intake.taken, caller.signed_again) == ([], ["payment-1"], 3)
        wrong = WebhookCaller(http, key, lambda: intake.now)
        await wrong.order(replace(ordered(), price="0"), NeverTwice())
        assert len(wrong.wrong) == 1, "any other refusal is a complaint"
