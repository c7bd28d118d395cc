"""Replacement of failed swaps: those that were never paid, and those whose money came back."""

from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.kit.money import Amount
from payonce.services.payouts.handlers.next_messages import send_swap
from payonce.services.payouts.model import Hold, Payout, State, Swap
from payonce.services.payouts.store import payouts, swaps

ROUNDS_MAX: Final = 5
"""After this many failed rounds a part goes to review: each round costs gas, and perhaps the exchange's fees."""


async def lapse_and_replace(tx: Tx, swap: Swap, reason: str) -> None:
    """Replaces a swap whose exchange accepts no deposit any more and got none."""
    await swaps.lapse(tx, swap, reason)
    await replace_swap(tx, swap, reason)


async def lapse_and_hold(tx: Tx, swap: Swap, hold: Hold, reason: str, as_state: State = State.HELD) -> None:
    """Holds the payouts of an unpaid swap, which lapses: releasing them creates another exchange. Meanwhile they can be
    refunded or rejected."""
    await swaps.lapse(tx, swap, reason)
    await hold_priced(tx, swap, hold, reason, as_state)


async def hold_priced(tx: Tx, swap: Swap, hold: Hold, reason: str, as_state: State) -> None:
    """Holds the payouts of a swap that no longer counts; released, they continue with the next round."""
    for payout in await swaps.payouts_of(tx, swap.id):
        await payouts.hold_payout(tx, payout, hold, reason, as_state=as_state, goes_on=State.PRICED)


async def replace_swap(tx: Tx, swap: Swap, reason: str) -> None:
    """Begins the next round for the same shares, at the exchange's present rate."""
    if swap.round >= ROUNDS_MAX:
        why = f"{reason}; that was round {swap.round} of {ROUNDS_MAX}"
        await hold_priced(tx, swap, Hold.EXCHANGE_FAILED, why, State.REVIEW)
        return
    carried = {payout.id: payout for payout in await swaps.payouts_of(tx, swap.id)}
    kept = [payout for payout in carried.values() if payout.held_from is not None]
    for payout in kept:
        assert payout.hold is not None
        await payouts.hold_payout(
            tx, payout, payout.hold, payout.reason or reason, as_state=payout.state, goes_on=State.PRICED
        )
    shares = [
        (share.payout_id, share.part, share.amount)
        for share in await swaps.shares_of(tx, swap.id)
        if carried[share.payout_id].held_from is None
    ]
    if not kept:
        [lead] = [payout for payout in carried.values() if payout.unique_id == swap.unique_id]
        await _begin(tx, lead, swap.part, shares, list(carried.values()))
        return
    # One of the payouts is held: the others continue with swaps of their own.
    for payout_id, part, amount in shares:
        await _begin(tx, carried[payout_id], part, [(payout_id, part, amount)], [carried[payout_id]])


async def _begin(tx: Tx, lead: Payout, part: int, shares: list[tuple[str, int, Amount]], carried: list[Payout]) -> None:
    begun = await swaps.begin_swap(tx, lead, part, shares)
    for payout in carried:
        if payout.state is not State.PRICED:
            await payouts.move(tx, payout, State.PRICED)
    await send_swap(tx, lead, begun)
