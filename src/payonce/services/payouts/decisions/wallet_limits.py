"""Changes of the wallet's limits: lowering takes effect at once, raising needs a second person."""

from typing import Any, Final

import msgspec

from payonce.engine.controls import Action, Assessment, Link
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.payouts.model import ETH
from payonce.services.payouts.store.wallet_limits import WalletLimit, limit_of, set_wallet_limit

ACTION: Final = "change wallet limit"


class Bounds(msgspec.Struct, frozen=True):
    """In wei; None is unlimited."""

    per_payment: str | None
    per_day: str | None
    low_balance: str


class LimitChange(msgspec.Struct, frozen=True):
    """The wallet's limits at the time of the request, and the requested ones."""

    was: Bounds
    to: Bounds


def limit_action(_: Admin) -> Action[LimitChange]:
    return Action(ACTION, LimitChange, _assess, _execute, lambda _: Link("The wallet", "/vendors"))


async def limit_change(
    read: Reader | Tx, per_payment: Amount | None, per_day: Amount | None, low_balance: Amount
) -> LimitChange:
    """The change from the present limits to these; raises Invalid for a bad amount."""
    for amount in (per_payment, per_day, low_balance):
        if amount is not None and (amount.asset != ETH or amount.minor < 0):
            raise Invalid(f"a limit of the wallet is {amount}; it must be 0 ETH or more")
    return LimitChange(
        _bounds(await _limit(read)), Bounds(_minor(per_payment), _minor(per_day), str(low_balance.minor))
    )


async def _assess(_: Tx, asked: LimitChange) -> Assessment:
    """Raising a limit needs a second person: otherwise one person could pay any amount."""
    looser = [name for name in ("per_payment", "per_day") if _looser(getattr(asked.was, name), getattr(asked.to, name))]
    because = "it raises the amount that the wallet pays without approval" if looser else ""
    return Assessment(
        ETH.code, f"let the wallet pay {_described(asked.to)} instead of {_described(asked.was)}", because=because
    )


async def _execute(tx: Tx, asked: LimitChange, by: str) -> dict[str, Any]:
    await tx.execute(
        "select from payouts.wallet_limits where asset = $1 and exponent = $2 for update", ETH.code, ETH.exponent
    )
    now = _bounds(await _limit(tx))
    if now != asked.was:
        raise Stale(f"the wallet's limits were {_described(asked.was)} and are {_described(now)} by now; look again")
    await set_wallet_limit(
        tx,
        ETH,
        by,
        per_payment=_amount(asked.to.per_payment),
        per_day=_amount(asked.to.per_day),
        low_balance=_amount(asked.to.low_balance),
    )
    return {"limits": _described(asked.to)}


async def _limit(read: Reader | Tx) -> WalletLimit:
    found = await limit_of(read, ETH)
    if found is None:
        raise Invalid(f"the wallet does not pay {ETH}: it is not an allowed asset")
    return found


def _bounds(limit: WalletLimit) -> Bounds:
    return Bounds(_minor(limit.per_payment), _minor(limit.per_day), str(limit.low_balance.minor))


def _looser(was: str | None, to: str | None) -> bool:
    return was is not None and (to is None or int(to) > int(was))


def _minor(amount: Amount | None) -> str | None:
    return None if amount is None else amount.to_minor_text()


def _amount(minor: str | None) -> Amount | None:
    return None if minor is None else Amount.from_minor(minor, ETH)


def _described(bounds: Bounds) -> str:
    once, day = (_amount(each) or "any amount" for each in (bounds.per_payment, bounds.per_day))
    return f"{once} per payment and {day} per day"
