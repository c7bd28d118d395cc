"""The role that keeps the record: prices estimated payouts, queues created swaps, and triggers hostpay."""

from decimal import ROUND_DOWN, Context, Decimal
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import DIGITS_MAX, Amount
from payonce.kit.outcomes import Unprocessable
from payonce.services.payouts import ledger
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import market_value
from payonce.services.payouts.handlers import next_messages, older_services
from payonce.services.payouts.handlers.payloads import fields_of, number_of
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import (
    BY_EXTERNAL,
    BY_WALLET,
    ETH_NETWORK,
    ETH_TICKER,
    FLOW,
    TYPE,
    USDT_TICKER,
    Hold,
    Payout,
    State,
    Swap,
    SwapState,
)
from payonce.services.payouts.policies import ESTIMATED, SWAPPED
from payonce.services.payouts.store import payouts as store
from payonce.services.payouts.store import swap_details, swaps
from payonce.services.payouts.store.swap_details import Part
from payonce.services.payouts.store.write_counts import count_writes

ESTIMATE_MAX_AGE_S: Final = 1_800
"""An older estimate is outdated. A hop takes far less, even through a full queue."""
SHOWN_DECIMALS: Final = Decimal("1e-18")
"""Precision of the displayed amounts; the ledger has the exact ones."""
_EXACT: Final = Context(prec=DIGITS_MAX, rounding=ROUND_DOWN)
"""Amounts of nearly worthless coins have more digits than the default precision of 28."""


@handles(ESTIMATED)
async def value_payout(work: Work, config: PayoutConfig) -> None:
    """Record the pure market value and request the swap. A payout keeps its first price."""
    found = fields_of(work, hops.EstimateResponse)
    payout_id = work.message.correlation_id
    if payout_id is None and (payout_id := await _payout_of_estimate(work, found, config)) is None:
        return
    known = await store.find_now(work.read, payout_id)
    if known is None:
        raise Unprocessable(f"there is no payout {payout_id!r} to price")
    payout, now_s = known
    if payout.state is not State.RECEIVED:
        if older_services.is_from_older_service(work):
            async with work.commit() as tx:
                await older_services.end_requests(tx, work, payout)
        return
    if (age_s := _age_s(work, now_s)) > ESTIMATE_MAX_AGE_S:
        await _estimate_again(work, payout, age_s)
        return
    value = market_value(
        payout.adjusted, found.from_amount_usdt, found.to_amount_eth_post_fee, found.deposit_fee, found.withdrawal_fee
    )
    if value is None:
        reason = f"the exchange's fee of {found.deposit_fee:f} USDT leaves nothing of {payout.adjusted} to pay out"
        async with work.commit(rejected=reason) as tx:
            await store.hold_payout(tx, payout, Hold.NO_VALUE, reason)
            await older_services.end_requests(tx, work, payout)
        return
    with count_writes("split_payout_request"):
        await _price(work, payout, value, config)


async def _payout_of_estimate(work: Work, found: hops.EstimateResponse, config: PayoutConfig) -> str | None:
    """The payout of an estimate without a correlation id; None if the message has been settled."""
    if not older_services.is_from_older_service(work):
        raise Unprocessable("the estimate has no correlation id, so no payout can be found for it")
    payout = await older_services.find_requested_payout(work, found)
    if payout is not None:
        return payout.id
    await older_services.adopt_payout(work, config, found, found.from_amount_usdt)
    return None


def _age_s(work: Work, now_s: int) -> int:
    """Age of the estimate; without a time of its own, that of its token or message counts."""
    put_at = work.message.created_at
    made_at = number_of(work, hops.MADE_AT, now_s if put_at is None else int(put_at.timestamp()))
    return now_s - number_of(work, "estimated_at", made_at)


async def _estimate_again(work: Work, payout: Payout, age_s: int) -> None:
    reason = f"the estimate is {age_s} s old and valid for {ESTIMATE_MAX_AGE_S} s: it is requested again"
    async with work.commit(rejected=reason) as tx:
        current = await store.locked(tx, payout.id)
        if current.state is State.RECEIVED:
            await next_messages.resume(tx, current)


