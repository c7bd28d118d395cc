"""Vendor calls by minute, over all processes, and the vendors that fail now.

Each process counts every request that it sends, including queries, and adds its counts to a shared table. A killed
process loses the counts of its last seconds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from payonce.engine.database.connections import Database
from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.metrics import VENDOR_CALL_SECONDS

KEEP_S: Final = 2 * 86_400
WINDOW_MIN: Final = 5
"""The current minute and the four before it: between four and five minutes."""
FAILURES: Final = ("error", "no_answer", "resting")
"""A refusal is not a failure: a vendor that refuses is working."""
FAILING_PERCENT: Final = 20
"""The share of failed calls from which a vendor counts as failing."""
CALLS_MIN: Final = 3
"""Fewer calls say nothing about a vendor."""
LOST_WORDS: Final[Mapping[str, str]] = {
    "no_answer": "got no answer",
    "error": "answered with a server error",
    "resting": "reported too many calls",
}


@dataclass(frozen=True)
class VendorCalls:
    """Calls to one vendor within the window, by all processes."""

    vendor: str
    count: int
    by_outcome: Mapping[str, int]
    failing_calls: tuple[str, ...]
    """Names of the calls that failed, the most frequent first."""

    @property
    def failed(self) -> int:
        return sum(self.by_outcome.get(outcome, 0) for outcome in FAILURES)

    @property
    def failed_percent(self) -> int:
        return self.failed * 100 // self.count if self.count else 0

    @property
    def failing(self) -> bool:
        return self.count >= CALLS_MIN and self.failed * 100 >= self.count * FAILING_PERCENT

    @property
    def cause(self) -> str:
        """How its calls failed, most frequent first: "40 got no answer, 2 answered with a server error"."""
        found = sorted(((self.by_outcome.get(name, 0), name) for name in FAILURES), reverse=True)
        return ", ".join(f"{count:,} {LOST_WORDS[name]}" for count, name in found if count)


def call_observer(vendor: str) -> Callable[[str, str, float], None]:
    """An observer for a vendor's client, called for each request with the call's name, the outcome and the seconds it
    took."""

    def observe(call: str, outcome: str, seconds: float) -> None:
        VENDOR_CALL_SECONDS.labels(vendor, call, outcome).observe(seconds)

    return observe


@dataclass
class CallCounts:
    """Adds the counts of this process since its last tick to the shared minutes."""

    database: Database
    _written: dict[tuple[str, str, str], float] = field(init=False)

    def __post_init__(self) -> None:
        self._written = _counted()

    async def tick(self) -> int:
        """Counts that could not be written are added at the next tick."""
        counted = _counted()
        news = {key: int(total - self._written.get(key, 0.0)) for key, total in counted.items()}
        # All processes write in the same order: two that write the same minute wait for each other without deadlock.
        rows = sorted((*key, calls) for key, calls in news.items() if calls > 0)
        if rows:
            await self.database.engine.execute(
                """
                insert into payonce.vendor_minutes as m (minute, vendor, call, outcome, calls)
                select date_trunc('minute', payonce.due_now()), n.*
                from unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) as n (vendor, call, outcome, calls)
                on conflict (minute, vendor, call, outcome) do update set calls = m.calls + excluded.calls
                """,
                *(list(column) for column in zip(*rows, strict=True)),
            )
        self._written = counted
        return len(rows)


async def forget_old_calls(database: Database) -> None:
    await database.engine.execute(
        "delete from payonce.vendor_minutes where minute < payonce.due_now() - make_interval(secs => $1)", KEEP_S
    )


async def vendor_calls(read: Reads, minutes: int = WINDOW_MIN) -> list[VendorCalls]:
    """Vendors called within the last minutes; failing ones first, then by name."""
    rows = await read.fetch(
        """
        select vendor, call, outcome, sum(calls)::bigint as calls from payonce.vendor_minutes
        where minute > payonce.due_now() - make_interval(mins => $1) group by 1, 2, 3
        """,
        minutes,
    )
    names = {row["vendor"] for row in rows}
    found = [_vendor(name, [row for row in rows if row["vendor"] == name]) for name in names]
    return sorted(found, key=lambda each: (not each.failing, each.vendor))


async def failing_vendors(read: Reads) -> list[VendorCalls]:
    return [each for each in await vendor_calls(read) if each.failing]


def _vendor(name: str, rows: list[Any]) -> VendorCalls:
    by_outcome: dict[str, int] = {}
    by_call: dict[str, int] = {}
    for row in rows:
        by_outcome[row["outcome"]] = by_outcome.get(row["outcome"], 0) + row["calls"]
        if row["outcome"] in FAILURES:
            by_call[row["call"]] = by_call.get(row["call"], 0) + row["calls"]
    ordered = sorted(by_call, key=lambda call: (-by_call[call], call))
    return VendorCalls(name, sum(by_outcome.values()), by_outcome, tuple(ordered))


def _counted() -> dict[tuple[str, str, str], float]:
    samples: Iterable[Any] = (sample for family in VENDOR_CALL_SECONDS.collect() for sample in family.samples)
    return {
        (sample.labels["vendor"], sample.labels["call"], sample.labels["outcome"]): sample.value
        for sample in samples
        if sample.name.endswith("_count")
    }
