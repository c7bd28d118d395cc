"""Detection of steps of the store's wall clock. Leases depend on it: a step forward makes all of them look expired at
once."""

import time
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.database.connections import Database

STEP_MIN_S: Final = 0.25
"""Smaller steps are covered by the two thirds of its lease that a living worker always has left."""


@dataclass(frozen=True)
class _Reading:
    asked_at: float
    due_s: float
    lease_s: float


class ClockWatch:
    """Compares the store's clocks with this process's monotonic clock, from one reading to the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: _Reading | None = None

    async def stepped_s(self) -> float:
        """How far the store's clocks moved forward since the last reading beyond the elapsed time; 0 without a step.

        A wall clock moves both of them. A test that moves only one simulates elapsed time.
        """
        asked_at = time.monotonic()
        row: Any = await self._database.engine.fetchrow(
            """
            select extract(epoch from payonce.due_now())::float8 as due_s,
                extract(epoch from payonce.lease_now())::float8 as lease_s
            """
        )
        before, self._last = self._last, _Reading(asked_at, row["due_s"], row["lease_s"])
        if before is None:
            return 0.0
        moved_s = min(row["due_s"] - before.due_s, row["lease_s"] - before.lease_s)
        step_s: float = moved_s - (time.monotonic() - before.asked_at)
        return step_s if step_s > STEP_MIN_S else 0.0
