"""The double-entry ledger, written in the business transaction: postings that balance, account balances, statements,
and their audit.

A name is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.engine.ledger.audit import Finding, audit_ledger
    from payonce.engine.ledger.model import Account, Line, Overdrawn, Posting, PostingId, Reference, moved
    from payonce.engine.ledger.postings import declare, guard, post, post_all
    from payonce.engine.ledger.queries import Cursor, Entry, Page, balance, statement, trial_balance
    from payonce.engine.ledger.snapshots import snapshot_balances

_HOMES: Final = {
    "payonce.engine.ledger.audit": "Finding audit_ledger",
    "payonce.engine.ledger.model": "Account Line Overdrawn Posting PostingId Reference moved",
    "payonce.engine.ledger.postings": "declare guard post post_all",
    "payonce.engine.ledger.queries": "Cursor Entry Page balance statement trial_balance",
    "payonce.engine.ledger.snapshots": "snapshot_balances",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Account",
    "Cursor",
    "Entry",
    "Finding",
    "Line",
    "Overdrawn",
    "Page",
    "Posting",
    "PostingId",
    "Reference",
    "audit_ledger",
    "balance",
    "declare",
    "guard",
    "moved",
    "post",
    "post_all",
    "snapshot_balances",
    "statement",
    "trial_balance",
]
