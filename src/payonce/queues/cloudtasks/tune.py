"""Derives a pushed queue's rate and concurrency from the vendor's limit and the measured durations of runs."""

import math
from dataclasses import dataclass
from typing import Final

from payonce.engine.audit import note
from payonce.engine.database.connections import Database
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks.sync import CONCURRENCY_MAX, RATE_MAX

VENDOR_SHARE: Final = 0.8
"""The share of the vendor's limit to use: the rest is for polls, quotes and clock differences."""
ROOM: Final = 1.5
"""Slots per slot that runs at this rate fill on average."""
RATE_UNMEASURED: Final = 10.0
CONCURRENCY_UNMEASURED: Final = 50
RUNS_LEAST: Final = 100
"""Fewer runs are too few for a 95th percentile."""
MEASURED_DAYS: Final = 7
VENDOR_RATE_MAX: Final = 100_000.0


@dataclass(frozen=True)
class Tuning:
    queue: str
    rate: float
    concurrency: int
    p95_s: float | None
    """None if too few runs were measured."""
    runs: int


async def measured_tuning(database: Database, queue: str, vendor_rate: float) -> Tuning:
    """Derives the numbers from the runs of the last days, failed ones included: they took slots, too."""
    if not 0 < vendor_rate <= VENDOR_RATE_MAX:
        raise Invalid(
            f"the vendor's rate is {vendor_rate}; it must be above 0 and at most {VENDOR_RATE_MAX:g} per second"
        )
    row = await database.work.fetchrow(
        """
        select count(*) as runs, percentile_disc(0.95) within group (
            order by extract(epoch from created_at - started_at)::float8) as p95_s
        from payonce.job_logs
        where queue = $1 and started_at is not null and created_at >= started_at
          and created_at >= payonce.due_now() - make_interval(days => $2)
        """,
        queue,
        MEASURED_DAYS,
    )
    assert row is not None
    return tune(queue, vendor_rate, row["runs"], row["p95_s"])


def tune(queue: str, vendor_rate: float, runs: int, p95_s: float | None) -> Tuning:
    rate = min(vendor_rate * VENDOR_SHARE, RATE_MAX)
    if p95_s is None or runs < RUNS_LEAST:
        return Tuning(queue, min(RATE_UNMEASURED, rate), CONCURRENCY_UNMEASURED, None, runs)
    concurrency = min(max(1, math.ceil(rate * p95_s * ROOM)), CONCURRENCY_MAX)
    return Tuning(queue, rate, concurrency, p95_s, runs)


async def apply(database: Database, each: Tuning, by: str) -> None:
    """Stores numbers that replace the policy's from the next start of a process on."""
    async with database.transaction() as connection:
        await connection.execute(
            "update payonce.queues set tuned_rate = $2, tuned_concurrency = $3 where name = $1",
            each.queue,
            each.rate,
            each.concurrency,
        )
        measured = "not measured" if each.p95_s is None else f"p95 {each.p95_s:.3f} s of {each.runs} runs"
        text = f"rate {each.rate:g}/s, concurrency {each.concurrency} ({measured})"
        await note(connection, "queues.tune", each.queue, text, actor=by)


async def tuned_numbers(database: Database) -> dict[str, tuple[float, int]]:
    rows = await database.engine.fetch(
        "select name, tuned_rate, tuned_concurrency from payonce.queues where tuned_rate is not null"
    )
    return {row["name"]: (row["tuned_rate"], row["tuned_concurrency"]) for row in rows}
