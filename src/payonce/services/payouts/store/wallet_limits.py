"""The wallet's limits: allowed assets, amounts per payment and per day. Larger payments need an approval."""

from typing import Any, Final

import msgspec

from payonce.engine.audit import Severity
from payonce.engine.controls import Action, Assessment, Link, submit, withdraw
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.services.payouts.domain.addresses import key_of
from payonce.services.payouts.handlers.next_messages import resume
from payonce.services.payouts.handlers.swap_replacement import lapse_and_hold
from payonce.services.payouts.model import Hold, Payout, Swap
from payonce.services.payouts.store import payouts, swaps

ACTION: Final = "pay above limit"
DAY_S: Final = 86_400
REQUESTER: Final = "payouts.hostpay"
ANSWER_WITHIN_S: Final = 7 * 86_400.0
"""Covers a weekend. Without an answer the payout stays held; releasing it requests the approval again."""


class WalletLimit(msgspec.Struct, frozen=True):
    asset: Asset
    per_payment: Amount | None
    per_day: Amount | None
    low_balance: Amount


class LargePayment(msgspec.Struct, frozen=True):
    """A payment above a limit, as it was when its approval was requested."""

    swap_id: str
    minor: str
    """In minor units, with all the parts into which it is split."""
    address: str = ""
    """The client's address. Requests of earlier versions have none and are refused."""
    extra_id: str | None = None


async def set_wallet_limit(
    tx: Tx,
    asset: Asset,
    by: str,
    *,
    per_payment: Amount | None = None,
    per_day: Amount | None = None,
    low_balance: Amount | None = None,
) -> None:
    """Allows an asset within these limits; None is unlimited."""
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
        asset.code,
        asset.exponent,
        _minor(per_payment),
        _minor(per_day),
        _minor(low_balance),
        by,
    )
    text = f"the wallet pays {asset}: {per_payment or 'any amount'} per payment, {per_day or 'any amount'} per day"
    await tx.audit("payouts.wallet_limit", asset.code, text, actor=by, severity=Severity.WARNING)


async def limit_of(read: Reader | Tx, asset: Asset) -> WalletLimit | None:
    """None if the wallet does not pay this asset."""
    row = await read.fetchrow(
        "select * from payouts.wallet_limits where asset = $1 and exponent = $2", asset.code, asset.exponent
    )
    return None if row is None else _limit(row, asset)


async def exceeded(read: Reader | Tx, swap: Swap) -> str:
    """The limit that a payment of this swap exceeds, in words; empty if it may be made."""
    asset = swap.amount.asset
    row = await read.fetchrow(
        # One query, since it also runs while the wallet's row is locked. `cleared`: an approval for the same address
        # and at least this amount, which also covers replaced exchanges. `paid_minor` needs a daily limit.
        f"""
        select l.*, whole.minor as whole_minor, exists (select from payouts.wallet_clearances c
                where c.unique_id = $3 and payouts.address_key(c.address) = payouts.address_key($4)
                  and c.extra_id is not distinct from $5
                  and c.void_at is null and c.amount_minor >= whole.minor) as cleared,
            case when l.per_day_minor is not null then (
                select coalesce(sum(p.amount_minor), 0) from payouts.wallet_payments p
                where p.asset = $1 and p.exponent = $2 and p.state in ('signed', 'final') and p.swap_id <> $6
                  and p.created_at > payonce.due_now() - make_interval(secs => $7)) end as paid_minor
        from payouts.wallet_limits l cross join ({_WHOLE.format(swap="$6")}) whole
        where l.asset = $1 and l.exponent = $2
        """,
        asset.code,
        asset.exponent,
        swap.unique_id,
        swap.address,
        swap.extra_id,
        swap.id,
        float(DAY_S),
    )
    if row is None:
        return f"the wallet does not pay {asset}: it is not an allowed asset"
    limit, whole = _limit(row, asset), Amount(int(row["whole_minor"]), asset)
    if row["cleared"]:
        return ""
    if limit.per_payment is not None and whole > limit.per_payment:
        return f"{whole} is above the wallet's limit of {limit.per_payment} per payment"
    if limit.per_day is None:
        return ""
    paid = Amount(int(row["paid_minor"]), asset)
    if paid + swap.amount > limit.per_day:
        return f"{swap.amount} on top of {paid} is above the wallet's limit of {limit.per_day} per day"
    return ""


async def request_approval(tx: Tx, swap: Swap, why: str) -> None:
    """Holds the payouts of a swap and requests an approval of its payment. The exchange would expire meanwhile, so it
    is abandoned; after the approval another one is created. Of one payment only the newest request is open."""
    # Before any payout is locked: granting locks the approval first.
    await withdraw(tx, ACTION, await _subjects(tx, swap), REQUESTER, "the approval of this payment is requested again")
    await lapse_and_hold(tx, swap, Hold.LIMIT, why)
    if await limit_of(tx, swap.amount.asset) is not None:
        asked = LargePayment(swap.id, (await _whole(tx, swap)).to_minor_text(), swap.address, swap.extra_id)
        await submit(tx, _ACTION, asked, await _requester(tx, swap), why, lifetime_s=ANSWER_WITHIN_S)


