"""Balance snapshots, so that a busy account's balance is never the sum of its whole history."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.database.connections import Database
from payonce.kit.outcomes import Invalid

LINES_WORTHWHILE: Final = 1_000
"""Fewer new lines are summed in under a millisecond when a balance is read; snapshots are kept for ever."""
BATCH_ACCOUNTS: Final = 500


@dataclass(frozen=True, slots=True)
class Batch:
    made: int
    last_account: int | None
    """None after the last account."""


async def snapshot_balances(
    database: Database, *, lines_wanted: int = LINES_WORTHWHILE, batch_accounts: int = BATCH_ACCOUNTS
) -> int:
    """Goes over all accounts once, one transaction per batch; returns the number of snapshots.

    A snapshot covers transactions that had all ended: a line of a running transaction is above it, whatever its id.
    Snapshots taken by two processes at once are both correct.
    """
    made, last_account = 0, 0
    while True:
        batch = await snapshot_batch(database, last_account, lines_wanted, batch_accounts)
        if batch.last_account is None:
            return made
        made, last_account = made + batch.made, batch.last_account


async def snapshot_batch(database: Database, after_account: int, lines_wanted: int, batch_accounts: int) -> Batch:
    """The next accounts after the given one, in the order of their ids."""
    if lines_wanted < 1 or batch_accounts < 1:
        raise Invalid(f"lines_wanted is {lines_wanted} and batch_accounts {batch_accounts}; both are at least 1")
    batch = await database.engine.fetchrow(
        "select last_account, made from payonce.snapshot_accounts($1, $2, $3)",
        after_account,
        batch_accounts,
        lines_wanted,
    )
    assert batch is not None
    return Batch(batch["made"], batch["last_account"])
