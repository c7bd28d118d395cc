"""The demonstration of billing: its calendar, its own judgement, and what it complains about."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from payonce.cli.demo.disruption import DisruptedRun
from payonce.services.billing.demo.customers import (
    BASIC,
    KINDS,
    PRICES,
    TRIAL,
    Customer,
    Life,
    Period,
    later,
    seeded_customers,
)
from payonce.services.billing.demo.run import Report, WebhookStats
from payonce.services.billing.demo.verdict import Record, Verdict, compare, compare_gateway
from payonce.vendors.gateway.books import ChargeEntry, GatewayBooks, RefundEntry
from tests.cli.conftest import Payonce

GOOD = Verdict(
    customers=2,
    periods_invoiced=4,
    endings={"active": 2},
    missed_periods=[],
    double_invoiced=[],
    double_charged=[],
    unpaid=[],
    trial_refunds_missing=[],
    misplaced=[],
    unexplained={"AED": Decimal(0)},
    broken=[],
)
BEGIN = datetime(2024, 1, 31, 12, tzinfo=UTC)
FEBRUARY = datetime(2024, 2, 29, 12, tzinfo=UTC)
TRIES_ONE = next(each.life for each in seeded_customers(len(KINDS), 3, 1) if each.kind == "trial_ended")


def report_of(verdict: Verdict = GOOD, kills: int = 12, faults: int = 3, wrong: list[str] | None = None) -> Report:
    disrupted = DisruptedRun(kills=kills, stops=0, restarts=12, seconds=1.0, log_path=Path("unused"))
    return Report(1, 24, verdict, {"late": faults} if faults else {}, 3, wrong or [], disrupted)


def customer(life: Life | None = None) -> Customer:
    price = PRICES[BASIC]
    lived = life or Life([], [Period(BEGIN, price), Period(FEBRUARY, price)], "active")
    return Customer(1, "monthly", "UTC", BEGIN, BEGIN + timedelta(days=40), lived)


def test_a_kept_promise_has_no_complaints() -> None:
    report = report_of()
    assert report.complaints() == []
    figures = report.figures()
    assert (figures["customers"], figures["periods_invoiced"], figures["kills"]) == (2, 4, 12)
    assert (figures["double_charged"], figures["missed_periods"], figures["trial_refunds_missing"]) == (0, 0, 0)
    assert figures["unexplained"] == {"AED": "0"}


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"missed_periods": ["customer-1 2024-02-29"]}, "1 missed periods: customer-1 2024-02-29"),
        ({"double_invoiced": ["a", "b"]}, "2 surplus invoices: a; b"),
        (
            {"double_charged": ["invoice 1: 2 captures"]},
            "1 customers charged too much, by the gateway's books: invoice 1",
        ),
        ({"unpaid": ["customer-1"]}, "1 customers charged too little"),
        ({"trial_refunds_missing": ["customer-1"]}, "1 trials not refunded exactly once"),
        ({"misplaced": ["customer-1 is active, not canceled"]}, "1 subscriptions in an unexpected state"),
        ({"unexplained": {"AED": Decimal("0.01")}}, "0.01 AED are unexplained"),
        ({"broken": ["no invoice is paid by two charges: 1 rows"]}, "broken: no invoice is paid"),
    ],
)
def test_a_broken_promise_is_a_complaint(change: dict[str, Any], piece: str) -> None:
    [complaint] = report_of(replace(GOOD, **change)).complaints()
    assert complaint.startswith(piece)


def test_a_run_that_proves_nothing_is_a_complaint() -> None:
    assert "only 9 workers were killed" in report_of(kills=9).complaints()[0]
    assert "no call failed" in report_of(faults=0).complaints()[0]
    told = replace(report_of(), webhooks=WebhookStats(arrived=3, events=2, heeded=1, disagreed=1)).complaints()
    assert told == [
        "1 gateway webhooks contradict our database",
        "of 2 gateway events, 1 were processed",
    ]
    assert report_of(wrong=["POST /: 500"]).complaints() == ["1 unexpected responses: POST /: 500"]


@pytest.mark.parametrize(
    ("anchor", "months", "zone", "expected"),
    [
        ("2024-01-31T12:00", 1, "UTC", "2024-02-29T12:00"),
        ("2024-01-31T12:00", 2, "UTC", "2024-03-31T12:00"),
        ("2024-01-31T12:00", 13, "UTC", "2025-02-28T12:00"),
        # Noon in Berlin is eleven o'clock in winter and ten o'clock in summer.
        ("2024-01-31T11:00", 2, "Europe/Berlin", "2024-03-31T10:00"),
        # The first of a month in Dubai, and still the last of the one before elsewhere.
        ("2024-11-30T20:00", 1, "Asia/Dubai", "2024-12-31T20:00"),
    ],
)
def test_months_are_counted_by_the_calendar_of_the_place(anchor: str, months: int, zone: str, expected: str) -> None:
    moment = datetime.fromisoformat(anchor).replace(tzinfo=UTC)
    assert later(moment, months, zone) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_the_customers_repeat_with_their_seed_and_are_of_every_kind() -> None:
    customers = seeded_customers(500, 24, seed=1)
    assert customers == seeded_customers(500, 24, seed=1) != seeded_customers(500, 24, seed=2)
    assert {each.kind for each in customers} == set(KINDS)
    assert {each.kind for each in seeded_customers(len(KINDS), 3, seed=1)} == set(KINDS)


@pytest.mark.parametrize("months", [3, 24])
def test_a_life_is_in_order_and_none_of_its_steps_falls_on_a_renewal(months: int) -> None:
    for each in seeded_customers(200, months, seed=1):
        moments = [step.at for step in each.life.steps]
        assert moments == sorted(moments)
        assert moments[-1] < each.ends_at
        starts = [period.start for period in each.life.periods]
        assert starts == sorted(set(starts))
        assert starts[-1] <= each.ends_at
        # Only a pause that was longer than its period begins one by itself.
        later_steps = {step.at for step in each.life.steps[1:] if step.act != "resume"} - {each.begins_at}
        assert not later_steps & set(starts)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (Record("active", [(BEGIN, 2_900), (FEBRUARY, 2_900)], []), (0, 0, 0)),
        (Record("active", [(BEGIN, 2_900)], []), (1, 0, 0)),
        (Record("active", [(BEGIN, 2_900), (FEBRUARY, 2_900), (FEBRUARY, 2_900)], []), (0, 1, 0)),
        (Record("active", [(BEGIN, 2_900), (FEBRUARY, 9_900)], []), (1, 1, 0)),
        (Record("active", [(BEGIN, 2_900), (FEBRUARY, 2_900)], [4_376]), (0, 1, 0)),
        (Record("past_due", [(BEGIN, 2_900), (FEBRUARY, 2_900)], []), (0, 0, 1)),
    ],
    ids=["as wanted", "missed", "twice", "at another price", "an unasked change", "elsewhere"],
)
def test_what_a_script_wants_is_held_against_the_record(record: Record, found: tuple[int, int, int]) -> None:
    assert tuple(map(len, compare([customer()], {"customer-1": record}))) == found


def test_who_is_not_on_record_has_missed_everything() -> None:
    assert tuple(map(len, compare([customer()], {}))) == (2, 0, 1)


def books_of(*charges: tuple[str, int, str | None], refunds: int = 0) -> GatewayBooks:
    """Charges of invoice, amount and decline, all on one card; refunds of the first."""
    books = GatewayBooks()
    for number, (invoice, amount, declined) in enumerate(charges):
        books.charge(
            ChargeEntry(f"ch-{number}", "pm", amount, "AED", f"{number}", {"invoice": invoice}, BEGIN, 500, declined)
        )
    for number in range(refunds):
        books.refund(RefundEntry(f"re-{number}", "ch-0", PRICES[TRIAL], "AED", f"r{number}", "", BEGIN))
    return books


@pytest.mark.parametrize(
    ("books", "found"),
    [
        (books_of(("one", 2_900, None), ("two", 2_900, "card_declined"), ("two", 2_900, None)), (0, 0, 0)),
        (books_of(("one", 2_900, None)), (0, 1, 0)),
        # Once for the invoice, and once for the customer, who paid more than both periods.
        (books_of(("one", 2_900, None), ("two", 2_900, None), ("two", 2_900, None)), (2, 0, 0)),
        (books_of(("one", 2_900, None), ("two", 2_900, None), refunds=1), (0, 0, 1)),
    ],
    ids=["as wanted", "not charged", "charged twice", "given back unasked"],
)
def test_the_gateways_books_say_who_paid_what(books: GatewayBooks, found: tuple[int, int, int]) -> None:
    assert tuple(map(len, compare_gateway([customer()], books, {"customer-1": {"pm"}}))) == found


@pytest.mark.parametrize(("refunds", "missing"), [(1, 0), (0, 1), (2, 1)])
def test_a_trial_is_given_back_exactly_once(refunds: int, missing: int) -> None:
    books = books_of(("trial", PRICES[TRIAL], None), refunds=refunds)
    assert tuple(map(len, compare_gateway([customer(TRIES_ONE)], books, {"customer-1": {"pm"}}))) == (0, 0, missing)


def test_two_years_hold_thousands_of_periods() -> None:
    kinds = Counter(each.kind for each in seeded_customers(500, 24, seed=1))
    periods = sum(len(each.life.periods) for each in seeded_customers(500, 24, seed=1))
    assert periods > 5_000
    assert min(kinds.values()) >= 5


@pytest.mark.full
@pytest.mark.timeout(600)
def test_every_period_is_invoiced_and_paid_once_whoever_is_killed(private_payonce: Payonce) -> None:
    ended = private_payonce("demo", "billing", "--json", "--seed", "7", "--customers", "20", "--months", "3")
    assert ended.code == 0, ended.stderr
    figures = ended.json
    assert (figures["customers"], figures["double_charged"], figures["missed_periods"]) == (20, 0, 0)
    assert figures["trial_refunds_missing"] == 0
    assert figures["unexplained"] == {"AED": "0"}
    assert figures["kills"] >= 10
    told = figures["gateway_webhooks"]
    assert told["heeded"] >= told["events"] > 0 == told["disagreed"]
    assert min(told["twice"], told["late"]) > 0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_benchmark_counts_only_renewals_that_were_captured_once(private_payonce: Payonce) -> None:
    ended = private_payonce("billing", "--quick", "--json", module="bench.command")
    assert ended.code == 0, ended.stderr
    layouts = {row["layout"]: row for row in ended.json["renewals"]}
    assert set(layouts) == {"together", "apart"}
    assert all(row["per_s"] > 0 and row["cpu_ms"]["postgresql"] > 0 for row in layouts.values())
    assert {row["layout"] for row in ended.json["usage"]} == {"spread", "shared"}
