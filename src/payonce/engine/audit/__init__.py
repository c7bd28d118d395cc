"""The audit log (who did what, written in the transaction it describes), the seals of the log and of the ledger, and
the audit of all data.

`run_audit` is in payonce.engine.audit.run because it depends on the effects, which write audit notes themselves.
"""

from payonce.engine.audit.anchor import Heads, anchor_heads, heads_in, heads_now, line_of, parsed_heads
from payonce.engine.audit.ledger_seals import LedgerSealer, ledger_head
from payonce.engine.audit.ledger_verify import VerifiedLedger, verify_ledger
from payonce.engine.audit.log import Note, Severity, note, notes
from payonce.engine.audit.seals import Head, SealState, head, seal_notes, seal_state
from payonce.engine.audit.verify import Verified, verify_log

__all__ = [
    "Head",
    "Heads",
    "LedgerSealer",
    "Note",
    "SealState",
    "Severity",
    "Verified",
    "VerifiedLedger",
    "anchor_heads",
    "head",
    "heads_in",
    "heads_now",
    "ledger_head",
    "line_of",
    "note",
    "notes",
    "parsed_heads",
    "seal_notes",
    "seal_state",
    "verify_ledger",
    "verify_log",
]
