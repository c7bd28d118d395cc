"""A process exposes everything that rules and dashboard query: every metric, every label, every value."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from payonce.engine.effects import OPEN
from payonce.engine.janitors.gauges import STATES
from payonce.engine.messages.model import Ending
from payonce.engine.monitoring import metrics
from payonce.services.billing.payments import metrics as payments_metrics
from payonce.services.billing.subscriptions import metrics as subscriptions_metrics
from payonce.services.payouts import metrics as payouts_metrics
from payonce.services.payouts.model import ENDED, State
from payonce.testing import ScratchDatabase
from tests.cli.conftest import QUEUE, Payonce, until
from tests.cli.test_serve import fetch, started
from tests.deploy.documents import DEPLOY, alerts, board, panel_queries, read_yaml
from tests.deploy.promql import Expression, Selector, grouped_by, parsed, selectors

ADDED_BY_PROMETHEUS = {"job", "instance"}
OF_PROMETHEUS = {"up"}
VALUES: Mapping[tuple[str, str], set[str]] = {
    ("payonce_queue_depth", "state"): set(STATES),
    ("payonce_settles_total", "outcome"): {ending.value for ending in Ending},
    ("payonce_open_effects", "state"): set(OPEN),
    ("payonce_open_effects_amount", "state"): set(OPEN),
    ("payonce_oldest_open_effect_seconds", "state"): set(OPEN),
    ("payonce_db_writes_total", "outcome"): {"ok", "error"},
    ("payonce_sends_held_total", "brake"): {"freeze", "limit", "above_limit"},
    ("payonce_http_requests_total", "status"): {str(status.value) for status in HTTPStatus},
    ("payonce_payouts_oldest_seconds", "state"): {state.value for state in frozenset(State) - ENDED},
    ("payonce_wallet_payments_total", "outcome"): {"sent", "bumped", "final", "reverted", "lost"},
    ("payonce_billing_charges_total", "outcome"): {"succeeded", "failed"},
    ("payonce_vendor_seconds_bucket", "call"): {"perform", "resolve", "fence"},
}
SPEC = """
    payonce_queue_depth payonce_queue_oldest_ready_seconds payonce_claims_total payonce_settles_total
    payonce_handler_seconds_bucket payonce_vendor_seconds_bucket payonce_retries_total retry_latency_seconds_bucket
    webhook_delivery_seconds_bucket payonce_open_effects payonce_open_effects_amount payonce_lease_changes_total
    payonce_token_failures_total payonce_signature_failures_total payonce_outbox_lag_seconds payonce_db_writes_total
