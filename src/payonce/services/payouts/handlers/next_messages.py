"""The messages of every hop, and the message that each state of a payout needs."""

from typing import Any, Final

from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount
from payonce.services.payouts.messages.payloads import FOLLOW_EXCHANGE, HAND_OVER
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import (
    BY_EXTERNAL,
    ETH,
    ETH_NETWORK,
    ETH_TICKER,
    Lead,
    Payout,
    State,
    Swap,
    SwapState,
)
from payonce.services.payouts.policies import ESTIMATE, ESTIMATED, EXTERNAL, FOLLOW, HOSTPAY, SWAP, SWAPPED
from payonce.services.payouts.store import payouts, swaps
from payonce.vendors.changenow.port import Estimate
from payonce.vendors.changenow.port import Swap as Made

FIRST: Final = 0
"""Number of a message's first put, which is part of the flow; later ones come from the janitor or an operator."""


async def send_estimate(tx: Tx, payout: Payout, put: int = FIRST) -> None:
    asked = hops.EstimateRequest(
        user_id=payout.user_id,
        closed_channel_id=payout.closed_channel_id,
        wallet_address=payout.wallet_address,
        payout_currency=payout.payout_currency,
        payout_network=payout.payout_network,
        adjusted_amount_usdt=payout.adjusted.to_decimal(),
    )
    payload = {**hops.plain(asked), "payout_id": payout.id, "put": put}
    key = f"estimate:{payout.id}:{put}"
    await tx.send(ESTIMATE, payload, key=key, correlation_id=payout.id, lane=payout.lane)


async def send_estimated(
    tx: Tx, asked: hops.EstimateRequest, payout: Payout, put: int, found: Estimate, asked_at_s: int
) -> None:
    """`asked_at_s` is not later than the rate, so that the rate never counts as newer than it is."""
    answer = hops.EstimateResponse(
        user_id=asked.user_id,
        closed_channel_id=asked.closed_channel_id,
        wallet_address=asked.wallet_address,
        payout_currency=asked.payout_currency,
        payout_network=asked.payout_network,
        from_amount_usdt=found.from_amount,
        to_amount_eth_post_fee=found.to_amount,
        deposit_fee=found.deposit_fee,
        withdrawal_fee=found.withdrawal_fee,
    )
    payload = {**hops.plain(answer), "payout_id": payout.id, "put": put, "estimated_at": asked_at_s}
    key = f"estimated:{payout.id}:{put}"
    await tx.send(ESTIMATED, payload, key=key, correlation_id=payout.id, lane=payout.lane)


async def send_swap(tx: Tx, lead: Payout, swap: Swap, put: int = FIRST, delay_s: float = 0.0) -> None:
    asked = hops.SwapRequest(
        unique_id=swap.unique_id,
        user_id=lead.user_id,
        closed_channel_id=lead.closed_channel_id,
        wallet_address=swap.address,
        payout_currency=swap.currency,
        payout_network=swap.network,
        eth_amount=swap.amount.to_decimal(),
    )
    payload = {**hops.plain(asked), "payout_id": lead.id, "part": swap.part, "put": put}
    key = f"swap:{swap.id}:{put}"
    await tx.send(SWAP, payload, key=key, correlation_id=lead.id, lane=lead.lane, delay_s=delay_s)


async def send_swapped(tx: Tx, lead: Payout | Lead, swap: Swap, put: int, made: Made, refund_address: str) -> None:
    answer = hops.SwapResponse(
        unique_id=swap.unique_id,
        user_id=lead.user_id,
        closed_channel_id=lead.closed_channel_id,
        cn_api_id=made.id,
        from_currency=made.pair.from_currency,
        to_currency=made.pair.to_currency,
        from_network=made.pair.from_network,
        to_network=made.pair.to_network,
        from_amount=swap.amount.to_decimal(),
        to_amount=made.to_amount,
        payin_address=made.payin_address,
        payout_address=made.payout_address,
        refund_address=made.refund_address or refund_address,
        flow=made.flow,
        type=made.type,
    )
    payload = {**hops.plain(answer), "payout_id": lead.id, "part": swap.part, "put": put}
    key = f"swapped:{swap.id}:{put}"
    await tx.send(SWAPPED, payload, key=key, correlation_id=lead.id, lane=lead.lane)


