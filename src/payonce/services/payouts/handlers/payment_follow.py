"""Following a payment: to its final receipt on the chain, then to the end of the exchange, by polling."""

from typing import Final

from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount
from payonce.kit.outcomes import NotSent, Retry, Unknown
from payonce.services.payouts import ledger, metrics
from payonce.services.payouts.handlers import refused_key
from payonce.services.payouts.handlers.hostpay import send_follow
from payonce.services.payouts.handlers.payloads import number_of
from payonce.services.payouts.handlers.prior_attempts import GIVEN_UP, UNFUNDED
from payonce.services.payouts.handlers.swap_replacement import hold_priced, replace_swap
from payonce.services.payouts.handlers.wallet import BumpPayment, HostWallet, chain_answer
from payonce.services.payouts.model import ETH, Hold, State, Swap, SwapState
from payonce.services.payouts.policies import FOLLOW, HOSTPAY
from payonce.services.payouts.store import payouts, refunds, swaps, wallet
from payonce.services.payouts.store.wallet import Attempt, PaymentProgress, PaymentState, WalletPayment
from payonce.vendors.changenow.port import ChangeNow, Code, Exchange, ExchangeRefused, Status
from payonce.vendors.evm.port import IncomingTransfer, Receipt

BUMP_AFTER_S: Final = 180.0
"""The fees of a payment that is in no block are raised after this time: fifteen blocks of mainnet."""
SEEN_WITHIN_S: Final = 4 * 3_600.0
"""A final deposit that the exchange does not see for this long goes to review."""
LOOK_AGAIN_S: Final = 300.0
"""Polling interval while the payout is held or in review."""
LOST_LOOKS: Final = 6
LOST_LOOK_S: Final = 600.0
"""A payment whose nonce is used is lost if this many checks, this far apart, find no receipt of it."""
MISSING: Final = "missing"
"""Value of `told`: the exchange sees the payment, but the chain does not show it."""
REFUND_WITHIN_S: Final = 4 * 3_600.0
"""An announced refund that is not final on the chain after this time goes to review."""
OVERDUE: Final = "overdue"
"""Value of `told`: such a refund."""
SHORT: Final = "short"
"""Value of `told`: the refund differs from the deposit."""

HOLDS_BY_STATUS: Final = {
    Status.FAILED: (Hold.EXCHANGE_FAILED, State.REVIEW),
    Status.EXPIRED: (Hold.EXCHANGE_FAILED, State.REVIEW),
    Status.VERIFYING: (Hold.VERIFYING, State.HELD),
    Status.WAITING: (Hold.EXCHANGE_FAILED, State.REVIEW),
    Status.NEW: (Hold.EXCHANGE_FAILED, State.REVIEW),
}
"""How payouts of a paid exchange in these statuses are held. The exchange is never paid twice."""


@handles(FOLLOW)
async def follow_payment(work: Work, changenow: ChangeNow, host: HostWallet) -> None:
    """Check a payment once; one that has not ended is checked again later."""
    way = await wallet.progress_of(work.read, str(work.message.payload.get("swap_id")))
    swap = way.swap
    try:
        match swap.state:
            case SwapState.PAYING:
                await _follow_on_chain(work, changenow, host, way)
            case SwapState.PAID_IN if {"returned_by", "written_off_by"} & work.message.payload.keys():
                await _apply_statement(work, changenow, host, swap)
            case SwapState.PAID_IN:
                await _follow_at_exchange(work, changenow, host, swap)
    except ExchangeRefused as refusal:
        await _refuse_unknown_status(work, swap, refusal)


