"""Concurrency and rate across processes: decided under the limit's row lock, from live leases, never from a counter."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.database import Connection

LIMITED_REST_S: Final = 0.05
"""How long a worker rests when all slots are taken elsewhere; their release is not announced."""


@dataclass(frozen=True)
class Allowance:
    """How many may be claimed now; `rest_s` when it is none."""

    count: int
    rest_s: float | None = None
    rate: float | None = None
    arrival_at: datetime | None = None
    now: datetime | None = None


async def allowance(connection: Connection, limit_name: str, wanted: int) -> Allowance:
    """Takes the limit's lock. The count is a statement of its own: only a statement that begins after
    the lock was granted sees what the previous holder claimed."""
    limit = await connection.fetchrow(
        """
        select concurrency, rate, burst, arrival_at, payonce.due_now() as now,
               extract(epoch from greatest(arrival_at - payonce.due_now(), interval '0'))::float8 as debt_s
        from payonce.limits where name = $1 for update
        """,
        limit_name,
    )
    if limit is None:
        return Allowance(wanted)
    count, rest_s = wanted, None
    if limit["concurrency"] is not None:
        count = min(count, limit["concurrency"] - await _running(connection, limit_name))
        rest_s = LIMITED_REST_S if count <= 0 else None
    if limit["rate"] is not None:
        interval_s = 1.0 / limit["rate"]
        # A hair of tolerance: 0.1 s of debt at 10/s is one dispatch, not 1.0000000001.
        by_rate = int(limit["burst"] - limit["debt_s"] / interval_s + 1e-6)
        if by_rate <= 0:
            rest_s = max(rest_s or 0.0, limit["debt_s"] - (limit["burst"] - 1) * interval_s)
        count = min(count, by_rate)
    return Allowance(max(0, count), rest_s, limit["rate"], limit["arrival_at"], limit["now"])


async def spend(connection: Connection, limit_name: str, allowed: Allowance, claimed: int) -> None:
    """Moves the rate's arrival time by what was dispatched."""
    if allowed.rate is not None and claimed:
        await connection.execute(
            """
            update payonce.limits
            set arrival_at = greatest(arrival_at, $2) + make_interval(secs => $3)
            where name = $1
            """,
            limit_name, allowed.now, claimed / allowed.rate,
        )  # fmt: skip


async def _running(connection: Connection, limit_name: str) -> int:
    running: int = await connection.fetchval(
        """
        select count(*) from payonce.queues q join payonce.messages m on m.queue = q.name and m.state = 'leased'
        where q.limit_name = $1
        """,
        limit_name,
    )
    return running
