"""Comparison of our ledger with the vendor's balance: the mirror account, its share in suspense, and the vendor's
figure."""

from dataclasses import dataclass

from payonce.engine.ledger.model import Account, Reads
from payonce.engine.ledger.queries import balance
from payonce.engine.reconcile.source import StatementSource, suspense_account
from payonce.kit.money import Amount, Asset


@dataclass(frozen=True)
class BalanceComparison:
    """One asset at one vendor."""

    ours: Amount
    """The balance of the mirror account, including items in suspense, which were posted there against suspense."""
    suspense: Amount
    """The unexplained part of it, with the opposite sign."""
    theirs: Amount | None
    """None where the vendor does not report a balance."""

    @property
    def equal(self) -> bool:
        return self.theirs is None or self.theirs == self.ours


async def compare_balances(read: Reads, source: StatementSource) -> list[BalanceComparison]:
    """By asset. Exact at rest; while handlers are running, their postings may be missing."""
    reported = await source.balance()
    theirs = None if reported is None else {amount.asset: amount for amount in reported}
    rows = await read.fetch(
        "select distinct asset, exponent from payonce.accounts where path = $1 or path = $2 order by 1, 2",
        source.mirror,
        suspense_account(source.vendor),
    )
    assets = dict.fromkeys([Asset(row["asset"], row["exponent"]) for row in rows] + list(theirs or ()))
    return [
        BalanceComparison(
            ours=await balance(read, Account(source.mirror, asset)),
            suspense=await balance(read, Account(suspense_account(source.vendor), asset)),
            theirs=None if theirs is None else theirs.get(asset, Amount.zero(asset)),
        )
        for asset in assets
    ]