async def _follow_on_chain(work: Work, changenow: ChangeNow, host: HostWallet, way: PaymentProgress) -> None:
    swap, paid, attempts = way.swap, way.paid, way.attempts
    if paid is None:
        raise Retry(f"no payment of {swap.id} is on record yet")
    if paid.state is not PaymentState.SIGNED:
        return
    if attempts[0].number > 1:
        # The answer to a bump may have been lost: its outcome must be known before this message can end.
        bump = BumpPayment(host, work.read, paid, attempts[0].number, attempts[0].signed.fees)
        await work.effect(bump, key=bump.key)
    standing = await chain_answer(host.wallet.status([attempt.signed.hash for attempt in attempts]))
    # All attempts have one nonce, so at most one of them is in a block.
    receipt = standing.receipts[0] if standing.receipts else None
    if receipt is None and paid.nonce < standing.final_nonce:
        await _record_missing(work, changenow, swap, paid)
    elif receipt is None:
        await _report_nonce_gap(work, host, paid, attempts[0], standing.next_nonce)
        # A payment behind another nonce waits for that one, not for higher fees.
        await _rebroadcast(work, host, swap, paid, attempts[0], is_next=paid.nonce == standing.next_nonce)
    elif not receipt.final:
        raise Retry(f"the payment of {swap.id} is in block {receipt.block_number}, which is not final yet")
    elif receipt.succeeded:
        await _record_paid_in(work, swap, receipt)
    else:
        await _record_reverted(work, swap, receipt)


async def _report_nonce_gap(
    work: Work, host: HostWallet, paid: WalletPayment, newest: Attempt, next_nonce: int
) -> None:
    """Reports a nonce that the chain waits for and that was never ours: it blocks all our payments."""
    if newest.age_s < BUMP_AFTER_S or next_nonce >= paid.nonce:
        return
    if await wallet.free_nonce(work.read, paid.wallet, next_nonce) == next_nonce:
        why = (
            f"nonce {next_nonce} of the wallet {paid.wallet} is in no block and was never ours: nonce {paid.nonce} and "
            "all later ones wait. The next payment of the wallet takes it"
        )
        await host.report_nonce(next_nonce, why)


async def _rebroadcast(
    work: Work, host: HostWallet, swap: Swap, paid: WalletPayment, newest: Attempt, *, is_next: bool
) -> None:
    """Sends the same bytes again or, after BUMP_AFTER_S, bytes of the same nonce with higher fees."""
    lease = await host.lease()
    if is_next and newest.age_s >= BUMP_AFTER_S and (bump := await _bump(work, host, paid, newest)) is not None:
        sent = await work.effect(bump, key=bump.key, intent=lambda tx: bump.sign(tx, lease, swap, newest))
        metrics.WALLET_PAYMENTS.labels(paid.payment.asset, "bumped").inc()
        raise Retry(f"the payment of {swap.id} was in no block; its fees were raised: {sent.taken}")
    try:
        taken = await host.wallet.broadcast(newest.signed)
    except (NotSent, Unknown) as silence:
        raise Retry(f"the payment of {swap.id} is in no block: {silence.reason}") from silence
    raise Retry(f"the payment of {swap.id} is in no block yet; sent again: {taken}")


async def _bump(work: Work, host: HostWallet, paid: WalletPayment, newest: Attempt) -> BumpPayment | None:
    """None if the fee cap is reached: the payment waits until the chain's fees fall."""
    market = await host.market(paid.payment.amount.asset)
    fees = newest.signed.fees.bumped(market.fees, host.fee_cap_wei)
    return None if fees is None else BumpPayment(host, work.read, paid, newest.number + 1, fees)


async def _record_paid_in(work: Work, swap: Swap, receipt: Receipt) -> None:
    async with work.commit() as tx:
        await _settle(tx, swap, PaymentState.FINAL, receipt)
        moved_in = await swaps.advance(tx, swap, SwapState.PAID_IN)
        if (posting := ledger.paid_in(swap, receipt.fee)) is not None:
            await tx.post(posting)
        if swap.direct:
            await swaps.finish(tx, moved_in)
        else:
            await send_follow(tx, work, moved_in)


async def _record_reverted(work: Work, swap: Swap, receipt: Receipt) -> None:
    why = f"transaction {receipt.hash} was reverted: the gas is spent, nothing was transferred"
    async with work.commit(rejected=why) as tx:
        await _settle(tx, swap, PaymentState.REVERTED, receipt)
        if receipt.fee:
            await tx.post(_wasted_gas(swap, receipt.fee))
        await _record_unpaid(tx, swap, why)