async def void_clearances(tx: Tx, payout: Payout) -> None:
    """Voids the approvals of a payout that gets another address."""
    await tx.execute(
        "update payouts.wallet_clearances set void_at = payonce.due_now() where unique_id = $1 and void_at is null",
        payout.unique_id,
    )


def clearance_action(_: Admin) -> Action[LargePayment]:
    """The action of paying above a limit, registered beside the engine's own actions."""
    return _ACTION


async def _assess(tx: Tx, asked: LargePayment) -> Assessment:
    swap, whole = await _requested_payment(tx, asked)
    memo = "" if swap.extra_id is None else f" with the memo {swap.extra_id}"
    where = f"{swap.address}{memo} ({swap.currency} on {swap.network})"
    text = f"let the wallet pay {whole} for {swap.unique_id} to {where}"
    return Assessment(swap.unique_id, text, [whole], because="it is above a limit of the wallet")


async def _execute(tx: Tx, asked: LargePayment, by: str) -> dict[str, Any]:
    swap, whole = await _requested_payment(tx, asked)
    waiting = [payout for payout in await swaps.payouts_of(tx, swap.id) if payout.hold is Hold.LIMIT]
    if not waiting:
        raise Stale(f"no payout of swap {swap.id} waits for this approval any more")
    agreed = key_of(asked.address), asked.extra_id
    waiting = [each for each in waiting if (key_of(each.wallet_address), each.extra_id) == agreed]
    if not waiting:
        raise Stale(
            f"the approval is for a payment to {asked.address or 'no address'}, but the payout now has another address "
            "or memo; release it to request another approval"
        )
    await tx.execute(
        """
        insert into payouts.wallet_clearances (unique_id, amount_minor, address, extra_id, cleared_by)
        values ($1, $2, $3, $4, $5) on conflict do nothing
        """,
        swap.unique_id,
        whole.minor,
        asked.address,
        asked.extra_id,
        by,
    )
    for payout in waiting:
        assert payout.held_from is not None
        await resume(tx, await payouts.move(tx, payout, payout.held_from))
    return {"swap": swap.id, "amount": str(whole), "address": asked.address}


async def _requested_payment(tx: Tx, asked: LargePayment) -> tuple[Swap, Amount]:
    try:
        swap = await swaps.swap(tx, asked.swap_id)
    except Retry as error:
        raise Invalid(str(error)) from error
    whole = await _whole(tx, swap)
    if whole.to_minor_text() != asked.minor:
        raise Stale(f"swap {swap.id} now belongs to a payment of {whole}; reload it")
    return swap, whole


_WHOLE: Final = """
    select greatest(carried.amount_minor, (
        select max(total) from (
            select sum(p.amount_minor) as total from payouts.parts p
            where p.payout_id in (select payout_id from payouts.shares where swap_id = {swap}) group by p.payout_id) t
        )) as minor
    from payouts.swaps carried where carried.id = {swap}"""
"""The whole payment of a swap: all parts of its payout, or its batch. Limits on single parts could be bypassed by
splitting."""


async def _whole(tx: Tx, swap: Swap) -> Amount:
    return Amount(int(await tx.fetchval(_WHOLE.format(swap="$1"), swap.id)), swap.amount.asset)


async def _subjects(tx: Tx, swap: Swap) -> list[str]:
    """Subjects of approvals of this payment: its leading payout or, in earlier versions, one of its swaps."""
    rows = await tx.fetch("select id from payouts.swaps where unique_id = $1", swap.unique_id)
    return [swap.unique_id, *(row["id"] for row in rows)]


async def _requester(tx: Tx, swap: Swap) -> str:
    """The person who requested the payment and therefore cannot approve it: the one who entered the address, otherwise
    the one who released the payout."""
    found: str | None = await tx.fetchval(
        """
        select coalesce(p.addressed_by, p.released_by) from payouts.payouts p
        where p.id in (select payout_id from payouts.shares where swap_id = $1)
          and coalesce(p.addressed_by, p.released_by) is not null
        order by p.addressed_by is null, p.unique_id <> $2, p.id limit 1
        """,
        swap.id,
        swap.unique_id,
    )
    return found or REQUESTER


def _page(subject: str) -> Link:
    """In earlier versions the subject was a swap, whose id begins with the payout's unique_id."""
    return Link("The payout", f"/payouts/{subject.partition('/')[0]}")


_ACTION: Final = Action(ACTION, LargePayment, _assess, _execute, _page)


def _limit(row: Any, asset: Asset) -> WalletLimit:
    found = [row[name] for name in ("per_payment_minor", "per_day_minor")]
    bounds = [None if minor is None else Amount(int(minor), asset) for minor in found]
    return WalletLimit(asset, bounds[0], bounds[1], Amount(int(row["low_balance_minor"]), asset))


def _minor(amount: Amount | None) -> int | None:
    return None if amount is None else amount.minor
