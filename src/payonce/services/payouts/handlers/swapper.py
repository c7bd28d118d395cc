"""The role that has exchanges created, and what follows when the exchange says no."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Refused, Retry, Unprocessable
from payonce.services.payouts.domain.config import Terms
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
from payonce.services.payouts.store.swap_details import Seen
from payonce.vendors.changenow.port import ChangeNow, Code, ExchangeRefused, Range
from payonce.vendors.changenow.port import Swap as Made

TRY_AGAIN_S: Final = 60.0
NOT_DIRECTLY: Final = "ETH needs no exchange, and with PAYOUTS_HOSTPAY=external nothing but exchanges is paid"


@handles(SWAP)
async def create_swap(work: Work, changenow: ChangeNow, terms: Terms, host: HostWallet | None) -> None:
    """Have an exchange created for one part of a payout, and tell the orchestrator."""
    asked, part = fields_of(work, hops.SwapRequest), number_of(work, "part", 1)
    seen = await swap_details.see_part(work.read, asked.unique_id, part)
    if seen is None and older_services.is_from_older_service(work):
        older_services.refuse(
            work, f"no payout has the unique_id {asked.unique_id!r} here; let the older GCSplit3 create its exchange"
        )
    if seen is None and not await swap_details.has_part(work.read, asked.unique_id, part):
        raise Unprocessable(f"no payout with the unique_id {asked.unique_id!r} has a part {part}; nothing was ordered")
    if seen is None or not _is_wanted(seen.swap):
        return
    if seen.kept is not None and await work.open_effect() is None:
        # Whoever lets it go on puts a message of its own.
        return
    swap = seen.swap
    if swap.direct:
        await _pay_directly(work, seen, terms, host)
        return
    effect = CreateSwap(changenow, swap, terms.host_wallet)
    effect.tenants = seen.lanes
    try:
        made = await work.effect(
            effect,
            key=swap.id,
            scope=swap.scope,
            intent=lambda tx: _begin(tx, swap),
        )
    except Refused as no:
        await _refused(work, changenow, swap, no)
        return
    async with work.commit() as tx:
        if swap.state is SwapState.CREATING:
            current = await swaps.record_made(tx, swap, made)
            tx.log("exchange_created", payout=seen.lead.id, swap=swap.id, exchange=made.id, amount=str(swap.amount))
        else:
            current = await swaps.locked_swap(tx, swap.id)
        if current.state is SwapState.CREATED:
            put = number_of(work, "put", next_messages.FIRST)
            await next_messages.send_swapped(tx, seen.lead, current, put, made, terms.host_wallet)


def _is_wanted(swap: Swap) -> bool:
    return swap.triggered_at is None and swap.state in (SwapState.CREATING, SwapState.CREATED)


async def _begin(tx: Tx, swap: Swap) -> Swap:
    """In the commit that records the order: from now on it may exist. The swap as it stands, locked."""
    for payout in await swaps.payouts_of(tx, swap.id):
        if payout.held_from is not None:
            raise Retry(f"payout {payout.id} was given to a person this moment")
        if payout.state is State.PRICED:
            await store.move(tx, payout, State.SWAP_CREATING)
    if (current := await swaps.locked_swap(tx, swap.id)).state in REPLACED:
        raise Retry(f"swap {swap.id} is {current.state} since this moment", after_s=0.0)
    return current


async def _pay_directly(work: Work, seen: Seen, terms: Terms, host: HostWallet | None) -> None:
    """The client gets the coin that the wallet pays: there is nothing to change, and the exchange is not asked."""
    swap = seen.swap
    if host is None or terms.external_hostpay:
        # Only of a payout that was taken in while a wallet of ours paid.
        async with work.commit(rejected=NOT_DIRECTLY) as tx:
            current = await _begin(tx, swap)
            if current.state is SwapState.CREATING:
                payouts = await swaps.payouts_of(tx, swap.id)
                await _keep(tx, current, payouts, Hold.REFUSED, No(Code.OTHER, NOT_DIRECTLY))
        return
    if swap.state is SwapState.CREATING and (no := await _not_worth_its_gas(swap, host)):
        async with work.commit(rejected=no.reason) as tx:
            current = await _begin(tx, swap)
            if current.state is SwapState.CREATING:
                await _too_small(tx, current, await swaps.payouts_of(tx, swap.id), no)
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
            refund_address=terms.host_wallet,
            flow=FLOW,
            type=TYPE,
        )
        put = number_of(work, "put", next_messages.FIRST)
        await next_messages.send_swapped(tx, seen.lead, current, put, made, terms.host_wallet)


async def _not_worth_its_gas(swap: Swap, host: HostWallet) -> "No | None":
    least = await minimums.least_direct(host)
    if swap.amount >= least:
        return None
    reason = f"{swap.amount} is below {least}, which is {minimums.GAS_MULTIPLE} times what its gas costs at most now"
    return No(Code.TOO_SMALL, reason)


@dataclass(frozen=True)
class No:
    """A refusal, read together with what the exchange takes now."""

    code: Code
    reason: str
    taken: Range | None = None


async def _refused(work: Work, changenow: ChangeNow, swap: Swap, refused: Refused) -> None:
    no = await _understood(changenow, swap, refused)
    async with work.commit(rejected=no.reason) as tx:
        payouts = await swaps.payouts_of(tx, swap.id)
        current = await swaps.locked_swap(tx, swap.id)
        if current.state is not SwapState.CREATING:
            return
        match no.code:
            case Code.TOO_SMALL:
                await _too_small(tx, current, payouts, no)
            case Code.TOO_LARGE:
                await _too_large(tx, current, payouts, no)
            case Code.NOT_ALLOWED:
                await refused_key.pause(tx, work.message.queue, no.reason)
                await _again(tx, current, no)
            case Code.PAIR_INACTIVE if swap.round < TRIES_OF_AN_INACTIVE_PAIR:
                await _again(tx, current, no)
            case Code.PAIR_INACTIVE:
                await _keep(tx, current, payouts, Hold.PAIR_INACTIVE, no)
            case Code.BAD_ADDRESS:
                await _keep(tx, current, payouts, Hold.BAD_ADDRESS, no)
            case _:
                await _keep(tx, current, payouts, Hold.REFUSED, no)


async def _understood(changenow: ChangeNow, swap: Swap, refused: Refused) -> No:
    """The exchange calls a pair inactive also when the amount is outside of what it takes; and how much that is, one
    that is too large has to know."""
    code = code_of(refused)
    if code not in (Code.PAIR_INACTIVE, Code.TOO_LARGE):
        return No(code, refused.reason)
    try:
        taken = await changenow.range(pair_of(swap))
    except ExchangeRefused:
        # Of a pair that is switched off it does not even say that.
        return No(code, refused.reason)
    amount = swap.amount.to_decimal()
    if amount < taken.min_amount:
        code = Code.TOO_SMALL
    elif taken.max_amount is not None and amount > taken.max_amount:
        code = Code.TOO_LARGE
    return No(code, refused.reason, taken)


async def _too_small(tx: Tx, swap: Swap, payouts: list[Payout], no: No) -> None:
    await swaps.abandon(tx, swap, no.reason)
    for payout in payouts:
        if payout.held_from is not None:
            await store.keep(tx, payout, payout.hold or Hold.PERSON, payout.reason or no.reason, goes_on=State.PRICED)
        elif await swaps.count_parts(tx, payout.id) > 1:
            reason = f"part {swap.part} of it is too small: {no.reason}"
            await store.keep(tx, payout, Hold.REFUSED, reason, as_state=State.REVIEW)
        else:
            await accumulation.accumulate(tx, payout, swap.id)


async def _too_large(tx: Tx, swap: Swap, payouts: list[Payout], no: No) -> None:
    """In as many equal parts as it needs. What serves several payouts, or is a part already, is for a person."""
    most = None if no.taken is None else no.taken.max_amount
    count = 0 if most is None or most <= 0 else math.ceil(Fraction(swap.amount.to_decimal()) / Fraction(most))
    alone = len(payouts) == 1 and await swaps.count_parts(tx, payouts[0].id) == 1
    if not alone or not 2 <= count <= PARTS_MAX:
        await _keep(tx, swap, payouts, Hold.TOO_LARGE, no, as_state=State.REVIEW)
        return
    [payout] = payouts
    await swaps.abandon(tx, swap, f"split into {count}: {no.reason}")
    amounts = swap.amount.split([1] * count)
    await swaps.split_part(tx, payout.id, amounts)
    for part, amount in enumerate(amounts, start=1):
        begun = await swaps.begin_swap(tx, payout, part, [(payout.id, part, amount)])
        await next_messages.send_swap(tx, payout, begun)


async def _again(tx: Tx, swap: Swap, no: No) -> None:
    begun = await swaps.replace(tx, swap, no.reason)
    lead = await store.payout_by_unique_id(tx, swap.unique_id)
    await next_messages.send_swap(tx, lead, begun, delay_s=TRY_AGAIN_S)


async def _keep(tx: Tx, swap: Swap, payouts: list[Payout], hold: Hold, no: No, *, as_state: State = State.HELD) -> None:
    await swaps.abandon(tx, swap, no.reason)
    for payout in payouts:
        await store.keep(tx, payout, hold, no.reason, as_state=as_state, goes_on=State.PRICED)
