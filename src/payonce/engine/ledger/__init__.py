"""The double-entry ledger, written in the business transaction: postings that balance, account balances, statements,
and their audit."""

from payonce.engine.ledger.audit import Finding, audit_ledger
from payonce.engine.ledger.model import Account, Line, Overdrawn, Posting, PostingId, Reference, moved
from payonce.engine.ledger.postings import declare, guard, post, post_all
from payonce.engine.ledger.queries import Cursor, Entry, Page, balance, statement, trial_balance
from payonce.engine.ledger.snapshots import snapshot_balances

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
