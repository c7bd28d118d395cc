"""Another swap in place of one that came to nothing: it was never paid, or what was paid has come back."""

from typing import Final

from payonce.engine.transaction import Tx
from payonce.services.payouts import store, swap_store
from payonce.services.payouts.model import Hold, Payout, State, Swap
from payonce.services.payouts.sending import send_swap

ROUNDS_MAX: Final = 5
"""A part that came to nothing so often goes before a person: each round costs gas, and perhaps the exchange's fees."""


async def lapse_and_swap_anew(tx: Tx, swap: Swap, reason: str) -> None:
    """The exchange takes no deposit any more, and none was made."""
    await swap_store.lapse(tx, swap, reason)
    await swap_anew(tx, swap, reason)


async def swap_anew(tx: Tx, swap: Swap, reason: str) -> None:
    """The next round for the same shares, at today's price of the exchange. The old one no longer counts."""
    carried = await swap_store.payouts_of(tx, swap.id)
    if swap.round >= ROUNDS_MAX:
        for payout in carried:
            why = f"{reason}; that was round {swap.round} of {ROUNDS_MAX}"
            await store.keep(tx, payout, Hold.EXCHANGE_FAILED, why, as_state=State.REVIEW, goes_on=State.PRICED)
        return
    if any(payout.held_from is not None for payout in carried):
        # Whoever lets them go on begins the next round with it: see `sending.resume`.
        for payout in carried:
            await _go_on_from_priced(tx, payout, reason)
        return
    shares = [(share.payout_id, share.part, share.amount) for share in await swap_store.shares_of(tx, swap.id)]
    [lead] = [payout for payout in carried if payout.unique_id == swap.unique_id]
    begun = await swap_store.begin_swap(tx, lead, swap.part, shares)
    for payout in carried:
        if payout.state is not State.PRICED:
            await store.move(tx, payout, State.PRICED)
    await send_swap(tx, lead, begun)


async def _go_on_from_priced(tx: Tx, payout: Payout, reason: str) -> None:
    hold = payout.hold or Hold.PERSON
    await store.keep(tx, payout, hold, payout.reason or reason, as_state=payout.state
                     if payout.held_from is not None else State.HELD, goes_on=State.PRICED)  # fmt: skip
