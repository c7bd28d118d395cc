"""Refunds of deposits: each transaction is counted once, and only a complete refund allows another payment."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.payouts import ledger
from payonce.services.payouts.handlers.wallet import FEE_CAP_WEI
from payonce.services.payouts.model import ETH, Swap, SwapState
from payonce.services.payouts.store import swaps
from payonce.vendors.evm.port import IncomingTransfer

TRANSFER_GAS: Final = 21_000
REFUND_FEE_MAX: Final = Amount(TRANSFER_GAS * FEE_CAP_WEI, ETH)
"""Maximum fee of a refund: a plain transfer at the highest gas price that we would pay ourselves, 0.0105 ETH."""
REFUND_FEE_SHARE: Final = 10
"""The fee may also not exceed a tenth of the deposit; of a small deposit, the bound above could be most of it."""


@dataclass(frozen=True)
class CountedRefund:
    """A deposit after one refunding transaction."""

    swap: Swap
    missing: Amount
    """The amount that has not come back."""
    doubt: str
    """Why the refund needs a review, in words; empty if it is complete."""


def tolerated_shortfall(swap: Swap) -> Amount:
    """The amount that may be missing from a refund that counts as complete."""
    return min(REFUND_FEE_MAX, Amount(swap.amount.minor // REFUND_FEE_SHARE, ETH))


async def refunded_amount(read: Reader | Tx, swap_id: str) -> Amount:
    """The amount refunded so far."""
    minor = await read.fetchval(
        "select coalesce(sum(counted_minor), 0) from payouts.refunds where swap_id = $1", swap_id
    )
    return Amount(int(minor), ETH)


async def refund_objection(read: Reader, swap: Swap, incoming: IncomingTransfer) -> str:
    """Why a transaction cannot be the refund of the deposit; empty if it can. Money that arrived before the deposit was
    paid, or from a wallet of ours, is not a refund."""
    paid_in_block = await read.fetchval(
        "select block_number from payouts.split_payout_hostpay where unique_id = $1 and cn_api_id = $2",
        swap.unique_id,
        swap.cn_api_id,
    )
    named = f"transaction {incoming.hash} from {incoming.sender}"
    if paid_in_block is None or incoming.block_number <= paid_in_block:
        return (
            f"{named} is in block {incoming.block_number}, but {swap.id} was paid in block {paid_in_block}: an earlier "
            "transaction cannot return its deposit"
        )
    if await read.fetchval("select exists (select from payouts.wallets where lower(address) = $1)", incoming.sender):
        return f"{named} is from a wallet of ours: it did not return the deposit of {swap.id}"
    return ""


async def count_refund(tx: Tx, swap_id: str, incoming: IncomingTransfer) -> CountedRefund:
    """Posts a final refunding transaction unless it is counted already. Locks the payouts and the swap."""
    await swaps.payouts_of(tx, swap_id)
    swap = await swaps.locked_swap(tx, swap_id)
    if swap.state is not SwapState.PAID_IN:
        raise Retry(f"swap {swap.id} is now {swap.state}")
    missing = swap.amount - await refunded_amount(tx, swap.id)
    transaction_hash, amount = incoming.hash.lower(), incoming.amount
    named = f"transaction {transaction_hash} from {incoming.sender}"
    counted = min(amount, missing)
    owner = await _insert_refund(tx, swap, transaction_hash, amount, counted)
    if owner is None:
        await tx.post(ledger.sent_back(swap, transaction_hash, counted, amount - counted))
        missing -= counted
    return CountedRefund(swap, missing, _doubt(swap, named, amount, missing, owner, counted))


async def close_deposit(tx: Tx, swap: Swap, missing: Amount, reason: str) -> None:
    """Ends the swap; the missing amount is posted as a loss."""
    if missing:
        await tx.post(ledger.not_sent_back(swap, missing))
    await swaps.advance(tx, swap, SwapState.RETURNED, reason=reason)


async def _insert_refund(tx: Tx, swap: Swap, transaction_hash: str, amount: Amount, counted: Amount) -> str | None:
    """None if the transaction is new, otherwise the swap for which it was counted before."""
    new = await tx.fetchval(
        """
        insert into payouts.refunds (hash, swap_id, amount_minor, counted_minor) values ($1, $2, $3, $4)
        on conflict (hash) do nothing returning true
        """,
        transaction_hash,
        swap.id,
        amount.minor,
        counted.minor,
    )
    if new:
        return None
    owner: str = await tx.fetchval("select swap_id from payouts.refunds where hash = $1", transaction_hash)
    return owner


def _doubt(swap: Swap, named: str, amount: Amount, missing: Amount, owner: str | None, counted: Amount) -> str:
    if owner is not None and owner != swap.id:
        return f"{named} is already counted for swap {owner}; {missing} of {swap.id} is missing"
    if missing > tolerated_shortfall(swap):
        return f"{named} returned {amount}; {missing} of the {swap.amount} paid for {swap.id} is missing"
    if owner is None and amount > counted:
        return f"{named} returned {amount}, more than was missing of the {swap.amount} paid for {swap.id}"
    return ""
