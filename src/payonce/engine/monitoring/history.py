"""Queue history by minute: written by the workers as they count, kept for two days, read for charts.

The job log cannot provide it: a queue may log failures only, and counting a busy hour would read millions of rows. A
killed process loses the counts of its last seconds; the job log stays the record of every run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from payonce.engine.database.connections import Database
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.metrics import SETTLES
from payonce.kit.outcomes import Invalid

KEEP_S: Final = 2 * 86_400
MINUTES_MAX: Final = KEEP_S // 60
ENDINGS: Final = ("success", "retry", "failed", "parked")


@dataclass(frozen=True)
class QueueMinute:
    """One minute of one queue, or of all queues. None means not sampled, which is not zero."""

    minute: datetime
    success: int = 0
    retry: int = 0
    failed: int = 0
    parked: int = 0
    waiting: int | None = None
    delayed: int | None = None
    leased: int | None = None
    lying: int | None = None
    """Parked messages at that time."""
    oldest_s: float | None = None

    @property
    def runs(self) -> int:
        return self.success + self.retry + self.failed + self.parked

    @property
    def errors(self) -> int:
        """Runs that failed for good. A retry does not count, since it may still succeed."""
        return self.failed + self.parked


@dataclass
class RunCounts:
    """The counts of this process since it last wrote them."""

    database: Database
    _written: dict[tuple[str, str], float] = field(init=False)

    def __post_init__(self) -> None:
        self._written = _counted()

    async def tick(self) -> int:
        """Adds new counts to the current minute. Counts that could not be written are added at the next tick."""
        counted = _counted()
        news = {key: total - self._written.get(key, 0.0) for key, total in counted.items()}
        queues = sorted({queue for (queue, _), count in news.items() if count > 0})
        if queues:
            columns = [[int(news.get((queue, ending), 0)) for queue in queues] for ending in ENDINGS]
            await self.database.engine.execute(
                """
                insert into payonce.queue_minutes as m (minute, queue, success, retry, failed, parked)
                select date_trunc('minute', payonce.due_now()), n.*
                from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
                    as n (queue, success, retry, failed, parked)
                on conflict (minute, queue) do update
                set success = m.success + excluded.success, retry = m.retry + excluded.retry,
                    failed = m.failed + excluded.failed, parked = m.parked + excluded.parked
                """,
                queues,
                *columns,
            )
        self._written = counted
        return len(queues)


async def sample_depths(database: Database, depths: Sequence[Depth]) -> None:
    """Writes the current depths and deletes rows past the retention. One process does it for all."""
    ordered = sorted(depths, key=lambda depth: depth.queue)
    await database.engine.execute(
        """
        insert into payonce.queue_minutes as m (minute, queue, waiting, delayed, leased, lying, oldest_s)
        select date_trunc('minute', payonce.due_now()), n.*
        from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::float8[])
            as n (queue, waiting, delayed, leased, lying, oldest_s)
        on conflict (minute, queue) do update
        set waiting = excluded.waiting, delayed = excluded.delayed, leased = excluded.leased, lying = excluded.lying,
            oldest_s = excluded.oldest_s
        """,
        [depth.queue for depth in ordered],
        [depth.ready + depth.alone for depth in ordered],
        [depth.delayed for depth in ordered],
        [depth.leased for depth in ordered],
        [depth.parked for depth in ordered],
        [depth.oldest_ready_s for depth in ordered],
    )
    await database.engine.execute(
        "delete from payonce.queue_minutes where minute < payonce.due_now() - make_interval(secs => $1)", KEEP_S
    )


async def history(read: Reads, minutes: int = 60, queue: str | None = None) -> list[QueueMinute]:
    """The last minutes, oldest first, without gaps: of one queue, or of all queues together."""
    _check(minutes)
    rows = await read.fetch(
        f"""
        select c.minute, {_SUMS}
        from (select generate_series(t - make_interval(mins => $1 - 1), t, interval '1 minute') as minute
              from date_trunc('minute', payonce.due_now()) as t) c
        left join payonce.queue_minutes m on m.minute = c.minute and ($2::text is null or m.queue = $2)
        group by c.minute order by c.minute
        """,
        minutes,
        queue,
    )
    return [_minute(row) for row in rows]


async def runs_by_queue(read: Reads, minutes: int = 60) -> dict[str, list[QueueMinute]]:
    """The last minutes of every queue that has rows in that time. Gaps are filled with empty minutes."""
    _check(minutes)
    rows = await read.fetch(
        """
        select m.*, date_trunc('minute', payonce.due_now()) as last_minute from payonce.queue_minutes m
        where m.minute > payonce.due_now() - make_interval(mins => $1) order by m.queue, m.minute
        """,
        minutes,
    )
    found: dict[str, dict[datetime, QueueMinute]] = {}
    for row in rows:
        found.setdefault(row["queue"], {})[row["minute"]] = _minute(row)
    if not rows:
        return {}
    last: datetime = rows[0]["last_minute"]
    clock = [last - timedelta(minutes=back) for back in range(minutes - 1, -1, -1)]
    return {queue: [seen.get(minute, QueueMinute(minute)) for minute in clock] for queue, seen in found.items()}


_SUMS: Final = """coalesce(sum(m.success), 0)::bigint as success, coalesce(sum(m.retry), 0)::bigint as retry,
    coalesce(sum(m.failed), 0)::bigint as failed, coalesce(sum(m.parked), 0)::bigint as parked,
    sum(m.waiting)::bigint as waiting, sum(m.delayed)::bigint as delayed, sum(m.leased)::bigint as leased,
    sum(m.lying)::bigint as lying, max(m.oldest_s) as oldest_s"""


def _counted() -> dict[tuple[str, str], float]:
    samples: Iterable[Any] = (sample for family in SETTLES.collect() for sample in family.samples)
    return {
        (sample.labels["queue"], sample.labels["outcome"]): sample.value
        for sample in samples
        if sample.name.endswith("_total") and sample.labels["outcome"] in ENDINGS
    }


def _minute(row: Any) -> QueueMinute:
    return QueueMinute(**{name: row[name] for name in QueueMinute.__dataclass_fields__})


def _check(minutes: int) -> None:
    if not 1 <= minutes <= MINUTES_MAX:
        raise Invalid(f"minutes is {minutes}; it must be 1 to {MINUTES_MAX:,}")
