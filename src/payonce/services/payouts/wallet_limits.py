"""What the wallet pays without being asked: which assets, how much at once and in a day. The rest people agree to."""

from typing import Any, Final

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.brakes import Action, Weighed, ask
from payonce.engine.queue import Admin
from payonce.engine.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.services.payouts import store, swap_store
from payonce.services.payouts.model import Hold, Swap
from payonce.services.payouts.requoting import lapse_and_keep
from payonce.services.payouts.sending import resume

DAY_S: Final = 86_400
ASKER: Final = "payouts.hostpay"
ANSWER_WITHIN_S: Final = 7 * 86_400.0
"""A weekend and more. What nobody answers stays held, and is asked anew when somebody lets it go on."""


class WalletLimit(msgspec.Struct, frozen=True):
    asset: Asset
    per_payment: Amount | None
    per_day: Amount | None
    low_balance: Amount


class LargePayment(msgspec.Struct, frozen=True):
    """A payment above a limit, as it was when it was asked for."""

    swap_id: str
    minor: str


async def set_wallet_limit(
    tx: Tx, asset: Asset, by: str, *, per_payment: Amount | None = None, per_day: Amount | None = None,
    low_balance: Amount | None = None,
) -> None:  # fmt: skip
    """Allows an asset within these bounds; None is without bound."""
    for amount in (per_payment, per_day, low_balance):
        if amount is not None and (amount.asset != asset or amount.minor < 0):
            raise Invalid(f"a limit of {asset} is {amount}; it must be 0 or more of that asset")
    await tx.execute(
        """
        insert into payouts.wallet_limits as l
            (asset, exponent, per_payment_minor, per_day_minor, low_balance_minor, set_by)
        values ($1, $2, $3, $4, coalesce($5, 0), $6)
        on conflict (asset, exponent) do update
        set per_payment_minor = excluded.per_payment_minor, per_day_minor = excluded.per_day_minor,
            low_balance_minor = excluded.low_balance_minor, set_by = excluded.set_by, set_at = payonce.due_now()
        """,
        asset.code, asset.exponent, _minor(per_payment), _minor(per_day), _minor(low_balance), by,
    )  # fmt: skip
    text = f"the wallet pays {asset}: {per_payment or 'any amount'} at once, {per_day or 'any amount'} a day"
    await note(tx.connection, "payouts.wallet_limit", asset.code, text, actor=by, severity=Severity.WARNING)


async def limit_of(read: Reader | Tx, asset: Asset) -> WalletLimit | None:
    """None: the wallet does not pay this asset."""
    row = await read.fetchrow(
        "select * from payouts.wallet_limits where asset = $1 and exponent = $2", asset.code, asset.exponent
    )
    if row is None:
        return None
    found = [row[name] for name in ("per_payment_minor", "per_day_minor")]
    bounds = [None if minor is None else Amount(int(minor), asset) for minor in found]
    return WalletLimit(asset, bounds[0], bounds[1], Amount(int(row["low_balance_minor"]), asset))


async def exceeded(read: Reader | Tx, swap: Swap) -> str:
    """Which bound a payment of this swap breaks, in words; empty when it may be made."""
    asset = swap.amount.asset
    limit = await limit_of(read, asset)
    if limit is None:
        return f"the wallet pays no {asset}: it is not among the allowed assets"
    if await _is_cleared(read, swap):
        return ""
    if limit.per_payment is not None and swap.amount > limit.per_payment:
        return f"{swap.amount} is above the {limit.per_payment} that the wallet pays at once"
    if limit.per_day is None:
        return ""
    paid = await _paid_within_a_day(read, asset, swap.id)
    if paid + swap.amount > limit.per_day:
        return f"{swap.amount} on top of {paid} is above the {limit.per_day} that the wallet pays in a day"
    return ""


async def ask_for(tx: Tx, swap: Swap, why: str) -> None:
    """Keeps the payouts of a swap, and asks people whether it may be paid. The exchange waits for nobody, so it is let
    go: if they agree, another one is made."""
    await lapse_and_keep(tx, swap, Hold.LIMIT, why)
    if await limit_of(tx, swap.amount.asset) is not None:
        asked = LargePayment(swap.id, swap.amount.to_minor_text())
        await ask(tx, _ACTION, asked, ASKER, why, lifetime_s=ANSWER_WITHIN_S)


def clearing(_: Admin) -> Action[LargePayment]:
    """What a second person agrees to, registered beside the engine's own actions."""
    return _ACTION


async def _weigh(tx: Tx, asked: LargePayment) -> Weighed:
    swap = await _asked_for(tx, asked)
    text = f"let the wallet pay {swap.amount} for {swap.unique_id}, part {swap.part}"
    return Weighed(asked.swap_id, text, [swap.amount], because="it is above a limit of the wallet")


async def _execute(tx: Tx, asked: LargePayment, by: str) -> dict[str, Any]:
    swap = await _asked_for(tx, asked)
    waiting = [payout for payout in await swap_store.payouts_of(tx, swap.id) if payout.hold is Hold.LIMIT]
    if not waiting:
        raise Stale(f"no payout of swap {swap.id} waits for this any more")
    await tx.execute(
        """
        insert into payouts.wallet_clearances (unique_id, part, amount_minor, cleared_by) values ($1, $2, $3, $4)
        on conflict do nothing
        """,
        swap.unique_id, swap.part, swap.amount.minor, by,
    )  # fmt: skip
    for payout in waiting:
        assert payout.held_from is not None
        await resume(tx, await store.move(tx, payout, payout.held_from))
    return {"swap": swap.id, "amount": str(swap.amount)}


async def _asked_for(tx: Tx, asked: LargePayment) -> Swap:
    try:
        swap = await swap_store.locked_swap(tx, asked.swap_id)
    except Retry as error:
        raise Invalid(str(error)) from error
    if swap.amount.to_minor_text() != asked.minor:
        raise Stale(f"swap {swap.id} moves {swap.amount} by now; look again")
    return swap


_ACTION: Final = Action("pay above limit", LargePayment, _weigh, _execute)


async def _is_cleared(read: Reader | Tx, swap: Swap) -> bool:
    """Of the same part and no more than was agreed to: an exchange that had to be replaced is not asked about anew."""
    cleared: bool = await read.fetchval(
        """
        select exists (select from payouts.wallet_clearances
            where unique_id = $1 and part = $2 and amount_minor >= $3)
        """,
        swap.unique_id, swap.part, swap.amount.minor,
    )  # fmt: skip
    return cleared


async def _paid_within_a_day(read: Reader | Tx, asset: Asset, besides: str) -> Amount:
    minor = await read.fetchval(
        """
        select coalesce(sum(amount_minor), 0) from payouts.wallet_payments
        where asset = $1 and exponent = $2 and created_at > payonce.due_now() - make_interval(secs => $3)
          and state in ('signed', 'final') and swap_id <> $4
        """,
        asset.code, asset.exponent, float(DAY_S), besides,
    )  # fmt: skip
    return Amount(int(minor), asset)


def _minor(amount: Amount | None) -> int | None:
    return None if amount is None else amount.minor
