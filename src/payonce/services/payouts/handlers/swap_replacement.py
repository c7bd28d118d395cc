"""A swap that came to nothing, because it was never paid or because the money is back: what becomes of its payouts."""

from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.kit.money import Amount
from payonce.services.payouts.handlers.next_messages import send_swap
from payonce.services.payouts.model import Hold, Payout, State, Swap
from payonce.services.payouts.store import payouts, swaps

ROUNDS_MAX: Final = 5
"""A part that came to nothing so often goes before a person: each round costs gas, and perhaps the exchange's fees."""


async def lapse_and_replace(tx: Tx, swap: Swap, reason: str) -> None:
    """The exchange takes no deposit any more, and none was made."""
    await swaps.lapse(tx, swap, reason)
    await replace_swap(tx, swap, reason)


async def lapse_and_hold(tx: Tx, swap: Swap, hold: Hold, reason: str, as_state: State = State.HELD) -> None:
    """It is not paid as things stand. Whoever lets the payouts go on has another exchange created for them, so that
    they may as well be given back or rejected meanwhile."""
    await swaps.lapse(tx, swap, reason)
    await hold_priced(tx, swap, hold, reason, as_state)


async def hold_priced(tx: Tx, swap: Swap, hold: Hold, reason: str, as_state: State) -> None:
    """To a person, and from there on to the next round: the swap no longer counts."""
    for payout in await swaps.payouts_of(tx, swap.id):
        await payouts.hold_payout(tx, payout, hold, reason, as_state=as_state, goes_on=State.PRICED)


async def replace_swap(tx: Tx, swap: Swap, reason: str) -> None:
    """The next round for the same shares, at today's price of the exchange. The old one no longer counts."""
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
    # A person has one of those that shared it: the others go on alone.
    for payout_id, part, amount in shares:
        await _begin(tx, carried[payout_id], part, [(payout_id, part, amount)], [carried[payout_id]])


async def _begin(tx: Tx, lead: Payout, part: int, shares: list[tuple[str, int, Amount]], carried: list[Payout]) -> None:
    begun = await swaps.begin_swap(tx, lead, part, shares)
    for payout in carried:
        if payout.state is not State.PRICED:
            await payouts.move(tx, payout, State.PRICED)
    await send_swap(tx, lead, begun)
