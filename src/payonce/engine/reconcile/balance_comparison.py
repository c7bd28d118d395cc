"""Our books against the vendor's: the mirror account, what of it is in suspense, and what the vendor says."""

from dataclasses import dataclass

from payonce.engine.ledger.model import Account, Reads
from payonce.engine.ledger.queries import balance
from payonce.engine.reconcile.source import StatementSource, suspense_account
from payonce.kit.money import Amount, Asset


@dataclass(frozen=True)
class BalanceComparison:
    """One asset at one vendor."""

    ours: Amount
    """The mirror account. What is in suspense is part of it: it was posted there against suspense."""
    suspense: Amount
    """What of it nobody can explain, with the opposite sign."""
    theirs: Amount | None
    """None where the vendor does not say."""

    @property
    def equal(self) -> bool:
        return self.theirs is None or self.theirs == self.ours


async def compare_balances(read: Reads, source: StatementSource) -> list[BalanceComparison]:
    """By asset. Postings that a handler is still to make are missing in it: at rest it is exact."""
    told = await source.balance()
    theirs = None if told is None else {amount.asset: amount for amount in told}
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
