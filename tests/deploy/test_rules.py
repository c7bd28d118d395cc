"""Each alert fires on its own problem, after its delay and not before, and resolves when the problem is over."""

import re
from collections.abc import Callable, Mapping

import pytest
import typer

from payonce.cli.application import app
from tests.deploy.documents import Alert, alerts, read_yaml
from tests.deploy.promql import LOOKBACK_S, Labels, NotPromql, Selector, evaluated, parsed

STEP_S = 15
QUIET_S, TROUBLE_S, END_S = 7_200, 97_200, 108_000
"""Two hours without a problem, more than a day with it, and three hours without it again."""

Course = Callable[[float], float | None]
"""A value per second of time; None where there is no sample."""


def flat(quiet: float, trouble: float) -> Course:
    return lambda at: trouble if QUIET_S <= at < TROUBLE_S else quiet


def rising(quiet_per_s: float, trouble_per_s: float) -> Course:
    """A counter."""

    def total(at: float) -> float:
        troubled_s = max(0.0, min(at, TROUBLE_S) - QUIET_S)
        return quiet_per_s * (at - troubled_s) + trouble_per_s * troubled_s

    return total


def observations(name: str, labels: str, quiet_s: float, trouble_s: float, bounds: str) -> dict[str, Course]:
    """A histogram with one observation a second, of this many seconds each."""

    def below(bound_s: float) -> Course:
        return rising(float(quiet_s <= bound_s), float(trouble_s <= bound_s))

    return {f'{name}{{{labels}le="{bound}"}}': below(float(bound.replace("+", ""))) for bound in bounds.split()}


