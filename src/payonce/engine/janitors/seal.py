"""Seals the audit log and the ledger, and writes the heads of both chains to the anchor. Runs in the leader only,
fenced by its lease."""

from dataclasses import dataclass
from pathlib import Path

from payonce.engine.audit import LedgerSealer, anchor_heads, head, ledger_head, seal_notes
from payonce.engine.database.connections import Database
from payonce.engine.messages.model import Lease
from payonce.engine.monitoring.metrics import AUDIT_HEAD, LEDGER_HEAD, LEDGER_UNSEALED


@dataclass(frozen=True)
class Sealer:
    database: Database
    anchor: Path | None = None
    """A file that the database's owner should not be able to write."""

    async def tick(self, lease: Lease) -> None:
        await seal_notes(self.database, lease)
        AUDIT_HEAD.set((await head(self.database.engine)).number)
        if self.anchor is not None:
            await anchor_heads(self.database.engine, self.anchor)


@dataclass(frozen=True)
class LedgerSeals:
    """A separate janitor, so that a ledger that cannot be sealed does not delay the audit log, nor the reverse."""

    sealer: LedgerSealer

    async def tick(self, lease: Lease) -> None:
        await self.sealer.seal(lease)
        LEDGER_HEAD.set((await ledger_head(self.sealer.database.engine)).number)
        LEDGER_UNSEALED.set(self.sealer.unsealed_ids)
