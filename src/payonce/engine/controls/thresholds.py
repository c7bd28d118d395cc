"""Thresholds: the amount of an asset above which a second person must approve. Without one, nobody else is needed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid


@dataclass(frozen=True)
class Threshold:
    above: Amount
    set_by: str
    set_at: datetime


async def set_threshold(tx: Tx, above: Amount, by: str) -> Threshold:
    """Actions above this amount need a second person; an action of exactly this amount does not.

    Operators use the action `change threshold`, which needs a second person to raise or remove a threshold.
    """
    if above.minor < 0:
        raise Invalid(f"the threshold is {above}; it must be 0 or more")
    row = await tx.fetchrow(
        """
        insert into payonce.approval_thresholds as t (asset, exponent, above_minor, set_by) values ($1, $2, $3, $4)
        on conflict (asset, exponent)
        do update set above_minor = excluded.above_minor, set_by = excluded.set_by, set_at = payonce.due_now()
        returning *
        """,
        above.asset.code,
        above.asset.exponent,
        above.minor,
        texts.name(by, "by"),
    )
    await note(
        tx.connection,
        "brakes.threshold",
        above.asset.code,
        f"a second person is needed above {above}",
        actor=by,
        severity=Severity.WARNING,
    )
    return _as_threshold(row)


async def remove_threshold(tx: Tx, asset: Asset, by: str) -> None:
    by = texts.name(by, "by")
    removed = await tx.fetchval(
        "delete from payonce.approval_thresholds where asset = $1 and exponent = $2 returning true",
        asset.code,
        asset.exponent,
    )
    if removed is None:
        raise Invalid(f"{asset} of {asset.exponent} decimals has no threshold; see: payonce approvals threshold")
    await note(
        tx.connection,
        "brakes.threshold",
        asset.code,
        f"no second person is needed for {asset} any more",
        actor=by,
        severity=Severity.WARNING,
    )


async def locked_threshold(tx: Tx, asset: Asset) -> Amount | None:
    """The threshold of this asset, locked until the transaction ends."""
    # Locks the table because there may be no row yet: of two people who set the first threshold at once, the second
    # would raise it.
    await tx.execute("lock table payonce.approval_thresholds in share row exclusive mode")
    return next((found.above for found in await thresholds(tx) if found.above.asset == asset), None)


async def thresholds(read: Reader | Tx) -> list[Threshold]:
    rows = await read.fetch("select * from payonce.approval_thresholds order by asset, exponent")
    return [_as_threshold(row) for row in rows]


async def above_threshold(read: Reader | Tx, amounts: Iterable[Amount]) -> Amount | None:
    """The first of the amounts that needs a second person."""
    known = {found.above.asset: found.above for found in await thresholds(read)}
    return next((amount for amount in amounts if amount.asset in known and amount > known[amount.asset]), None)


def _as_threshold(row: Any) -> Threshold:
    above = Amount(int(row["above_minor"]), Asset(row["asset"], row["exponent"]))
    return Threshold(above, row["set_by"], row["set_at"])