LATE = "1 5 10 30 60 300 900 3600 14400 86400 +Inf"
TROUBLES: Mapping[str, Mapping[str, Course]] = {
    "PayonceDown": {'up{job="payonce", instance="a:1"}': flat(1, 0), 'up{job="payonce", instance="b:1"}': flat(1, 1)},
    "PayonceGone": {'up{job="payonce", instance="a:1"}': lambda at: None if QUIET_S <= at < TROUBLE_S else 1.0},
    "PayonceGaugesOld": {"payonce_observed_timestamp_seconds": lambda at: QUIET_S if QUIET_S <= at < TROUBLE_S else at},
    "PayonceWritesFail": {
        'payonce_db_writes_total{table="messages", outcome="ok"}': rising(10, 0),
        'payonce_db_writes_total{table="messages", outcome="error"}': rising(0, 1),
    },
    "PayonceLeaseChanges": {'payonce_lease_changes_total{name="janitors"}': rising(1 / 3_600, 1 / 60)},
    "PayonceQueueDeep": {
        'payonce_queue_depth{queue="q", state="ready"}': flat(900, 1_001),
        'payonce_queue_depth{queue="q", state="delayed"}': flat(5_000, 5_000),
    },
    "PayonceQueueOld": {
        'payonce_queue_oldest_ready_seconds{queue="q"}': flat(2, 301),
        'payonce_queue_paused{queue="q"}': flat(0, 0),
    },
    "PayonceQueuePaused": {'payonce_queue_paused{queue="q"}': flat(0, 1)},
    "PayonceParked": {
        'payonce_queue_depth{queue="q", state="parked"}': flat(0, 1),
        'payonce_queue_depth{queue="q", state="ready"}': flat(50, 50),
    },
    "PayonceFailures": {
        'payonce_settles_total{queue="q", outcome="success"}': rising(10, 1),
        'payonce_settles_total{queue="q", outcome="retry"}': rising(1, 2),
        'payonce_settles_total{queue="q", outcome="parked"}': rising(0, 0.1),
    },
    "PayonceRetryLatency": observations("retry_latency_seconds_bucket", 'queue="q", ', 50, 10_000, LATE),
    "PayonceHandlerSlow": observations("payonce_handler_seconds_bucket", 'queue="q", ', 0.5, 50, LATE),
    "PayonceUnknownOld": {
        'payonce_oldest_open_effect_seconds{state="unknown"}': flat(0, 601),
        'payonce_oldest_open_effect_seconds{state="review"}': flat(9_000, 9_000),
    },
    "PayonceInDoubt": {
        'payonce_open_effects_amount{state="unknown", asset="EUR", instance="a"}': flat(100, 6_000),
        'payonce_open_effects_amount{state="unknown", asset="EUR", instance="b"}': flat(100, 6_000),
        'payonce_open_effects_amount{state="review", asset="EUR", instance="a"}': flat(100, 4_001),
        'payonce_open_effects_amount{state="intended", asset="EUR", instance="a"}': flat(99_999, 99_999),
    },
    "PayonceReviewWaits": {'payonce_open_effects{state="review", kind="bank.pay"}': flat(0, 1)},
    "PayonceVendorSlow": observations("payonce_vendor_seconds_bucket", 'kind="b.p", call="perform", ', 1, 20, LATE),
    "PayonceVendorRests": {'payonce_budget_penalties_total{budget="bank"}': rising(0, 0.01)},
    "PayonceLimitHolds": {
        'payonce_sends_held_total{brake="limit"}': rising(0, 0.01),
        'payonce_sends_held_total{brake="freeze"}': rising(1, 1),
    },
    "PayonceFrozen": {"payonce_freezes": flat(0, 1)},
    "PayonceApprovalWaits": {"payonce_approvals_waiting": flat(0, 1)},
    "PayoncePayoutsWait": {
        'payonce_payouts_oldest_seconds{state="held"}': flat(60, 3_601),
        'payonce_payouts_oldest_seconds{state="accumulating"}': flat(9_000, 9_000),
    },
    "PayoncePayoutsStand": {
        'payonce_payouts_oldest_seconds{state="paying"}': flat(600, 14_401),
        'payonce_payouts_oldest_seconds{state="held"}': flat(90_000, 90_000),
    },
    "PayoncePayoutsAccumulate": {'payonce_payouts_oldest_seconds{state="accumulating"}': flat(86_400, 2_592_001)},
    "PayonceWalletLow": {'payonce_wallet_low{asset="ETH"}': flat(0, 1)},
    "PayonceWalletLost": {
        'payonce_wallet_payments_total{asset="ETH", outcome="lost"}': rising(0, 0.01),
        'payonce_wallet_payments_total{asset="ETH", outcome="final"}': rising(1, 1),
    },
    "PayonceRenewalsLate": {
        'payonce_billing_late_seconds{due="renew"}': flat(30, 901),
        'payonce_billing_late_seconds{due="dun"}': flat(0, 0),
    },
    "PayonceChargeUnanswered": {"payonce_billing_unanswered_seconds": flat(20, 3_601)},
    "PayonceChargesFail": {
        'payonce_billing_charges_total{outcome="succeeded", code=""}': rising(10, 1),
        'payonce_billing_charges_total{outcome="failed", code="card_declined"}': rising(1, 3),
    },
    "PayonceNotificationsWait": {"payonce_billing_oldest_undelivered_seconds": flat(3, 601)},
    "PayonceNotificationsSlow": observations("payonce_billing_notification_seconds_bucket", "", 0.5, 250, LATE),
    "PayonceUnapplied": {'payonce_billing_unapplied_amount{currency="AED"}': flat(0, 29)},
    "PayonceInvoiceStands": {"payonce_billing_oldest_open_invoice_seconds": flat(86_400, 1_728_001)},
    "PayonceHopTokens": {
        'payonce_hop_token_failures_total{hop="estimate", operation="decrypt", why="mac"}': rising(0.001, 0.02),
    },
    "PayonceQuarantined": {"payonce_quarantined": flat(0, 1)},
    "PayonceUnmatched": {'payonce_unmatched_oldest_seconds{vendor="bank"}': flat(3_600, 86_401)},
    "PayonceNotReconciled": {'payonce_reconciled_seconds{vendor="bank"}': flat(600, 86_401)},
    "PayonceNotDurable": {"payonce_database_weaknesses": flat(0, 1)},
    "PayonceOldSnapshot": {"payonce_oldest_snapshot_seconds": flat(2, 901)},
    "PayonceOutboxLag": {'payonce_outbox_lag_seconds{relay="events"}': flat(0, 301)},
    "PayonceOutboxParked": {'payonce_outbox_parked{relay="events"}': flat(0, 1)},
    "PayonceWebhookSlow": observations("webhook_delivery_seconds_bucket", 'outcome="delivered", ', 0.4, 9, LATE),
    "PayonceHttpErrors": {
        'payonce_http_requests_total{method="GET", route="/r", status="200"}': rising(10, 10),
        'payonce_http_requests_total{method="GET", route="/r", status="503"}': rising(0.1, 1),
    },
    "PayonceSignatures": {
        'payonce_signature_failures_total{consumer="gateway", why="signature"}': rising(0.001, 0.02),
        'payonce_signature_failures_total{consumer="gateway", why="stale"}': rising(0.001, 0.02),
    },
    "PayonceTokens": {'payonce_token_failures_total{reason="unknown"}': rising(0.001, 0.1)},
}
ALERTS = alerts()


