"""The role that creates exchanges and handles their refusals."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Refused, Retry, Unprocessable
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.effects import CreateSwap, code_of, pair_of
from payonce.services.payouts.handlers import accumulation, next_messages, older_services, refused_key
from payonce.services.payouts.handlers.estimator import TRIES_OF_AN_INACTIVE_PAIR
from payonce.services.payouts.handlers.payloads import fields_of, number_of
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import (
    FLOW,
    PARTS_MAX,
    REPLACED,
    TYPE,
    Hold,
    Payout,
    State,
    Swap,
    SwapState,
)
from payonce.services.payouts.policies import SWAP
from payonce.services.payouts.store import minimums, swap_details, swaps
from payonce.services.payouts.store import payouts as store
from payonce.services.payouts.store.swap_details import SwapDetails
from payonce.vendors.changenow.port import ChangeNow, Code, ExchangeRefused, Range
from payonce.vendors.changenow.port import Swap as Made

TRY_AGAIN_S: Final = 60.0
NOT_DIRECTLY: Final = "ETH needs no exchange, and PAYOUTS_HOSTPAY=external pays only exchanges"


@handles(SWAP)
async def create_swap(work: Work, changenow: ChangeNow, config: PayoutConfig, host: HostWallet | None) -> None:
    """Create an exchange for one part of a payout and report it to the orchestrator."""
    asked, part = fields_of(work, hops.SwapRequest), number_of(work, "part", 1)
    details = await swap_details.details_of_part(work.read, asked.unique_id, part)
    if details is None and older_services.is_from_older_service(work):
        older_services.refuse(
            work, f"no payout has the unique_id {asked.unique_id!r} here; let the older GCSplit3 create its exchange"
        )
    if details is None and not await swap_details.has_part(work.read, asked.unique_id, part):
        raise Unprocessable(f"no payout with the unique_id {asked.unique_id!r} has a part {part}; nothing was ordered")
    if details is None or not _is_pending(details.swap):
        return
    if details.held_payout is not None and await work.open_effect() is None:
        # Releasing the payout sends a new message.
        return
    swap = details.swap
    if swap.direct:
        await _pay_directly(work, details, config, host)
        return
    effect = CreateSwap(changenow, swap, config.host_wallet)
    effect.tenants = details.lanes
    try:
        made = await work.effect(
            effect,
            key=swap.id,
            scope=swap.scope,
            intent=lambda tx: _begin(tx, swap),
        )
    except Refused as refusal:
        await _handle_refusal(work, changenow, swap, refusal)
        return
    async with work.commit() as tx:
        if swap.state is SwapState.CREATING:
            current = await swaps.record_exchange(tx, swap, made)
            tx.log("exchange_created", payout=details.lead.id, swap=swap.id, exchange=made.id, amount=str(swap.amount))
        else:
            current = await swaps.locked_swap(tx, swap.id)
        if current.state is SwapState.CREATED:
            put = number_of(work, "put", next_messages.FIRST)
            await next_messages.send_swapped(tx, details.lead, current, put, made, config.host_wallet)


def _is_pending(swap: Swap) -> bool:
    return swap.triggered_at is None and swap.state in (SwapState.CREATING, SwapState.CREATED)


async def _begin(tx: Tx, swap: Swap) -> Swap:
    """Runs in the commit that records the order; from then on the exchange may exist. Returns the locked swap."""
    for payout in await swaps.payouts_of(tx, swap.id):
        if payout.held_from is not None:
            raise Retry(f"payout {payout.id} has just been held")
        if payout.state is State.PRICED:
            await store.move(tx, payout, State.SWAP_CREATING)
    if (current := await swaps.locked_swap(tx, swap.id)).state in REPLACED:
        raise Retry(f"swap {swap.id} has just become {current.state}", after_s=0.0)
    return current


async def _pay_directly(work: Work, details: SwapDetails, config: PayoutConfig, host: HostWallet | None) -> None:
    """Direct payment: the client gets the coin that the wallet pays, so no exchange is needed."""
    swap = details.swap
    if host is None or config.external_hostpay:
        # Only for a payout accepted while our own wallet paid.
        async with work.commit(rejected=NOT_DIRECTLY) as tx:
            current = await _begin(tx, swap)
            if current.state is SwapState.CREATING:
                payouts = await swaps.payouts_of(tx, swap.id)
                await _hold(tx, current, payouts, Hold.REFUSED, SwapRefusal(Code.OTHER, NOT_DIRECTLY))
        return
    if swap.state is SwapState.CREATING and (refusal := await _below_gas_minimum(swap, host)):
        async with work.commit(rejected=refusal.reason) as tx:
            current = await _begin(tx, swap)
            if current.state is SwapState.CREATING:
                await _too_small(tx, current, await swaps.payouts_of(tx, swap.id), refusal)
        return
    async with work.commit() as tx:
        current = await _begin(tx, swap)
        if current.state is SwapState.CREATING:
            current = await swaps.record_direct(tx, current)
        assert current.cn_api_id is not None and current.payin_address is not None
        made = Made(
            id=current.cn_api_id,
            pair=pair_of(swap),
            from_amount=swap.amount.to_decimal(),
            to_amount=swap.amount.to_decimal(),
            payin_address=current.payin_address,
            payin_extra_id=None,
            payout_address=swap.address,
            payout_extra_id=swap.extra_id,
            refund_address=config.host_wallet,
            flow=FLOW,
            type=TYPE,
        )
        put = number_of(work, "put", next_messages.FIRST)
        await next_messages.send_swapped(tx, details.lead, current, put, made, config.host_wallet)


async def _below_gas_minimum(swap: Swap, host: HostWallet) -> "SwapRefusal | None":
    least = await minimums.least_direct_payment(host)
    if swap.amount >= least:
        return None
    reason = f"{swap.amount} is below {least}, which is {minimums.GAS_MULTIPLE} times its maximum gas now"
    return SwapRefusal(Code.TOO_SMALL, reason)


@dataclass(frozen=True)
class SwapRefusal:
    """A refusal of the exchange, with the range it accepts now."""

    code: Code
    reason: str
    accepted: Range | None = None


async def _handle_refusal(work: Work, changenow: ChangeNow, swap: Swap, refused: Refused) -> None:
    refusal = await _classify(changenow, swap, refused)
    async with work.commit(rejected=refusal.reason) as tx:
        payouts = await swaps.payouts_of(tx, swap.id)
        current = await swaps.locked_swap(tx, swap.id)
        if current.state is not SwapState.CREATING:
            return
        match refusal.code:
            case Code.TOO_SMALL:
                await _too_small(tx, current, payouts, refusal)
            case Code.TOO_LARGE:
                await _too_large(tx, current, payouts, refusal)
            case Code.NOT_ALLOWED:
                await refused_key.pause(tx, work.message.queue, refusal.reason)
                await _replace(tx, current, refusal)
            case Code.PAIR_INACTIVE if swap.round < TRIES_OF_AN_INACTIVE_PAIR:
                await _replace(tx, current, refusal)
            case Code.PAIR_INACTIVE:
                await _hold(tx, current, payouts, Hold.PAIR_INACTIVE, refusal)
            case Code.BAD_ADDRESS:
                await _hold(tx, current, payouts, Hold.BAD_ADDRESS, refusal)
            case _:
                await _hold(tx, current, payouts, Hold.REFUSED, refusal)


async def _classify(changenow: ChangeNow, swap: Swap, refused: Refused) -> SwapRefusal:
    """Checks the range: the exchange also calls a pair inactive if the amount is out of range, and splitting a large
    amount needs the maximum."""
    code = code_of(refused)
    if code not in (Code.PAIR_INACTIVE, Code.TOO_LARGE):
        return SwapRefusal(code, refused.reason)
    try:
        taken = await changenow.range(pair_of(swap))
    except ExchangeRefused:
        # For an inactive pair the exchange refuses the range too.
        return SwapRefusal(code, refused.reason)
    amount = swap.amount.to_decimal()
    if amount < taken.min_amount:
        code = Code.TOO_SMALL
    elif taken.max_amount is not None and amount > taken.max_amount:
        code = Code.TOO_LARGE
    return SwapRefusal(code, refused.reason, taken)


async def _too_small(tx: Tx, swap: Swap, payouts: list[Payout], refusal: SwapRefusal) -> None:
    await swaps.abandon(tx, swap, refusal.reason)
    for payout in payouts:
        if payout.held_from is not None:
            await store.hold_payout(
                tx, payout, payout.hold or Hold.PERSON, payout.reason or refusal.reason, goes_on=State.PRICED
            )
        elif await swaps.count_parts(tx, payout.id) > 1:
            reason = f"part {swap.part} of it is too small: {refusal.reason}"
            await store.hold_payout(tx, payout, Hold.REFUSED, reason, as_state=State.REVIEW)
        else:
            await accumulation.accumulate(tx, payout, swap.id)


async def _too_large(tx: Tx, swap: Swap, payouts: list[Payout], refusal: SwapRefusal) -> None:
    """Splits the payout into the fewest equal parts. A batch, or a payout with parts already, goes to review."""
    most = None if refusal.accepted is None else refusal.accepted.max_amount
    count = 0 if most is None or most <= 0 else math.ceil(Fraction(swap.amount.to_decimal()) / Fraction(most))
    alone = len(payouts) == 1 and await swaps.count_parts(tx, payouts[0].id) == 1
    if not alone or not 2 <= count <= PARTS_MAX:
        await _hold(tx, swap, payouts, Hold.TOO_LARGE, refusal, as_state=State.REVIEW)
        return
    [payout] = payouts
    await swaps.abandon(tx, swap, f"split into {count}: {refusal.reason}")
    amounts = swap.amount.split([1] * count)
    await swaps.split_part(tx, payout.id, amounts)
    for part, amount in enumerate(amounts, start=1):
        begun = await swaps.begin_swap(tx, payout, part, [(payout.id, part, amount)])
        await next_messages.send_swap(tx, payout, begun)


async def _replace(tx: Tx, swap: Swap, refusal: SwapRefusal) -> None:
    begun = await swaps.replace(tx, swap, refusal.reason)
    lead = await store.payout_by_unique_id(tx, swap.unique_id)
    await next_messages.send_swap(tx, lead, begun, delay_s=TRY_AGAIN_S)


async def _hold(
    tx: Tx, swap: Swap, payouts: list[Payout], hold: Hold, refusal: SwapRefusal, *, as_state: State = State.HELD
) -> None:
    await swaps.abandon(tx, swap, refusal.reason)
    for payout in payouts:
        await store.hold_payout(tx, payout, hold, refusal.reason, as_state=as_state, goes_on=State.PRICED)