async def _record_missing(work: Work, changenow: ChangeNow, swap: Swap, paid: WalletPayment) -> None:
    """The nonce is used, but no receipt of ours is shown. A lagging node answers the same about a successful payment,
    so it takes several checks, and the exchange's confirmation too."""
    looks = number_of(work, "missing", 0) + 1
    if looks < LOST_LOOKS:
        async with work.commit() as tx:
            await send_follow(tx, work, swap, delay_s=LOST_LOOK_S, missing=looks)
        return
    if (exchange := await _funded_exchange(changenow, swap)) is None:
        await _record_lost(work, swap, paid)
        return
    why = f"the payment of {swap.id} has no receipt, but exchange {exchange.id} is {exchange.status}"
    if work.message.payload.get("told") == MISSING:
        raise Retry(why, LOOK_AGAIN_S)
    async with work.commit() as tx:
        await _hold(tx, swap, Hold.MISMATCH, f"{why}; it is not paid again", State.REVIEW)
        await send_follow(tx, work, swap, told=MISSING, missing=looks, delay_s=LOOK_AGAIN_S)


async def _funded_exchange(changenow: ChangeNow, swap: Swap) -> Exchange | None:
    """The exchange, if it has seen money; None for direct payments, which have no exchange."""
    if swap.direct:
        return None
    assert swap.cn_api_id is not None
    exchange = await changenow.exchange(swap.cn_api_id)
    if exchange is None:
        raise Retry(f"the exchange does not know {swap.cn_api_id}, so it is unknown whether it was paid")
    return None if exchange.status in UNFUNDED else exchange


async def _record_lost(work: Work, swap: Swap, paid: WalletPayment) -> None:
    why = f"nonce {paid.nonce} of {paid.wallet} was used by a foreign transaction: {swap.id} is not paid"
    async with work.commit(rejected=why) as tx:
        await _settle(tx, swap, PaymentState.LOST, None)
        await _record_unpaid(tx, swap, why)


async def _record_unpaid(tx: Tx, swap: Swap, why: str) -> None:
    """The transfer failed for good. An operator decides whether another exchange is created."""
    await swaps.advance(tx, swap, SwapState.RETURNED, reason=why)
    await hold_priced(tx, swap, Hold.MISMATCH, why, State.REVIEW)


async def _settle(tx: Tx, swap: Swap, state: PaymentState, receipt: Receipt | None) -> None:
    await wallet.settle(tx, swap, state, receipt)
    metrics.WALLET_PAYMENTS.labels(swap.amount.asset.code, state).inc()


def _wasted_gas(swap: Swap, gas: Amount) -> Posting:
    lines = moved(gas, ledger.HOST_WALLET, ledger.NETWORK_FEES)
    return Posting(f"payout_swap:{swap.id}:reverted", Reference(ledger.SWAP, swap.id), lines, "reverted")


async def _apply_statement(work: Work, changenow: ChangeNow, host: HostWallet, swap: Swap) -> None:
    """Applies the operators' statement about a deposit unless the exchange or the chain contradicts it."""
    written_off = "written_off_by" in work.message.payload
    if why := await _exchange_objection(changenow, swap, "written off" if written_off else "returned"):
        async with work.commit(rejected=why) as tx:
            await _hold(tx, swap, Hold.EXCHANGE_FAILED, why, State.REVIEW)
    elif written_off:
        await _write_off(work, swap)
    else:
        await _record_return(work, host, swap)


async def _exchange_objection(changenow: ChangeNow, swap: Swap, said: str) -> str:
    """How the exchange contradicts the statement; empty if it has given the exchange up."""
    assert swap.cn_api_id is not None
    exchange = await changenow.exchange(swap.cn_api_id)
    if exchange is None:
        raise Retry(f"the exchange does not know {swap.cn_api_id}, whose deposit was declared {said}")
    return (
        "" if exchange.status in GIVEN_UP else f"exchange {exchange.id} is {exchange.status}: its deposit is not {said}"
    )


