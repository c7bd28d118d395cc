"""Reconciliation of vendors' statements with our effects, in both directions. Unmatched items are held in suspense
until they are explained."""

from payonce.engine.reconcile.balance_comparison import BalanceComparison, compare_balances
from payonce.engine.reconcile.match import assign
from payonce.engine.reconcile.run import reconcile
from payonce.engine.reconcile.runs import Coverage, Run, coverages, is_due, last_runs, register
from payonce.engine.reconcile.source import Entry, Flow, StatementSource, suspense_account
from payonce.engine.reconcile.suspense import (
    Direction,
    Item,
    ItemState,
    describe,
    explain,
    item_of,
    suspense_totals,
    unmatched,
    write_off,
)

__all__ = [
    "BalanceComparison",
    "Coverage",
    "Direction",
    "Entry",
    "Flow",
    "Item",
    "ItemState",
    "Run",
    "StatementSource",
    "assign",
    "compare_balances",
    "coverages",
    "describe",
    "explain",
    "is_due",
    "item_of",
    "last_runs",
    "reconcile",
    "register",
    "suspense_account",
    "suspense_totals",
    "unmatched",
    "write_off",
]
