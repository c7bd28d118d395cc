"""Carries the outbox on: one janitor per relay, in every process, woken when something was put."""

import time
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.outbox import Relay
from payonce.engine.outbox.relay_steps import hand_over

TICK_MAX_S: Final = 30.0
"""A tick ends after the step in which this was reached, far below the limit of a tick; the next one goes on."""


async def carry_on(database: Database, relay: Relay) -> int:
    """Steps until nothing is due, or the other side takes nothing. Answers how many entries were taken up."""
    began_at, taken = time.monotonic(), 0
    while time.monotonic() < began_at + TICK_MAX_S:
        progress = await hand_over(database, relay)
        taken += progress.taken
        if not progress.goes_on:
            break
    return taken