async def _record_return(work: Work, host: HostWallet, swap: Swap) -> None:
    transaction_hash = str(work.message.payload.get("returned_by"))
    incoming = await chain_answer(host.wallet.incoming(transaction_hash, ETH))
    if incoming is None or not incoming.final:
        why = f"transaction {transaction_hash} is not final on the chain, or paid nothing to the wallet"
        if await _now_s(work) - number_of(work, "since", 0) < REFUND_WITHIN_S:
            raise Retry(why)
        async with work.commit(rejected=why) as tx:
            await _hold(tx, swap, Hold.EXCHANGE_FAILED, f"{why}; nothing of {swap.id} came back by it", State.REVIEW)
        return
    if why := await refunds.refund_objection(work.read, swap, incoming):
        async with work.commit(rejected=why) as tx:
            await _hold(tx, swap, Hold.EXCHANGE_FAILED, why, State.REVIEW)
        return
    async with work.commit() as tx:
        found = await refunds.count_refund(tx, swap.id, incoming)
        if found.missing > refunds.tolerated_shortfall(swap):
            await _hold(tx, swap, Hold.EXCHANGE_FAILED, found.doubt, State.REVIEW)
            return
        reason = found.doubt or f"the deposit of {swap.id} came back by {transaction_hash} from {incoming.sender}"
        await refunds.close_deposit(tx, found.swap, found.missing, reason)
        await hold_priced(tx, swap, Hold.EXCHANGE_FAILED, reason, State.REVIEW)


async def _write_off(work: Work, swap: Swap) -> None:
    async with work.commit() as tx:
        await swaps.payouts_of(tx, swap.id)
        current = await swaps.locked_swap(tx, swap.id)
        if current.state is not SwapState.PAID_IN:
            raise Retry(f"swap {swap.id} is now {current.state}")
        missing = current.amount - await refunds.refunded_amount(tx, swap.id)
        reason = f"{work.message.payload['written_off_by']}: {missing} of the deposit of {swap.id} is written off"
        await refunds.close_deposit(tx, current, missing, reason)
        await hold_priced(tx, swap, Hold.EXCHANGE_FAILED, reason, State.REVIEW)


async def _follow_at_exchange(work: Work, changenow: ChangeNow, host: HostWallet, swap: Swap) -> None:
    assert swap.cn_api_id is not None
    exchange = await changenow.exchange(swap.cn_api_id)
    if exchange is None:
        raise Retry(f"the exchange does not know {swap.cn_api_id}, although it was paid")
    match exchange.status:
        case Status.FINISHED:
            await _record_finished(work, swap, exchange)
        case Status.REFUNDED:
            await _record_refund(work, host, swap, exchange)
        case Status.FAILED | Status.EXPIRED | Status.VERIFYING:
            await _hold_for_review(work, swap, exchange)
        case Status.WAITING | Status.NEW if await _paid_for_s(work, swap) > SEEN_WITHIN_S:
            await _hold_for_review(work, swap, exchange)
        case status:
            raise Retry(f"exchange {exchange.id} is {status}")


async def _refuse_unknown_status(work: Work, swap: Swap, refusal: ExchangeRefused) -> None:
    """Without an accepted key nothing new is paid. This queue continues, for payments that are on the chain."""
    if refusal.code is not Code.NOT_ALLOWED:
        raise Retry(f"the exchange refuses the status of {swap.cn_api_id}: {refusal.reason}", LOOK_AGAIN_S) from refusal
    async with work.commit() as tx:
        await refused_key.pause(tx, HOSTPAY.queue, refusal.reason)
        known = {name: value for name, value in work.message.payload.items() if name != "swap_id"}
        await send_follow(tx, work, swap, delay_s=LOOK_AGAIN_S, **known)


async def _record_finished(work: Work, swap: Swap, exchange: Exchange) -> None:
    async with work.commit() as tx:
        await swaps.finish(tx, swap)
        await swaps.record_transactions(tx, swap, exchange)


