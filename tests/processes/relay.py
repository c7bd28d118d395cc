"""The relay process that is killed and stopped in these tests: its other side is the journal. Run as a module."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.janitors import Janitor, run_ticks
from payonce.engine.janitors.relay import carry_on
from payonce.engine.messages.policy import Fixed
from payonce.engine.outbox import Answer, Delivered, Entry, RelayConfig, wake_name
from tests.processes.journal import Journal

NAME = "journal"
LEASE_S = 1.0
TAKES_S = 0.01
HOLD_MAX_S = 100.0
LOOK_S = 0.01
POLL_S = 0.05


class JournalRelay:
    """An entry in the journal counts as received, whatever happens to this process afterwards."""

    name = NAME

    def __init__(self, journal: Journal, lease_s: float = LEASE_S) -> None:
        self.config = RelayConfig(batch=10, timeout_s=0.9 * lease_s, lease_s=lease_s, backoff=Fixed(0.1))
        self._journal = journal

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        for entry in entries:
            self._journal.note("received", entry.message.payload["row"])
        await asyncio.sleep(TAKES_S)
        for entry in entries:
            if entry.message.payload.get("hold"):
                self._hold(entry.message.payload["row"])
        return [Delivered()] * len(entries)

    def _hold(self, row: int) -> None:
        """Keeps the whole process here, so that no time-out of its own ends the delivery."""
        self._journal.note("holding", row)
        deadline = time.monotonic() + HOLD_MAX_S
        while not self._journal.may_go(row) and time.monotonic() < deadline:
            time.sleep(LOOK_S)


async def serve(url: str, folder: str, lease_s: float) -> None:
    journal = Journal(Path(folder))
    relay = JournalRelay(journal, lease_s)
    async with (
        Database.open(url, application_name="process-test-relay") as database,
        Notifier.open(database) as notifier,
    ):

        async def tick() -> None:
            await carry_on(database, relay)

        journal.note("ready", 0)
        await run_ticks([Janitor("relay", POLL_S, tick, wake_name(NAME))], notifier)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], float(sys.argv[3])))
