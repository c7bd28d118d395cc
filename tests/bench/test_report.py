"""Ratios are ours divided by the best peer's of the same run."""

import json
from io import StringIO

import pytest
from rich.console import Console

from bench.render import render
from bench.report import Report, Row, TransactionalRow, median, ratios


def row(system: str, drain: float | None = 1.0, bulk: float | None = 1.0, idle: float | None = 1.0) -> Row:
    return Row(
        backend="postgres",
        system=system,
        version="1",
        drain_per_s=drain,
        enqueue_per_s=1.0,
        bulk_per_s=bulk,
        idle_p50_ms=idle,
        idle_p99_ms=1.0,
        pickup_s=None,
        rss_mb=1.0,
    )


def test_ratios_compare_with_the_best_peer_of_each_figure() -> None:
    rows = [
        row("payonce", drain=40_000, bulk=120_000, idle=1.0),
        row("pgqueuer", drain=20_000, bulk=40_000, idle=2.0),
        row("saq", drain=1_000, bulk=60_000, idle=0.5),
    ]
    assert ratios(rows) == {"drain": 2.0, "bulk_enqueue": 2.0, "idle_p50": 2.0, "transactional": None}


def test_a_peer_without_a_figure_is_not_the_best_one() -> None:
    rows = [row("payonce", drain=30.0), row("dbos", drain=None), row("saq", drain=10.0)]
    assert ratios(rows)["drain"] == 3.0


def test_our_transactional_row_is_no_peer_of_ours() -> None:
    rows = [row("payonce", drain=30.0), row("payonce (transactional)", drain=20.0), row("rq", drain=10.0)]
    assert ratios(rows)["drain"] == 3.0


def test_the_transactional_ratio_is_among_those_that_commit_both_together() -> None:
    rows = [
        TransactionalRow(backend="postgres", system=system, atomic=atomic, per_s=per_s, how="")
        for system, atomic, per_s in [
            ("payonce", False, 90.0),
            ("payonce", True, 60.0),
            ("saq", False, 80.0),
            ("dbos", True, 10.0),
            ("pgqueuer", True, 20.0),
        ]
    ]
    assert ratios([], rows)["transactional"] == 3.0
    assert ratios([], rows[:3])["transactional"] is None


@pytest.mark.parametrize("rows", [[], [row("payonce")], [row("saq")], [row("payonce", drain=None), row("saq")]])
def test_there_is_no_ratio_without_both_sides(rows: list[Row]) -> None:
    assert ratios(rows)["drain"] is None


def test_medians_leave_out_what_was_not_measured() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None


def test_report_has_the_promised_shape_and_renders() -> None:
    rows = [row("payonce", drain=40.0), row("saq", drain=10.0)]
    report = Report(
        conditions={"fsync": "on", "pickup_limit_s": "60"},
        rows=rows,
        transactional=[TransactionalRow(backend="postgres", system="payonce", atomic=True, per_s=5.0, how="commit()")],
        scaling={"claim_ratio": 1.1},
        ratios={"postgres": ratios(rows)},
        errors=["dbos worker ended with code 1"],
    )
    printed = json.loads(report.to_json())
    assert {"conditions", "rows", "transactional", "scaling", "ratios"} <= printed.keys()
    assert printed["rows"][0].keys() >= {
        *("backend", "system", "version", "drain_per_s", "enqueue_per_s", "bulk_per_s"),
        *("idle_p50_ms", "idle_p99_ms", "pickup_s", "rss_mb"),
    }
    assert printed["ratios"]["postgres"]["drain"] == 4.0
    console = Console(file=StringIO(), width=200)
    console.print(render(report))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "4.00" in text
    assert "> 60" in text, "a job that was not picked up in time must not look unmeasured"
    assert "dbos worker ended with code 1" in text