async def _record_refund(work: Work, host: HostWallet, swap: Swap, exchange: Exchange) -> None:
    """Begins another swap only when the chain shows the whole deposit returned, less a plausible transfer fee."""
    if exchange.refund_hash is None:
        await _await_refund(work, swap, f"exchange {exchange.id} is refunded but names no transaction")
        return
    incoming = await chain_answer(host.wallet.incoming(exchange.refund_hash.lower(), ETH))
    if incoming is None or not incoming.final:
        why = f"the refund of exchange {exchange.id}, {exchange.refund_hash}, is not final on the chain yet"
        await _await_refund(work, swap, why)
        return
    reason = f"exchange {exchange.id} sent {incoming.amount} back"
    if work.message.payload.get("told") == SHORT and await _is_counted(work, incoming):
        raise Retry(f"{reason}, which differs from the deposit; it is in review", LOOK_AGAIN_S)
    async with work.commit() as tx:
        found = await refunds.count_refund(tx, swap.id, incoming)
        if found.missing > refunds.tolerated_shortfall(swap):
            await _hold(tx, swap, Hold.EXCHANGE_FAILED, f"{found.doubt}; it is not paid again", State.REVIEW)
            await send_follow(tx, work, swap, told=SHORT, delay_s=LOOK_AGAIN_S)
            return
        await refunds.close_deposit(tx, found.swap, found.missing, reason)
        if found.doubt:
            await hold_priced(tx, swap, Hold.MISMATCH, found.doubt, State.REVIEW)
        else:
            await replace_swap(tx, swap, reason)


async def _await_refund(work: Work, swap: Swap, why: str) -> None:
    """Waits for the refund for REFUND_WITHIN_S; then holds the payouts, once."""
    if work.message.payload.get("told") == OVERDUE:
        raise Retry(why, LOOK_AGAIN_S)
    now, since = await _now_s(work), number_of(work, "refunded_since", 0)
    if since and now - since < REFUND_WITHIN_S:
        raise Retry(why)
    async with work.commit() as tx:
        if not since:
            await send_follow(tx, work, swap, refunded_since=now)
            return
        await _hold(tx, swap, Hold.EXCHANGE_FAILED, f"{why}; it is not paid again", State.REVIEW)
        await send_follow(tx, work, swap, told=OVERDUE, delay_s=LOOK_AGAIN_S)


async def _is_counted(work: Work, incoming: IncomingTransfer) -> bool:
    """Whether this transaction was reported already: then another one is awaited."""
    found: bool = await work.read.fetchval(
        "select exists (select from payouts.refunds where hash = $1)", incoming.hash.lower()
    )
    return found


async def _hold_for_review(work: Work, swap: Swap, exchange: Exchange) -> None:
    """Holds the payouts, once per status; polling continues, as the exchange may still finish or refund."""
    why = f"exchange {exchange.id} is {exchange.status} although it was paid; it is not paid again"
    if work.message.payload.get("told") == exchange.status:
        raise Retry(why, LOOK_AGAIN_S)
    hold, as_state = HOLDS_BY_STATUS[exchange.status]
    async with work.commit() as tx:
        await _hold(tx, swap, hold, why, as_state)
        await send_follow(tx, work, swap, told=exchange.status, delay_s=LOOK_AGAIN_S)


async def _hold(tx: Tx, swap: Swap, hold: Hold, why: str, as_state: State) -> None:
    for carried in await swaps.payouts_of(tx, swap.id):
        await payouts.hold_payout(tx, carried, hold, why, as_state=as_state)


async def _paid_for_s(work: Work, swap: Swap) -> float:
    """Seconds since the deposit was found final."""
    seconds: float = await work.read.fetchval(
        """
        select extract(epoch from payonce.due_now() - updated_at)::float8 from payouts.wallet_payments
        where swap_id = $1
        """,
        swap.id,
    )
    return seconds


async def _now_s(work: Work) -> int:
    now: int = await work.read.fetchval("select extract(epoch from payonce.due_now())::bigint")
    return now
