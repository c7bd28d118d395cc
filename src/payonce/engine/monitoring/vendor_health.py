"""Vendor health: results of the last day's effects, call latencies, and budget usage."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.metrics import VENDOR_CALL_SECONDS

LINES_MAX: Final = 20_000
"""The newest rows of effect_attempts: usually enough for a day, and read in a fraction of a second."""
WINDOW_S: Final = 86_400.0
ENDINGS: Final = ("performed", "refused", "not_sent", "unknown")


@dataclass(frozen=True)
class AttemptStats:
    """Results of the attempts of one kind of effect, over all processes."""

    vendor: str
    kind: str
    count: int
    by_ending: Mapping[str, int]
    p50_s: float | None
    p95_s: float | None
    """From the recorded intent to the recorded end, including the wait for a turn."""


@dataclass(frozen=True)
class CallStats:
    """Requests to a vendor by this process since it started, including queries."""

    vendor: str
    call: str
    count: int
    by_outcome: Mapping[str, int]
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True)
class BudgetUse:
    name: str
    rate_per_s: float
    burst: int
    used_percent: int
    """Of the burst; at 100 the next call waits for its turn."""
    held_until: datetime | None
    """The end of the pause that the vendor requested."""


async def attempt_stats(read: Reads) -> list[AttemptStats]:
    """By vendor and kind."""
    rows = await read.fetch(
        """
        with recent as (select * from payonce.effect_attempts order by id desc limit $1),
        ended as (
            select r.effect_id, r.event, extract(epoch from r.created_at - s.created_at)::float8 as seconds
            from recent r join payonce.effect_attempts s
                on s.effect_id = r.effect_id and s.attempt = r.attempt and s.event = 'started' and s.id < r.id
            where r.event = any($2::text[]) and r.created_at > payonce.due_now() - make_interval(secs => $3))
        select coalesce(e.vendor, '') as vendor, e.kind, count(*) as count,
            percentile_disc(0.5) within group (order by t.seconds) as p50_s,
            percentile_disc(0.95) within group (order by t.seconds) as p95_s,
            count(*) filter (where t.event = 'performed') as performed,
            count(*) filter (where t.event = 'refused') as refused,
            count(*) filter (where t.event = 'not_sent') as not_sent,
            count(*) filter (where t.event = 'unknown') as unknown
        from ended t join payonce.effects e on e.id = t.effect_id group by 1, 2 order by 1, 2
        """,
        LINES_MAX,
        list(ENDINGS),
        WINDOW_S,
    )
    return [
        AttemptStats(
            row["vendor"], row["kind"], row["count"], {name: row[name] for name in ENDINGS}, row["p50_s"], row["p95_s"]
        )
        for row in rows
    ]


def call_stats() -> list[CallStats]:
    """Of this process only; empty in a process without the vendor's roles."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    buckets: dict[tuple[str, str], dict[float, float]] = {}
    for sample in (sample for metric in VENDOR_CALL_SECONDS.collect() for sample in metric.samples):
        about = (sample.labels["vendor"], sample.labels["call"])
        if sample.name.endswith("_count"):
            counts.setdefault(about, {})[sample.labels["outcome"]] = int(sample.value)
        elif sample.name.endswith("_bucket"):
            below = buckets.setdefault(about, {})
            bound = float(sample.labels["le"])
            below[bound] = below.get(bound, 0) + sample.value
    return [
        CallStats(*about, sum(found.values()), found, quantile(buckets[about], 0.5), quantile(buckets[about], 0.95))
        for about, found in sorted(counts.items())
        if sum(found.values())
    ]


def quantile(below: Mapping[float, float], share: float) -> float | None:
    """A quantile from counts below each bound, computed as in Prometheus; beyond the last bound it is that bound."""
    bounds = sorted(below)
    total = below[bounds[-1]] if bounds else 0
    if not total:
        return None
    target, low, before = total * share, 0.0, 0.0
    for bound in bounds:
        if below[bound] >= target:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (target - before) / (below[bound] - before)
        low, before = bound, below[bound]
    return low


async def budgets(read: Reads) -> list[BudgetUse]:
    rows = await read.fetch(
        """
        select name, rate_per_s, burst, case when held_until > payonce.due_now() then held_until end as held_until,
            least(100, greatest(0, ceil(100 * rate_per_s / burst
                * extract(epoch from arrival_at - payonce.due_now())::float8)))::int as used_percent
        from payonce.budgets order by name
        """
    )
    return [_budget(row) for row in rows]


def _budget(row: Any) -> BudgetUse:
    return BudgetUse(row["name"], row["rate_per_s"], row["burst"], row["used_percent"], row["held_until"])
