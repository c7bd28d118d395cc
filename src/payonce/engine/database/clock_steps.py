"""Steps of the store's wall clock. Leases are judged by it, so a step forward makes all of them look ended at once."""

import time
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.database.connections import Database

STEP_MIN_S: Final = 0.25
"""What is less is left to the two thirds of a lease that a living worker always has."""


@dataclass(frozen=True)
class _Reading:
    asked_at: float
    due_s: float
    lease_s: float


class ClockWatch:
    """Holds the store's clocks against this process' monotonic clock, from one look to the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: _Reading | None = None

    async def stepped_s(self) -> float:
        """How far the store's clocks went forward since the last look, beyond the time that passed; 0 for no step.

        A wall clock moves both of them. Tests move one alone, and mean time that passes.
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
