"""What comes back of a deposit: each transaction is counted once, and only a whole deposit makes room for another."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.payouts import ledger
from payonce.services.payouts.handlers.wallet import FEE_CAP_WEI
from payonce.services.payouts.model import ETH, Swap, SwapState
from payonce.services.payouts.store import swaps
from payonce.vendors.evm.port import Incoming

TRANSFER_GAS: Final = 21_000
REFUND_FEE_MAX: Final = Amount(TRANSFER_GAS * FEE_CAP_WEI, ETH)
"""What sending a refund may cost: a plain transfer at the highest price of gas that we pay ourselves, 0.0105 ETH."""
REFUND_FEE_SHARE: Final = 10
"""And never more than a tenth of the deposit: of a small one the bound above would be most of it."""


@dataclass(frozen=True)
class CountedRefund:
    """A deposit after a transaction that was said to bring it back."""

    swap: Swap
    missing: Amount
    """What has not come back of the deposit."""
    doubt: str
    """Why it is not simply back, in words; empty when it is."""


def tolerated_shortfall(swap: Swap) -> Amount:
    """How much of a deposit may be missing when it counts as sent back."""
    return min(REFUND_FEE_MAX, Amount(swap.amount.minor // REFUND_FEE_SHARE, ETH))


async def refunded_amount(read: Reader | Tx, swap_id: str) -> Amount:
    """What has come back of a deposit so far."""
    minor = await read.fetchval(
        "select coalesce(sum(counted_minor), 0) from payouts.refunds where swap_id = $1", swap_id
    )
    return Amount(int(minor), ETH)


async def refund_objection(read: Reader, swap: Swap, incoming: Incoming) -> str:
    """Why a transaction cannot have brought the deposit back, whatever people say; empty when it can. What reached the
    wallet before the deposit was made, or from a wallet of ours, is other money."""
    paid_in_block = await read.fetchval(
        "select block_number from payouts.split_payout_hostpay where unique_id = $1 and cn_api_id = $2",
        swap.unique_id,
        swap.cn_api_id,
    )
    named = f"transaction {incoming.hash} from {incoming.sender}"
    if paid_in_block is None or incoming.block_number <= paid_in_block:
        return (
            f"{named} is in block {incoming.block_number}, and {swap.id} was paid in block {paid_in_block}: what came "
            "no later is not its deposit"
        )
    if await read.fetchval("select exists (select from payouts.wallets where lower(address) = $1)", incoming.sender):
        return f"{named} is of a wallet of ours: nothing of {swap.id} came back by it"
    return ""


async def count_refund(tx: Tx, swap_id: str, incoming: Incoming) -> CountedRefund:
    """Writes what a final transaction brought, if nobody has yet. The payouts and the swap stay locked."""
    await swaps.payouts_of(tx, swap_id)
    swap = await swaps.locked_swap(tx, swap_id)
    if swap.state is not SwapState.PAID_IN:
        raise Retry(f"swap {swap.id} is {swap.state} by now")
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
    """The deposit no longer counts; what is missing of it is lost."""
    if missing:
        await tx.post(ledger.not_sent_back(swap, missing))
    await swaps.advance(tx, swap, SwapState.RETURNED, reason=reason)


async def _insert_refund(tx: Tx, swap: Swap, transaction_hash: str, amount: Amount, counted: Amount) -> str | None:
    """None when it is counted now, else the swap that it was counted for before."""
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
        return f"{named} was counted for swap {owner} already; of {swap.id} {missing} is missing"
    if missing > tolerated_shortfall(swap):
        return f"{named} brought {amount}; of the {swap.amount} paid for {swap.id} {missing} is missing"
    if owner is None and amount > counted:
        return f"{named} brought {amount}, more than was missing of the {swap.amount} paid for {swap.id}"
    return ""