async def send_hostpay(tx: Tx, lead: Payout | Lead, swap: Swap, put: int = FIRST) -> None:
    if swap.paid_by == BY_EXTERNAL:
        key, handed = f"hand_over:{swap.id}:{put}", {"swap_id": swap.id}
        await tx.send(EXTERNAL, handed, action=HAND_OVER, key=key, correlation_id=lead.id, lane=lead.lane)
        return
    payload = {**hops.plain(hostpay_fields(swap)), "payout_id": lead.id, "part": swap.part, "put": put}
    key = f"hostpay:{swap.id}:{put}"
    await tx.send(HOSTPAY, payload, key=key, correlation_id=lead.id, lane=lead.lane)


def hostpay_fields(swap: Swap) -> hops.HostPay:
    """The fields of hostpay's message about a swap."""
    assert swap.cn_api_id is not None and swap.payin_address is not None
    return hops.HostPay(
        unique_id=swap.unique_id,
        cn_api_id=swap.cn_api_id,
        from_currency=ETH_TICKER,
        from_network=ETH_NETWORK,
        from_amount=swap.amount.to_decimal(),
        payin_address=swap.payin_address,
    )


async def send_follow_up(tx: Tx, lead: Payout, swap: Swap) -> None:
    """Requests another check of a payment; it pays nothing."""
    put = await payouts.next_put(tx, lead.id)
    key = f"follow:{swap.id}:{put}"
    policy, action = _follower(swap)
    await tx.send(policy, {"swap_id": swap.id}, action=action, key=key, correlation_id=lead.id, lane=lead.lane)


def _follower(swap: Swap) -> tuple[Policy, str]:
    return (EXTERNAL, FOLLOW_EXCHANGE) if swap.paid_by == BY_EXTERNAL else (FOLLOW, "")


async def send_returned(tx: Tx, lead: Payout, swap: Swap, transaction_hash: str) -> None:
    """Operators declare that this transaction returned the deposit."""
    await _send_statement(tx, lead, swap, {"returned_by": transaction_hash})


async def send_written_off(tx: Tx, lead: Payout, swap: Swap, by: str) -> None:
    """Operators declare the deposit lost."""
    await _send_statement(tx, lead, swap, {"written_off_by": by})


async def send_unpaid(tx: Tx, lead: Payout, swap: Swap, by: str) -> None:
    """Operators declare that their GCHostPay has not paid the swap and will not."""
    await _send_statement(tx, lead, swap, {"unpaid_by": by})


async def _send_statement(tx: Tx, lead: Payout, swap: Swap, word: dict[str, Any]) -> None:
    since: int = await tx.fetchval("select extract(epoch from payonce.due_now())::bigint")
    policy, action = _follower(swap)
    payload = {"swap_id": swap.id, **word, "since": since}
    await tx.send(policy, payload, action=action, correlation_id=lead.id, lane=lead.lane)


async def resume(tx: Tx, payout: Payout) -> None:
    """Sends the message that the payout's state needs. If an earlier one still exists, whichever runs later changes
    nothing."""
    put = await payouts.next_put(tx, payout.id)
    if payout.state is State.RECEIVED:
        await send_estimate(tx, payout, put)
        return
    for part, amount in await parts_without_swap(tx, payout.id):
        await swaps.begin_swap(tx, payout, part, [(payout.id, part, amount)])
    for swap in await swaps.active_swaps(tx, payout.id):
        lead = await payouts.payout_by_unique_id(tx, swap.unique_id)
        if swap.triggered_at is None:
            await send_swap(tx, lead, swap, put)
        elif swap.state is not SwapState.FINISHED:
            await send_hostpay(tx, lead, swap, put)


async def parts_without_swap(read: Reader | Tx, payout_id: str) -> list[tuple[int, Amount]]:
    rows = await read.fetch(
        """
        select p.part, p.amount_minor from payouts.parts p
        where p.payout_id = $1 and not exists (
            select from payouts.shares h where h.payout_id = p.payout_id and h.part = p.part and h.active)
        order by p.part
        """,
        payout_id,
    )
    return [(row["part"], Amount(int(row["amount_minor"]), ETH)) for row in rows]
