"""The audit log (who did what, written in the transaction it describes), the seals of the log and of the ledger, and
the audit of all data.

`run_audit` is in payonce.engine.audit.run because it depends on the effects, which write audit notes themselves.

A name is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.engine.audit.anchor import Heads, anchor_heads, heads_in, heads_now, line_of, parsed_heads
    from payonce.engine.audit.ledger_seals import LedgerSealer, ledger_head
    from payonce.engine.audit.ledger_verify import VerifiedLedger, verify_ledger
    from payonce.engine.audit.log import Note, Severity, note, notes
    from payonce.engine.audit.seals import Head, SealState, head, seal_notes, seal_state
    from payonce.engine.audit.verify import Verified, verify_log

_HOMES: Final = {
    "payonce.engine.audit.anchor": "Heads anchor_heads heads_in heads_now line_of parsed_heads",
    "payonce.engine.audit.ledger_seals": "LedgerSealer ledger_head",
    "payonce.engine.audit.ledger_verify": "VerifiedLedger verify_ledger",
    "payonce.engine.audit.log": "Note Severity note notes",
    "payonce.engine.audit.seals": "Head SealState head seal_notes seal_state",
    "payonce.engine.audit.verify": "Verified verify_log",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

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