"""
"""The metrics that every process must expose, used in a rule or not."""

MODULES = (metrics, payouts_metrics, subscriptions_metrics, payments_metrics)
"""Where metrics are declared: the platform's, and each service's own."""

Shown = dict[str, set[str]]
"""The labels of each metric."""


def queries() -> dict[str, Expression]:
    found = {f"alert {alert.name}": alert.expression for alert in alerts().values()}
    return found | {f"panel {title}: {text}": parsed(text) for title, text, _ in panel_queries()}


QUERIES = queries()


def declared() -> Shown:
    """Read from the metric objects: a metric without a sample yet exposes only its name."""
    found: Shown = {}
    for name in (each for module in MODULES for each in vars(module).values()):
        if (own := getattr(name, "_name", None)) is None or not hasattr(name, "collect"):
            continue
        labels = set(getattr(name, "_labelnames", ("queue",)))
        kind = getattr(name, "_type", "histogram")
        for ending in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",)):
            found[f"{own}{ending}"] = labels | ({"le"} if ending == "_bucket" else set())
    return found


DECLARED = declared()


def shown_by(text: str) -> Shown:
    """The contents of /metrics; of a metric without samples only its existence."""
    found: Shown = {}
    for family in text_string_to_metric_families(text):
        for ending in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",)):
            found.setdefault(f"{family.name}{ending}", set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_a_running_process_shows_every_metric_that_is_asked_for(payonce: Payonce, database: ScratchDatabase) -> None:
    process = payonce.start("run", "tally.worker", "transfers.worker", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    payonce("queues", "put", QUEUE, '{"row_id": 404}')
    body = '{"id": "t-1", "source": "ann", "target": "bob", "amount": "12.50", "currency": "EUR"}'
    payonce("queues", "put", "transfers-requests", body)

    def settled() -> Any:
        text = fetch(port, "/metrics")[1]
        samples = shown_by(text)
        wanted = ("payonce_vendor_seconds_bucket", "payonce_retries_total", "payonce_queue_depth")
        return text if all(samples[name] for name in wanted) else None

    shown = shown_by(until(settled, "a payment and a retry are under way"))
    queried = {selector.name for query in QUERIES.values() for selector in selectors(query)} - OF_PROMETHEUS
    assert queried | set(SPEC.split()) | set(DECLARED) <= set(shown), "also those of services with no role here"
    for name, labels in shown.items():
        if name in DECLARED and labels:
            assert labels == DECLARED[name], name


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_uses_labels_and_values_that_there_are(name: str) -> None:
    assert slips(QUERIES[name]) == []


@pytest.mark.parametrize(
    "text",
    [
        'payonce_queue_depth{stat="ready"}',
        'payonce_queue_depth{state="redy"}',
        "max by (queu) (payonce_queue_depth)",
        'payonce_settles_total{outcome=~"retry|park"}',
        "sum by (queue) (rate(payonce_db_writes_total[5m]))",
        "payonce_queue_depth unless on (relay) payonce_queue_paused",
        "payonce_queue_dept",
    ],
)
def test_a_planted_slip_is_found(text: str) -> None:
    assert slips(parsed(text))


def slips(query: Expression) -> list[str]:
    found = []
    for selector in selectors(query):
        if selector.name not in {*DECLARED, *OF_PROMETHEUS} and not selector.name.startswith("process_"):
            found.append(f"there is no metric {selector.name}")
        for label, how, value in selector.matchers:
            if label not in labels_of(selector):
                found.append(f"{selector.name} has no label {label}")
            elif label not in ADDED_BY_PROMETHEUS and value != "$queue":
                values = set(value.split("|")) if how in ("=~", "!~") else {value}
                if not values <= VALUES[selector.name, label]:
                    found.append(f"{selector.name} is never {label}={value}")
    for label, grouped in grouped_by(query):
        found += [f"{one.name} has no label {label}" for one in selectors(grouped) if label not in labels_of(one)]
    return found


def labels_of(selector: Selector) -> set[str]:
    return DECLARED.get(selector.name, set()) | ADDED_BY_PROMETHEUS


def test_texts_name_only_labels_that_their_query_leaves() -> None:
    for alert in alerts().values():
        assert set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.runbook)) <= left_by(alert.expression)
    for title, text, legend in panel_queries():
        assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left_by(parsed(text)), title


def left_by(query: Expression) -> set[str]:
    kept = {label for label, _ in grouped_by(query)} - {"le"}
    return kept or {label for selector in selectors(query) for label in labels_of(selector)}


def test_the_board_is_whole() -> None:
    found = board()
    assert (found["uid"], found["title"]) == ("payonce", "payonce")
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    places = [panel["gridPos"] for panel in found["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    cells = {(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
    assert len(cells) == sum(place["w"] * place["h"] for place in places), "no panel overlaps another"
    assert {variable["name"] for variable in found["templating"]["list"]} == {"datasource", "queue"}


def test_grafana_finds_the_board_and_prometheus() -> None:
    [provider] = read_yaml("grafana/provisioning/dashboards/payonce.yml")["providers"]
    assert Path(provider["options"]["path"]).name == (DEPLOY / "grafana/dashboards").name
    [source] = read_yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["type"] == "prometheus"


def test_the_page_names_every_metric_and_alert_and_no_other() -> None:
    page = (DEPLOY.parent / "docs/monitoring.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`((?:payonce|webhook|retry|process)_\w+)`", page))
    ours = {name.removesuffix("_bucket") for name in DECLARED if not name.endswith(("_sum", "_count"))}
    assert {name for name in documented if not name.startswith("process_")} == ours
    assert set(re.findall(r"`(Payonce[A-Z]\w+)`", page)) == set(alerts())
