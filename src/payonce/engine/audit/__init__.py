"""The audit log, who did what, written in the transaction that it tells of; its seals; and the audit of everything.

`run_audit` is in payonce.engine.audit.run: it stands on the effects, which write notes themselves.
"""

from payonce.engine.audit.anchor import anchor_head, heads_in, parsed_head
from payonce.engine.audit.log import Note, Severity, note, notes
from payonce.engine.audit.seals import Head, SealState, head, seal_notes, seal_state
from payonce.engine.audit.verify import Verified, verify_log

__all__ = [
    "Head",
    "Note",
    "SealState",
    "Severity",
    "Verified",
    "anchor_head",
    "head",
    "heads_in",
    "note",
    "notes",
    "parsed_head",
    "seal_notes",
    "seal_state",
    "verify_log",
]
