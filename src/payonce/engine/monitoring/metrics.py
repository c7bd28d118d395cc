"""Prometheus metrics: counters of this process, and gauges read from the store.

Services declare their own metrics in their module `metrics`, in the same REGISTRY.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
WAITS_S = (0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)


class Durations(Collector):
    """A histogram by queue with cheap, batched observations, since one is made for every message."""

    def __init__(self, name: str, documentation: str, bounds_s: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds_s = bounds_s
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        REGISTRY.register(self)

    def observe(self, queue: str, durations_s: Iterable[float]) -> None:
        counts = self._counts.setdefault(queue, [0] * (len(self._bounds_s) + 1))
        total_s = 0.0
        for duration_s in durations_s:
            counts[bisect_left(self._bounds_s, duration_s)] += 1
            total_s += duration_s
        self._sums_s[queue] = self._sums_s.get(queue, 0.0) + total_s

    def remove(self, queue: str) -> None:
        self._counts.pop(queue, None)
        self._sums_s.pop(queue, None)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=["queue"])
        labels = [*map(str, self._bounds_s), "+Inf"]
        for queue, counts in list(self._counts.items()):
            running = 0
            buckets = []
            for label, count in zip(labels, counts, strict=True):
                running += count
                buckets.append((label, running))
            family.add_metric([queue], buckets, self._sums_s[queue])
        yield family


CLAIMS = Counter("payonce_claims_total", "Messages claimed.", ["queue"], registry=REGISTRY)
SETTLES = Counter("payonce_settles_total", "Runs ended, by outcome.", ["queue", "outcome"], registry=REGISTRY)
STALE_SETTLES = Counter("payonce_stale_settles_total", "Settlements of lost claims.", ["queue"], registry=REGISTRY)
RETRIES = Counter("payonce_retries_total", "Runs that will be retried.", ["queue"], registry=REGISTRY)
REAPED = Counter(
    "payonce_reaped_total", "Messages taken over from dead or stopped workers.", ["queue"], registry=REGISTRY
)
MAINTENANCE_MOVES = Counter(
    "payonce_upkeep_total", "Messages moved by queue maintenance.", ["task", "queue"], registry=REGISTRY
)
RETRY_LATENCY_SECONDS = Histogram(
    "retry_latency_seconds",
    "From the first attempt to the success that followed retries.",
    ["queue"],
    buckets=WAITS_S,
    registry=REGISTRY,
)
LEASE_CHANGES = Counter(
    "payonce_lease_changes_total", "Named leases acquired by a new holder.", ["name"], registry=REGISTRY
)
DB_WRITES = Counter("payonce_db_writes_total", "Groups of rows written.", ["table", "outcome"], registry=REGISTRY)

OBSERVED_TIMESTAMP_SECONDS = Gauge(
    "payonce_observed_timestamp_seconds",
    "When this process last read the gauges below from the store.",
    registry=REGISTRY,
)
DEPTH = Gauge("payonce_queue_depth", "Messages by state, counted up to a bound.", ["queue", "state"], registry=REGISTRY)
OLDEST_READY_SECONDS = Gauge(
    "payonce_queue_oldest_ready_seconds",
    "For how long the oldest ready message has been due.",
    ["queue"],
    registry=REGISTRY,
)
PAUSED = Gauge("payonce_queue_paused", "1 while the queue is paused.", ["queue"], registry=REGISTRY)
OLDEST_SNAPSHOT_SECONDS = Gauge(
    "payonce_oldest_snapshot_seconds",
    "Age of the oldest transaction that keeps dead rows from being cleaned up.",
    registry=REGISTRY,
)
ORPHANED_EFFECTS = Counter(
    "payonce_orphaned_effects_total",
    "Open effects of parked or missing messages, put into review.",
    registry=REGISTRY,
)
AUDIT_HEAD = Gauge(
    "payonce_audit_head", "Number of the last seal of the audit log, in the leader's process.", registry=REGISTRY
)
LEDGER_HEAD = Gauge(
    "payonce_ledger_head", "Number of the last seal of the ledger, in the leader's process.", registry=REGISTRY
)
LEDGER_UNSEALED = Gauge(
    "payonce_ledger_unsealed",
    "Posting ids assigned after the ledger's last seal, in the leader's process.",
    registry=REGISTRY,
)
UNMATCHED = Gauge(
    "payonce_unmatched",
    "Open items between our effects and vendors' statements.",
    ["vendor", "direction"],
    registry=REGISTRY,
)
UNMATCHED_AMOUNT = Gauge(
    "payonce_unmatched_amount",
    "Amount of the open items in major units, regardless of direction.",
    ["vendor", "asset"],
    registry=REGISTRY,
)
UNMATCHED_OLDEST_SECONDS = Gauge(
    "payonce_unmatched_oldest_seconds", "Age of the oldest open item; 0 without one.", ["vendor"], registry=REGISTRY
)
RECONCILED_SECONDS = Gauge(
    "payonce_reconciled_seconds",
    "Time since the end of the reconciled period of a vendor's statement.",
    ["vendor"],
    registry=REGISTRY,
)
DATABASE_WEAKNESSES = Gauge(
    "payonce_database_weaknesses", "Settings of the database under which commits can be lost.", registry=REGISTRY
)
QUARANTINED = Gauge("payonce_quarantined", "1 while nothing is sent because of a quarantine.", registry=REGISTRY)

OUTBOX_DELIVERIES = Counter(
    "payonce_outbox_deliveries_total",
    "Deliveries of entries, by outcome.",
    ["relay", "outcome"],
    registry=REGISTRY,
)
OUTBOX_WAITING = Gauge(
    "payonce_outbox_waiting", "Entries not delivered yet, counted up to a bound.", ["relay"], registry=REGISTRY
)
OUTBOX_PARKED = Gauge(
    "payonce_outbox_parked", "Entries parked by the relay, counted up to a bound.", ["relay"], registry=REGISTRY
)
OUTBOX_LAG_SECONDS = Gauge(
    "payonce_outbox_lag_seconds",
    "For how long the oldest undelivered entry has been due.",
    ["relay"],
    registry=REGISTRY,
)

PUSHED_DELIVERIES = Counter(
    "payonce_pushed_deliveries_total",
    "Tasks delivered by the task service, by our answer.",
    ["queue", "outcome"],
    registry=REGISTRY,
)
TASKS_PUT_BACK = Counter(
    "payonce_tasks_put_back_total",
    "Messages put back because the task service had lost their task.",
    ["queue"],
    registry=REGISTRY,
)

CLOUDTASKS_CREATED = Counter(
    "payonce_cloudtasks_created_total", "Tasks accepted by our Cloud Tasks server.", ["queue"], registry=REGISTRY
)
CLOUDTASKS_DISPATCHES = Counter(
    "payonce_cloudtasks_dispatches_total",
    "Requests sent for tasks, by answer.",
    ["queue", "answer"],
    registry=REGISTRY,
)
CLOUDTASKS_DISPATCH_SECONDS = Durations(
    "payonce_cloudtasks_dispatch_seconds",
    "From the start of such a request to its answer or time-out.",
    _SECONDS,
)
CLOUDTASKS_RETRIES = Counter(
    "payonce_cloudtasks_retries_total",
    "Requests after which the task is retried.",
    ["queue"],
    registry=REGISTRY,
)
CLOUDTASKS_GIVEN_UP = Counter(
    "payonce_cloudtasks_given_up_total",
    "Tasks whose last attempt failed.",
    ["queue"],
    registry=REGISTRY,
)
CLOUDTASKS_WAITING = Gauge(
    "payonce_cloudtasks_waiting", "Tasks waiting for dispatch, counted up to a bound.", ["queue"], registry=REGISTRY
)

BUDGET_WAIT_SECONDS = Histogram(
    "payonce_budget_wait_seconds",
    "Time waited for a turn of a vendor's budget.",
    ["budget"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
BUDGET_REFUSALS = Counter(
    "payonce_budget_refusals_total",
    "Calls not made because their turn would come too late.",
    ["budget"],
    registry=REGISTRY,
)
BUDGET_PENALTIES = Counter(
    "payonce_budget_penalties_total", "Times that a vendor reported too many calls.", ["budget"], registry=REGISTRY
)

HTTP_REQUESTS = Counter(
    "payonce_http_requests_total", "Answers over HTTP.", ["method", "route", "status"], registry=REGISTRY
)
HTTP_CONNECTIONS_CLOSED = Counter(
    "payonce_http_connections_closed_total",
    "HTTP connections closed or refused by a limit, by reason.",
    ["reason"],
    registry=REGISTRY,
)
TOKEN_FAILURES = Counter(
    "payonce_token_failures_total", "Refused keys and access tokens, by reason.", ["reason"], registry=REGISTRY
)
WEBHOOK_DELIVERY_SECONDS = Histogram(
    "webhook_delivery_seconds",
    "Duration of one delivery attempt of a webhook.",
    ["outcome"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
WEBHOOK_ENDPOINTS_DISABLED = Counter(
    "payonce_webhook_endpoints_disabled_total",
    "Endpoints disabled because of their answers, by reason.",
    ["why"],
    registry=REGISTRY,
)
SIGNATURE_FAILURES = Counter(
    "payonce_signature_failures_total", "Refused incoming webhooks.", ["consumer", "why"], registry=REGISTRY
)
VENDOR_SECONDS = Histogram(
    "payonce_vendor_seconds",
    "One vendor call of an effect, including the wait for its turn.",
    ["kind", "call"],
    buckets=_SECONDS,
    registry=REGISTRY,
)
VENDOR_CALL_SECONDS = Histogram(
    "payonce_vendor_call_seconds",
    "One request to a vendor without the wait for its turn, by outcome.",
    ["vendor", "call", "outcome"],
    buckets=_SECONDS,
    registry=REGISTRY,
)

HELD = Counter("payonce_sends_held_total", "Sends held back by a control.", ["brake"], registry=REGISTRY)
EFFECT_EVENTS = Counter(
    "payonce_effect_events_total",
    "Results of attempts of effects and of queries about them.",
    ["kind", "event"],
    registry=REGISTRY,
)
OPEN_EFFECTS = Gauge("payonce_open_effects", "Open effects.", ["state", "kind"], registry=REGISTRY)
OPEN_EFFECTS_AMOUNT = Gauge(
    "payonce_open_effects_amount", "Amount of open effects, in major units.", ["state", "asset"], registry=REGISTRY
)
OLDEST_OPEN_EFFECT_SECONDS = Gauge(
    "payonce_oldest_open_effect_seconds",
    "Age of the oldest open effect; 0 without one.",
    ["state"],
    registry=REGISTRY,
)
FREEZES = Gauge("payonce_freezes", "Freezes in force.", registry=REGISTRY)
APPROVALS_WAITING = Gauge("payonce_approvals_waiting", "Requests waiting for a second person.", registry=REGISTRY)

HANDLER_SECONDS = Durations("payonce_handler_seconds", "Time in the handler.", _SECONDS)
