"""Latency of messages between queues, and duration of their runs, by the job log."""

import statistics
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class Latency(msgspec.Struct, frozen=True):
    """Latency of one hop, from the message to its run (with a task service: relay, create, dispatch, endpoint), and
    duration of the run including its settlement."""

    way_p50_ms: float
    way_p99_ms: float
    run_p50_ms: float
    run_p99_ms: float
    runs: int


async def latencies(connection: Any, begun_at: datetime, queues: Sequence[str]) -> dict[str, Latency]:
    """Latencies of the messages that have ended since then."""
    rows = await connection.fetch(
        """
        select queue, message_id, extract(epoch from started_at) * 1000 as started_ms,
            extract(epoch from created_at) * 1000 as ended_ms
        from payonce.job_logs where created_at >= $1 and started_at is not null and queue = any($2)
        """,
        begun_at,
        list(queues),
    )
    found = {}
    for queue in queues:
        of = [row for row in rows if row["queue"] == queue]
        if of:
            # An id contains the millisecond in which its message was put.
            waits_ms = [float(row["started_ms"]) - _put_ms(row["message_id"]) for row in of]
            runs = [float(row["ended_ms"] - row["started_ms"]) for row in of]
            found[queue] = Latency(
                percentile(waits_ms, 50),
                percentile(waits_ms, 99),
                percentile(runs, 50),
                percentile(runs, 99),
                len(of),
            )
    return found


def percentile(values: Sequence[float], percent: int) -> float:
    if len(values) < 2:
        return round(values[0], 2) if values else 0.0
    return round(statistics.quantiles(values, n=100)[percent - 1], 2)


def _put_ms(message_id: UUID) -> int:
    return message_id.int >> 80