def sampled(courses: Mapping[str, Course], until_s: float) -> dict[tuple[str, Labels], list[tuple[float, float]]]:
    """The samples that Prometheus would have scraped by then, as far as any alert looks back."""
    found = {}
    begin = int(max(0, until_s - 3_600 - LOOKBACK_S)) // STEP_S * STEP_S
    for name, course in courses.items():
        selector = parsed(name)
        assert isinstance(selector, Selector)
        labels = frozenset((label, value) for label, _, value in selector.matchers)
        values = ((float(at), course(at)) for at in range(begin, int(until_s) + 1, STEP_S))
        found[selector.name, labels] = [(at, value) for at, value in values if value is not None]
    return found


def holds(alert: Alert, at: float) -> bool:
    """Whether the condition holds; an alert fires when it has done so for `for`."""
    return bool(evaluated(alert.expression, sampled(TROUBLES[alert.name], at), at))


def test_every_alert_has_its_trouble() -> None:
    assert set(TROUBLES) == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_quiet_fires_in_trouble_and_resolves(name: str) -> None:
    alert = ALERTS[name]
    window_s = 2 * 3_600
    assert not holds(alert, QUIET_S - STEP_S), "nothing is wrong yet"
    begun = next(at for at in range(QUIET_S, QUIET_S + window_s, STEP_S) if holds(alert, at))
    assert begun + alert.for_s < TROUBLE_S, "a day of trouble is enough for every alert"
    middle = (begun + alert.for_s + TROUBLE_S) / 2
    assert all(holds(alert, at) for at in (begun + alert.for_s / 2, begun + alert.for_s, middle, TROUBLE_S - STEP_S))
    assert not holds(alert, END_S), "it is over"


def test_a_paused_queue_is_not_called_old() -> None:
    courses = {**TROUBLES["PayonceQueueOld"], 'payonce_queue_paused{queue="q"}': flat(1, 1)}
    at = (QUIET_S + TROUBLE_S) / 2
    assert evaluated(ALERTS["PayonceQueueOld"].expression, sampled(courses, at), at) == {}


def test_an_amount_that_two_processes_show_is_counted_once() -> None:
    at = (QUIET_S + TROUBLE_S) / 2
    found = evaluated(ALERTS["PayonceInDoubt"].expression, sampled(TROUBLES["PayonceInDoubt"], at), at)
    assert found == {frozenset({("asset", "EUR")}): 10_001.0}


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for alert in ALERTS.values():
        assert alert.severity in ("critical", "warning", "info"), alert.name
        assert alert.summary, alert.name
        assert len(alert.runbook) > 40, alert.name


def test_runbooks_name_only_commands_that_exist() -> None:
    known = typer.main.get_command(app)
    for alert in ALERTS.values():
        for line in re.findall(r"payonce ((?:[a-z-]+ ?)+)", alert.runbook):
            command = known
            for word in line.split():
                below = getattr(command, "commands", {})
                if word not in below and (not below or getattr(command, "invoke_without_command", False)):
                    break
                assert word in below, f"{alert.name}: payonce {line}"
                command = below[word]


def test_prometheus_reads_the_rules_and_calls_the_job_as_they_do() -> None:
    config = read_yaml("prometheus/prometheus.yml")
    assert config["rule_files"] == ["payonce.rules.yml"]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["payonce"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max by (queue (a)",
        "rate(a)",
        "max(a[5m])",
        "rate(a[5m]",
        "a{b=c}",
        "a >",
        "> 1",
        "a b",
        "avg_fun(a)",
        "histogram_quantile(a)",
        'a{b="c"',
        "a[5x]",
        "sum by () (a",
        "a == = 1",
        "1 or or 2",
        "rate(a[5m], b)",
    ],
)
def test_what_is_no_promql_is_refused(text: str) -> None:
    with pytest.raises(NotPromql):
        parsed(text)
