"""Delivers the outbox: one janitor per relay in every process, woken when entries are put."""

import time
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.outbox import Relay
from payonce.engine.outbox.relay_steps import hand_over

TICK_MAX_S: Final = 30.0
"""A tick ends after the step that reaches this, far below the limit of a tick; the next tick continues."""


async def carry_on(database: Database, relay: Relay) -> int:
    """Delivers until nothing is due or the destination accepts nothing. Returns the number of entries claimed."""
    began_at, taken = time.monotonic(), 0
    while time.monotonic() < began_at + TICK_MAX_S:
        progress = await hand_over(database, relay)
        taken += progress.taken
        if not progress.goes_on:
            break
    return taken