async def _price(work: Work, payout: Payout, value: Amount, config: PayoutConfig) -> None:
    async with work.commit() as tx:
        priced = await store.move(tx, payout, State.PRICED, value=value)
        await tx.post(ledger.priced(payout, value))
        await _insert_request(tx, payout, value, config.host_wallet)
        swap = await swaps.begin_swap(tx, priced, 1, [(payout.id, 1, value)], first=True)
        await next_messages.send_swap(tx, priced, swap)
        await older_services.end_requests(tx, work, payout)


@handles(SWAPPED)
async def record_swap(work: Work, config: PayoutConfig) -> None:
    """Record the exchange; when every part of the payout has one, trigger hostpay for all of them in one commit."""
    made = fields_of(work, hops.SwapResponse)
    swap = await swaps.swap_of_exchange(work.read, made.unique_id, made.cn_api_id)
    if swap is None:
        reason = f"no exchange {made.cn_api_id!r} of {made.unique_id!r} was created here"
        if older_services.is_from_older_service(work):
            older_services.refuse(work, f"{reason}; let the older GCSplit1 finish its payouts")
        raise Unprocessable(reason)
    if swap.state is not SwapState.CREATED or swap.triggered_at is not None:
        return
    with count_writes("split_payout_que"):
        await _record(work, swap, made, BY_EXTERNAL if config.external_hostpay else BY_WALLET)


async def _record(work: Work, swap: Swap, made: hops.SwapResponse, paid_by: str) -> None:
    async with work.commit() as tx:
        payouts = await swaps.payouts_of(tx, swap.id)
        # Under these locks nobody can abandon the swap.
        parts = await swap_details.parts_of(tx, payouts)
        if SwapState.CREATED not in [part.state for part in parts if part.swap_id == swap.id]:
            return
        await _insert_queued_swap(tx, swap, made)
        await trigger_hostpay(tx, payouts, parts, swap, paid_by)


async def trigger_hostpay(tx: Tx, payouts: list[Payout], parts: list[Part], queued: Swap, paid_by: str) -> None:
    """Triggers hostpay for all swaps of these payouts or for none: payouts that are partly created, held or in review
    are not paid. `queued` was recorded in this transaction."""
    carriers = {part.swap.id: part for part in parts if part.swap is not None}
    if any(payout.held_from is not None for payout in payouts) or any(part.swap is None for part in parts):
        return
    if not all(carrier.queued or swap_id == queued.id for swap_id, carrier in carriers.items()):
        return
    for carrier in carriers.values():
        assert carrier.swap is not None and carrier.lead is not None
        if carrier.swap.triggered_at is None:
            triggered = await swaps.trigger(tx, carrier.swap, paid_by)
            await next_messages.send_hostpay(tx, carrier.lead, triggered)
    for payout in payouts:
        await swaps.follow(tx, payout, [part.state for part in parts if part.payout_id == payout.id])


async def _insert_request(tx: Tx, payout: Payout, value: Amount, refund_address: str) -> None:
    await tx.execute(
        """
        insert into payouts.split_payout_request (
            unique_id, user_id, closed_channel_id, from_currency, to_currency, from_network, to_network, from_amount,
            to_amount, client_wallet_address, refund_address, flow, type)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
        """,
        payout.unique_id,
        payout.user_id,
        payout.closed_channel_id,
        USDT_TICKER,
        payout.payout_currency,
        ETH_NETWORK,
        payout.payout_network,
        payout.adjusted.to_decimal(),
        value.to_decimal(),
        payout.wallet_address,
        refund_address,
        FLOW,
        TYPE,
    )


async def _insert_queued_swap(tx: Tx, swap: Swap, made: hops.SwapResponse) -> None:
    """Addresses and the paid amount are those of our record; the client's amount is the exchange's."""
    await tx.execute(
        """
        insert into payouts.split_payout_que (
            unique_id, cn_api_id, user_id, closed_channel_id, from_currency, to_currency, from_network, to_network,
            from_amount, to_amount, payin_address, payout_address, refund_address, flow, type)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
        on conflict (unique_id, cn_api_id) do nothing
        """,
        swap.unique_id,
        swap.cn_api_id,
        made.user_id,
        made.closed_channel_id,
        ETH_TICKER,
        swap.currency,
        ETH_NETWORK,
        swap.network,
        swap.amount.to_decimal(),
        made.to_amount.quantize(SHOWN_DECIMALS, context=_EXACT),
        swap.payin_address,
        swap.address,
        made.refund_address,
        made.flow,
        made.type,
    )
