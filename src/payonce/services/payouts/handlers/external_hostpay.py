"""PAYOUTS_HOSTPAY=external: the operator's own GCHostPay pays. Each swap is handed over once, by a task with a token of
version 1; then the exchange is polled until it ends. No wallet of ours takes part."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from payonce.engine.effects import Effect, Keyed
from payonce.engine.effects.model import State as EffectState
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Refused, Retry, Unavailable, Unprocessable
from payonce.services.payouts import ledger
from payonce.services.payouts.handlers import prior_attempts
from payonce.services.payouts.handlers.hostpay import (
    PAID_IN_WITHIN_S,
    TOO_LATE,
    UNPAID,
    expects_deposit,
    refuse_unknown_status,
)
from payonce.services.payouts.handlers.next_messages import hostpay_fields
from payonce.services.payouts.handlers.payment_follow import LOOK_AGAIN_S, SEEN_WITHIN_S
from payonce.services.payouts.handlers.swap_replacement import hold_priced, lapse_and_hold, lapse_and_replace
from payonce.services.payouts.messages.payloads import FOLLOW_EXCHANGE, HAND_OVER
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import ETH, UNDER_WAY, Hold, State, Swap, SwapState
from payonce.services.payouts.policies import EXTERNAL
from payonce.services.payouts.store import payouts, refunds, swap_details, swaps
from payonce.services.payouts.store.swap_details import SwapDetails
from payonce.vendors.changenow.port import ChangeNow, Exchange, ExchangeRefused, Status

TASK_LIMIT_S: Final = 20.0
NAME_KNOWN_S: Final = 3_000.0
"""Google releases the name of a completed task within 24 hours and guarantees no minimum; earlier documentation named
an hour, from which this leaves a margin. GCHostPay must tolerate a second delivery in any case."""
IN_WORK: Final = frozenset({Status.CONFIRMING, Status.EXCHANGING, Status.SENDING})
"""The exchange has seen the deposit."""

CreateTask = Callable[[str, hops.HostPay], Awaitable[str]]
"""Creates the task of this name and returns its full name; an existing task counts as created. Raises NotSent if none
was created."""
DeleteTask = Callable[[str], Awaitable[None]]
"""Deletes the task of this name; a missing task counts as deleted. Raises Unavailable if the outcome is unknown."""

log = get_logger(__name__)


@dataclass(frozen=True)
class ExternalHostPay:
    create_task: CreateTask
    delete_task: DeleteTask


class TaskRequest(msgspec.Struct, frozen=True):
    """The request without its token, which contains a time and is therefore encoded when it is sent."""

    name: str
    swap: str
    unique_id: str
    cn_api_id: str
    payin_address: str
    wei: str


class CreatedTask(msgspec.Struct, frozen=True):
    task: str


@dataclass(frozen=True)
class Cancellation:
    """Why a task without an answer is no longer created."""

    why: str
    seen_money: bool
    """Whether the exchange has seen money: then the task was created and only its answer was lost."""


class CreateHostpayTask(Effect[TaskRequest, CreatedTask]):
    """Creates one task for GCHostPay, named after the swap, so that the task service creates it once. When the service
    may have forgotten the name, it is not sent again: an operator answers whether GCHostPay was called."""

    kind, version, timeout_s = "hostpay.task", 1, TASK_LIMIT_S
    safety = Keyed(NAME_KNOWN_S)

    def __init__(self, external: ExternalHostPay, read: Reader, swap: Swap, late: Cancellation | None = None) -> None:
        self.external = external
        self.read = read
        self.swap = swap
        self.late = late

    async def prepare(self) -> TaskRequest:
        swap = self.swap
        assert swap.cn_api_id is not None and swap.payin_address is not None
        return TaskRequest(
            task_name(swap), swap.id, swap.unique_id, swap.cn_api_id, swap.payin_address, swap.amount.to_minor_text()
        )

    async def perform(self, request: TaskRequest) -> CreatedTask:
        if self.late is not None:
            await self._refuse(self.late)
        return CreatedTask(await self.external.create_task(request.name, hostpay_fields(self.swap)))

    async def _refuse(self, late: Cancellation) -> None:
        """Raises Refused only while no task can exist. Nobody else tries meanwhile, so the record counts."""
        try:
            state = await _effect_state(self.read, self.swap)
        except Exception as error:
            raise NotSent(f"{late.why}; {error}") from error
        if state == EffectState.INTENDED:
            raise Refused(late.why)
        if not late.seen_money:
            raise NotSent(late.why)

    def amount(self, request: TaskRequest) -> Amount:
        return Amount.from_minor(request.wei, ETH)

    def vendor_ref(self, outcome: CreatedTask) -> str:
        return outcome.task


async def _effect_state(read: Reader, swap: Swap) -> str | None:
    state: str | None = await read.fetchval(
        "select state from payonce.effects where kind = $1 and key = $2 order by generation desc limit 1",
        CreateHostpayTask.kind,
        swap.id,
    )
    return state


def task_name(swap: Swap) -> str:
    """The task's name. It begins with a hash, as common prefixes make Google's store slow."""
    digest = hashlib.blake2b(swap.id.encode(), digest_size=8).hexdigest()
    return f"{digest}-hostpay-{swap.unique_id}-{swap.part}-{swap.round}"


@handles(EXTERNAL, HAND_OVER)
async def create_hostpay_task(work: Work, changenow: ChangeNow, external: ExternalHostPay | None) -> None:
    """Create GCHostPay's task for a swap. Running twice is harmless: the effect is recorded first, by the swap's id."""
    details = await _details(work)
    swap = details.swap
    if swap.state is not SwapState.CREATED:
        await _continue_following(work, swap)
        return
    late: Cancellation | None = None
    try:
        if swap.handed_over_at is not None:
            late = await _cancellation(changenow, details)
        elif not await _may_be_paid(work, changenow, details):
            return
    except ExchangeRefused as refusal:
        await refuse_unknown_status(work, swap, refusal)
        return
    if external is None:
        raise Retry(f"swap {swap.id} is for your own GCHostPay, but PAYOUTS_HOSTPAY is not external here")
    effect = CreateHostpayTask(external, work.read, swap, late)
    effect.tenants = details.lanes
    try:
        await work.effect(effect, key=swap.id, scope=swap.scope, intent=lambda tx: _record_handover(tx, swap))
    except Refused as refusal:
        if not await _is_resolved(work, changenow, details, refusal):
            raise
        return
    async with work.commit() as tx:
        await _send_follow(tx, work, swap)
    log.info(
        "hostpay_task_triggered", swap=swap.id, payout=details.lead.id, exchange=swap.cn_api_id, amount=str(swap.amount)
    )


async def _details(work: Work) -> SwapDetails:
    """The swap of the message. Raises Unprocessable for an unknown swap, since this queue never gives up and swaps are
    never deleted."""
    swap_id = str(work.message.payload.get("swap_id"))
    if (details := await swap_details.details_of_swap(work.read, swap_id)) is None:
        raise Unprocessable(f"there is no swap {swap_id!r}; nothing was handed over")
    return details


async def _may_be_paid(work: Work, changenow: ChangeNow, details: SwapDetails) -> bool:
    swap = details.swap
    if details.held_payout is not None:
        why = f"payout {details.held_payout} was held before it was paid"
        async with work.commit(rejected=why) as tx:
            await lapse_and_replace(tx, swap, why)
        return False
    if details.has_prior_attempt and (why := await prior_attempts.find_prior_payment(work, changenow, None, swap)):
        async with work.commit(rejected=why) as tx:
            await lapse_and_hold(tx, swap, Hold.MISMATCH, why, State.REVIEW)
        return False
    if swap.payin_extra_id is not None:
        why = "the deposit address needs a memo, which ether cannot carry"
        async with work.commit(rejected=why) as tx:
            await lapse_and_hold(tx, swap, Hold.MISMATCH, why)
        return False
    return await expects_deposit(work, details, await _exchange(changenow, swap))


async def _exchange(changenow: ChangeNow, swap: Swap) -> Exchange:
    assert swap.cn_api_id is not None
    if (exchange := await changenow.exchange(swap.cn_api_id)) is None:
        raise Retry(f"the exchange does not know {swap.cn_api_id} yet")
    return exchange


async def _cancellation(changenow: ChangeNow, details: SwapDetails) -> Cancellation | None:
    """Why the task must not be created any more; the first attempt may be hours ago. None if nothing has changed."""
    exchange = await _exchange(changenow, details.swap)
    if exchange.status not in UNPAID:
        why = f"exchange {exchange.id} is {exchange.status}"
        return Cancellation(why, seen_money=exchange.status not in TOO_LATE)
    if details.held_payout is not None:
        return Cancellation(f"payout {details.held_payout} was held", seen_money=False)
    if details.left_s is not None and details.left_s < PAID_IN_WITHIN_S:
        return Cancellation(f"exchange {exchange.id} is valid for {details.left_s:.0f} s", seen_money=False)
    return None


async def _is_resolved(work: Work, changenow: ChangeNow, details: SwapDetails, refusal: Refused) -> bool:
    """Handles a task that is not created any more. False if our own controls refused and the effect is still open."""
    match await _effect_state(work.read, details.swap):
        case EffectState.REFUSED:
            if await _may_be_paid(work, changenow, details):
                # The obstacle is gone, but this effect has ended.
                async with work.commit(rejected=refusal.reason) as tx:
                    await lapse_and_replace(tx, details.swap, refusal.reason)
            return True
        case EffectState.ABANDONED:
            # An operator stated that no task was created. Replacing the swap needs two who declare it unpaid.
            async with work.commit(rejected=refusal.reason) as tx:
                await _send_follow(tx, work, details.swap)
            return True
    return False


async def _record_handover(tx: Tx, swap: Swap) -> None:
    """Raises Retry if a payout has been stopped meanwhile; until the transaction ends nobody can stop it."""
    for payout in await swaps.payouts_of(tx, swap.id):
        if payout.state not in UNDER_WAY:
            raise Retry(f"payout {payout.id} has just become {payout.state}", after_s=0.0)
    await swaps.record_handover(tx, swap)


async def _continue_following(work: Work, swap: Swap) -> None:
    if swap.state not in (SwapState.PAYING, SwapState.PAID_IN):
        return
    async with work.commit() as tx:
        await _send_follow(tx, work, swap)


@handles(EXTERNAL, FOLLOW_EXCHANGE)
async def follow_exchange(work: Work, changenow: ChangeNow, external: ExternalHostPay | None) -> None:
    """Check once the exchange of a swap that was handed over; one that has not ended is checked again later."""
    swap = (await _details(work)).swap
    if swap.state not in (SwapState.CREATED, SwapState.PAID_IN) or swap.handed_over_at is None:
        return
    assert swap.cn_api_id is not None
    word = work.message.payload
    if "unpaid_by" in word:
        await _delete_task(external, swap)
    try:
        exchange = await changenow.exchange(swap.cn_api_id)
    except ExchangeRefused as refusal:
        await refuse_unknown_status(work, swap, refusal)
        return
    if exchange is None:
        raise Retry(f"the exchange does not know {swap.cn_api_id}, although it was handed over")
    if "unpaid_by" in word or "written_off_by" in word:
        await _apply_statement(work, swap, exchange)
    elif exchange.status is Status.FINISHED:
        await _record_finished(work, swap, exchange)
    elif exchange.status in IN_WORK:
        await _record_paid_in(work, swap, exchange)
    elif exchange.status in (Status.NEW, Status.WAITING) and await _handed_over_for_s(work, swap) < SEEN_WITHIN_S:
        raise Retry(f"exchange {exchange.id} is {exchange.status}: GCHostPay has not paid it yet")
    else:
        await _hold_for_review(work, swap, exchange)


async def _record_paid_in(work: Work, swap: Swap, exchange: Exchange) -> None:
    if swap.state is SwapState.PAID_IN:
        raise Retry(f"exchange {exchange.id} is {exchange.status}")
    async with work.commit() as tx:
        paid_in = await _pay_in(tx, swap)
        await swaps.record_transactions(tx, swap, exchange)
        await _send_follow(tx, work, paid_in)


async def _record_finished(work: Work, swap: Swap, exchange: Exchange) -> None:
    async with work.commit() as tx:
        await swaps.finish(tx, swap if swap.state is SwapState.PAID_IN else await _pay_in(tx, swap))
        await swaps.record_transactions(tx, swap, exchange)


async def _pay_in(tx: Tx, swap: Swap) -> Swap:
    """Records the deposit at the exchange. Only GCHostPay knows its gas."""
    paid_in = await swaps.advance(tx, await swaps.advance(tx, swap, SwapState.PAYING), SwapState.PAID_IN)
    if (posting := ledger.paid_in(swap, Amount.zero(ETH))) is not None:
        await tx.post(posting)
    return paid_in


async def _hold_for_review(work: Work, swap: Swap, exchange: Exchange) -> None:
    """Holds the payouts, once per status; polling continues, as the exchange may still be paid or finish."""
    why = f"exchange {exchange.id} is {exchange.status}; it was handed over to your GCHostPay and is not replaced"
    if work.message.payload.get("told") == exchange.status:
        raise Retry(why, LOOK_AGAIN_S)
    verifying = exchange.status is Status.VERIFYING
    async with work.commit() as tx:
        for payout in await swaps.payouts_of(tx, swap.id):
            hold = Hold.VERIFYING if verifying else Hold.EXCHANGE_FAILED
            await payouts.hold_payout(tx, payout, hold, why, as_state=State.HELD if verifying else State.REVIEW)
        await _send_follow(tx, work, swap, told=exchange.status, delay_s=LOOK_AGAIN_S)


async def _delete_task(external: ExternalHostPay | None, swap: Swap) -> None:
    """Deletes the task before the exchange is checked: a task that GCHostPay has only refused so far would be delivered
    again, and pay a replaced exchange."""
    if external is None:
        raise Retry(f"swap {swap.id} is for your own GCHostPay, but PAYOUTS_HOSTPAY is not external here")
    try:
        await external.delete_task(task_name(swap))
    except Unavailable as error:
        raise Retry(f"it is unknown whether GCHostPay still has a task of swap {swap.id}: {error}") from error


async def _apply_statement(work: Work, swap: Swap, exchange: Exchange) -> None:
    """Applies the operators' statement that the swap was never paid, or that its deposit is lost, unless the exchange
    contradicts it."""
    by = work.message.payload.get("unpaid_by")
    given_up = exchange.status in (TOO_LATE if by is None else TOO_LATE | {Status.NEW, Status.WAITING})
    wanted = SwapState.PAID_IN if by is None else SwapState.CREATED
    if not given_up or swap.state is not wanted:
        why = f"exchange {exchange.id} is {exchange.status}, and swap {swap.id} is {swap.state}: nothing was changed"
        async with work.commit(rejected=why) as tx:
            for payout in await swaps.payouts_of(tx, swap.id):
                if payout.held_from is not None and payout.hold is not None:
                    await payouts.hold_payout(tx, payout, payout.hold, why, as_state=payout.state)
        return
    async with work.commit() as tx:
        await swaps.payouts_of(tx, swap.id)
        current = await swaps.locked_swap(tx, swap.id)
        if current.state is not wanted:
            raise Retry(f"swap {swap.id} is now {current.state}", after_s=0.0)
        if by is not None:
            reason = f"{by}: GCHostPay has not paid exchange {exchange.id}, which is {exchange.status}"
            await swaps.lapse(tx, current, reason, unpaid_by=str(by))
        else:
            reason = f"{work.message.payload['written_off_by']}: the deposit of {swap.id} is written off"
            await refunds.close_deposit(tx, current, current.amount, reason)
        await hold_priced(tx, swap, Hold.EXCHANGE_FAILED, reason, State.REVIEW)


async def _handed_over_for_s(work: Work, swap: Swap) -> float:
    seconds: float = await work.read.fetchval(
        "select extract(epoch from payonce.due_now() - $1::timestamptz)::float8", swap.handed_over_at
    )
    return seconds


async def _send_follow(tx: Tx, work: Work, swap: Swap, *, delay_s: float = 0.0, **known: str) -> None:
    message = work.message
    await tx.send(
        EXTERNAL,
        {"swap_id": swap.id, **known},
        action=FOLLOW_EXCHANGE,
        correlation_id=message.correlation_id,
        lane=message.lane,
        delay_s=delay_s,
    )
