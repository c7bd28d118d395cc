"""Takes balance snapshots of some accounts per tick. Runs in the leader only, but would do no harm elsewhere."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.ledger.snapshots import BATCH_ACCOUNTS, LINES_WORTHWHILE, snapshot_batch

BATCHES_MAX: Final = 100
"""Per tick; the next tick continues with the following accounts."""


@dataclass
class Snapshots:
    """The position in the accounts between ticks."""

    database: Database
    lines_wanted: int = LINES_WORTHWHILE
    batch_accounts: int = BATCH_ACCOUNTS
    batches_max: int = BATCHES_MAX
    _last_account: int = 0

    async def tick(self) -> int:
        made = 0
        for _ in range(self.batches_max):
            batch = await snapshot_batch(self.database, self._last_account, self.lines_wanted, self.batch_accounts)
            made += batch.made
            self._last_account = batch.last_account or 0
            if batch.last_account is None:
                break
        return made
