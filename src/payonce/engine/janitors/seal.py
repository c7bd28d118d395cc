"""Seals the audit log and writes the head of its chain to the anchor. Leader-only, fenced by the leader's lease."""

from dataclasses import dataclass
from pathlib import Path

from payonce.engine.audit import anchor_head, head, seal_notes
from payonce.engine.database import Database
from payonce.engine.metrics import AUDIT_HEAD
from payonce.engine.model import Lease


@dataclass(frozen=True)
class Sealer:
    database: Database
    anchor: Path | None = None
    """A file that the database's owner should not be able to write."""

    async def tick(self, lease: Lease) -> None:
        await seal_notes(self.database, lease)
        AUDIT_HEAD.set((await head(self.database.engine)).number)
        if self.anchor is not None:
            await anchor_head(self.database.engine, self.anchor)
