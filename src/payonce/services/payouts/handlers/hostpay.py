"""GCHostPay: the host wallet pays a swap's deposit, or the client directly, exactly once."""

from typing import Any

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Amount
from payonce.kit.outcomes import Held, Retry, Unprocessable
from payonce.services.payouts import metrics
from payonce.services.payouts.handlers import older_services, prior_attempts, refused_key
from payonce.services.payouts.handlers.payloads import fields_of
from payonce.services.payouts.handlers.swap_replacement import lapse_and_hold, lapse_and_replace
from payonce.services.payouts.handlers.wallet import HostWallet, PayDeposit
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import (
    BY_EXTERNAL,
    ETH,
    ETH_NETWORK,
    ETH_TICKER,
    UNDER_WAY,
    Hold,
    Payout,
    State,
    Swap,
    SwapState,
)
from payonce.services.payouts.policies import FOLLOW, HOSTPAY
from payonce.services.payouts.store import swap_details, swaps, wallet_limits
from payonce.services.payouts.store import wallet as wallet_store
from payonce.services.payouts.store.swap_details import SwapDetails
from payonce.vendors.changenow.port import (
    ChangeNow,
    Code,
    Exchange,
    ExchangeRefused,
    Status,
    same_address,
    same_amount,
)
from payonce.vendors.evm.port import Market

FUNDS_LOOK_S = 300.0
"""How often a payment checks whether an operator has topped up the wallet."""
PAID_IN_WITHIN_S = 1_800.0
"""Remaining validity that an exchange needs when its deposit is paid: a quarter of an hour until a mainnet block is
final, and as much again for a payment whose fees must be raised."""

UNPAID = frozenset({Status.NEW, Status.WAITING})
TOO_LATE = frozenset({Status.EXPIRED, Status.FAILED, Status.REFUNDED})


@handles(HOSTPAY)
async def pay_swap(work: Work, changenow: ChangeNow, host: HostWallet) -> None:
    """Pay the deposit. Running twice is harmless: nonce and bytes are recorded first."""
    asked = fields_of(work, hops.HostPay)
    details = await swap_details.details_of_exchange(work.read, asked.unique_id, asked.cn_api_id)
    if details is None:
        if older_services.is_from_older_service(work):
            older_services.refuse(
                work,
                f"no swap {asked.cn_api_id!r} of {asked.unique_id!r} is on record; let the older GCHostPay pay it",
            )
        raise _unknown_swap(asked)
    swap = details.swap
    if swap.paid_by == BY_EXTERNAL:
        async with work.commit(rejected=f"swap {swap.id} is paid by your own GCHostPay only"):
            return
    match swap.state:
        case SwapState.CREATED:
            try:
                wanted = await _may_be_paid(work, changenow, host, asked, details)
            except ExchangeRefused as refusal:
                await refuse_unknown_status(work, swap, refusal)
                return
            if not wanted:
                return
        case SwapState.PAYING:
            pass  # an earlier run died; the record shows how far it came
        case SwapState.PAID_IN:
            async with work.commit() as tx:
                await send_follow(tx, work, swap)
            return
        case _:
            return
    await _pay(work, host, details)


async def _pay(work: Work, host: HostWallet, details: SwapDetails) -> None:
    lease, swap = await host.lease(), details.swap
    effect = PayDeposit(host, work.read, swap)
    effect.tenants = details.lanes

    async def intent(tx: Tx) -> None:
        """Records everything that must precede the first byte sent."""
        carried = await _lock_payouts(tx, swap)
        await swaps.advance(tx, swap, SwapState.PAYING, carried=carried)
        # As late as possible, since all payments wait for the wallet's row.
        await effect.sign(tx, lease)
        # Under the wallet's lock, so that of two payments that would pass separately the second sees the first.
        if why := await wallet_limits.exceeded(tx, swap):
            raise Retry(why, after_s=0.0)

    await work.effect(effect, key=f"{swap.id}/pay", scope=swap.scope, intent=intent)
    metrics.WALLET_PAYMENTS.labels(swap.amount.asset.code, "sent").inc()
    async with work.commit() as tx:
        await wallet_store.record_sent(tx, swap)
        await send_follow(tx, work, swap)


async def _lock_payouts(tx: Tx, swap: Swap) -> list[Payout]:
    """Locks and returns the swap's payouts, which nobody can stop until the transaction ends; raises Retry if somebody
    has, while exchange and chain were queried. The next move checks that the swap itself is unchanged."""
    if swap.state is not SwapState.CREATED:
        # The state was the same at the first read and will be at the next.
        raise Retry(f"swap {swap.id} is {swap.state}, and the effect that pays it is not on record")
    carried = await swaps.payouts_of(tx, swap.id)
    for payout in carried:
        if payout.state not in UNDER_WAY:
            raise Retry(f"payout {payout.id} has just become {payout.state}", after_s=0.0)
    return carried


async def send_follow(tx: Tx, work: Work, swap: Swap, *, delay_s: float = 0.0, **known: str | int) -> None:
    """Sends the message that follows a payment to its end. It is sent in the commit that settles its predecessor, so
    there is only one. `known` is the predecessor's findings."""
    payload: dict[str, Any] = {"swap_id": swap.id, **known}
    message = work.message
    await tx.send(FOLLOW, payload, correlation_id=message.correlation_id, lane=message.lane, delay_s=delay_s)


async def _may_be_paid(
    work: Work, changenow: ChangeNow, host: HostWallet, asked: hops.HostPay, details: SwapDetails
) -> bool:
    """Whether message, record, exchange and limits agree on this deposit. If not, the message has been settled."""
    swap = details.swap
    older = older_services.is_from_older_service(work)
    if (wrong := _differs(asked, swap, host.wallet.address, as_double=older)) is not None:
        await _hold(work, swap, Hold.MISMATCH, wrong)
        return False
    if details.held_payout is not None:
        why = f"payout {details.held_payout} was held before it was paid"
        async with work.commit(rejected=why) as tx:
            await lapse_and_replace(tx, swap, why)
        return False
    if details.has_prior_attempt and (why := await prior_attempts.find_prior_payment(work, changenow, host, swap)):
        await _hold(work, swap, Hold.MISMATCH, why, State.REVIEW)
        return False
    if not swap.direct:
        exchange = await changenow.exchange(asked.cn_api_id)
        if exchange is None:
            raise Retry(f"the exchange does not know {asked.cn_api_id} yet")
        if not await expects_deposit(work, details, exchange):
            return False
    if why := await wallet_limits.exceeded(work.read, swap):
        async with work.commit(rejected=why) as tx:
            await wallet_limits.request_approval(tx, swap, why)
        return False
    await _check_funds(work, host, swap)
    return True


async def refuse_unknown_status(work: Work, swap: Swap, refusal: ExchangeRefused) -> None:
    """The exchange refuses the status of this swap or of an earlier round: nothing is paid before it is known."""
    if refusal.code is not Code.NOT_ALLOWED:
        raise Retry(f"the exchange refuses the status of {swap.cn_api_id}: {refusal.reason}") from refusal
    await refused_key.pause_and_requeue(work, refusal.reason)


async def expects_deposit(work: Work, details: SwapDetails, exchange: Exchange) -> bool:
    """Whether the exchange waits for exactly the deposit on record. If not, the message has been settled."""
    swap, status = details.swap, exchange.status
    if status in TOO_LATE:
        async with work.commit(rejected=f"exchange {exchange.id} is {status}") as tx:
            await lapse_and_replace(tx, swap, f"exchange {exchange.id} was {status} before it was paid")
        return False
    if status is Status.VERIFYING:
        await _hold(work, swap, Hold.VERIFYING, f"exchange {exchange.id} is verifying before it was paid")
        return False
    if status not in UNPAID:
        why = f"exchange {exchange.id} is {status}, but we have paid nothing"
        await _hold(work, swap, Hold.MISMATCH, why, State.REVIEW)
        return False
    expected = exchange.expected_from
    assert swap.payin_address is not None
    if not same_address(exchange.payin_address, swap.payin_address) or (
        expected is not None and not same_amount(expected, swap.amount.to_decimal())
    ):
        why = f"exchange {exchange.id} expects another amount or address than when it was created"
        await _hold(work, swap, Hold.MISMATCH, why)
        return False
    if details.left_s is not None and details.left_s < PAID_IN_WITHIN_S:
        why = f"exchange {exchange.id} is valid for {details.left_s:.0f} s, but a deposit needs {PAID_IN_WITHIN_S:.0f}"
        async with work.commit(rejected=why) as tx:
            await lapse_and_replace(tx, swap, why)
        return False
    return True


def _differs(asked: hops.HostPay, swap: Swap, wallet: str, *, as_double: bool = False) -> str | None:
    """How the message contradicts the record, which is authoritative; None if it does not. `as_double`: the amount of a
    token of version 1 is a nearest double."""
    amount = swap.amount.to_decimal()
    same = same_amount(asked.from_amount, amount) if as_double else asked.from_amount == amount
    if (asked.from_currency, asked.from_network) != (ETH_TICKER, ETH_NETWORK) or swap.amount.asset != ETH:
        return (
            f"the message orders a payment of {asked.from_currency} on {asked.from_network}; the wallet pays only ether"
        )
    if swap.payin_address is None or not same_address(asked.payin_address, swap.payin_address) or not same:
        return "the message orders another amount or address than is on record"
    if swap.payin_extra_id is not None:
        return "the deposit address needs a memo, which ether cannot carry"
    if asked.payin_address.lower() == wallet.lower():
        return f"the message orders the wallet {wallet} to pay itself"
    return None


async def _check_funds(work: Work, host: HostWallet, swap: Swap) -> None:
    """Checks the balance before a nonce is taken: a payment without funds would block all later nonces. Concurrent
    payments see the same funds, so they are counted again under the wallet's lock."""
    market = await host.market(swap.amount.asset)
    pressure = await wallet_store.commitments_of(work.read, host.wallet.address, swap, market.next_nonce)
    await _check_nonce(host, market, pressure.nonce)
    needed = swap.amount + pressure.in_flight + market.fees.most + pressure.gas_in_flight
    if market.balance < needed:
        _observe(market.balance, low=True)
        why = (
            f"the wallet {host.wallet.address} holds {market.balance} and needs {needed} for payments in flight and "
            f"{swap.id}; top it up"
        )
        await host.record_wait(swap, why)
        raise Held(why, FUNDS_LOOK_S)
    if swap.waits_for is not None:
        await host.record_wait(swap, None)
    # Funds for this payment may still be too little for another one that waits.
    below = pressure.low_balance is not None and market.balance < pressure.low_balance
    _observe(market.balance, low=below or pressure.others_wait)


async def _check_nonce(host: HostWallet, market: Market, nonce: int) -> None:
    """Raises Held while a foreign transaction is pending with the next nonce, which is neither taken nor skipped: if
    that transaction were dropped, all later ones of ours would wait for ever."""
    if market.pending_nonce <= nonce:
        return
    why = (
        f"a foreign transaction is pending with nonce {nonce} of the wallet {host.wallet.address}; nothing is paid "
        "until it is in a block or gone: find out who else signs with the wallet's key"
    )
    await host.report_nonce(nonce, why)
    raise Held(why, wallet_store.FOREIGN_LOOK_S)


def _observe(balance: Amount, *, low: bool) -> None:
    metrics.WALLET_BALANCE.labels(balance.asset.code).set(float(balance.to_decimal()))
    metrics.WALLET_LOW.labels(balance.asset.code).set(int(low))


async def _hold(work: Work, swap: Swap, hold: Hold, why: str, as_state: State = State.HELD) -> None:
    async with work.commit(rejected=why) as tx:
        await lapse_and_hold(tx, swap, hold, why, as_state)


def _unknown_swap(asked: hops.HostPay) -> Unprocessable:
    """Only swaps on record are paid, whoever signed the token."""
    return Unprocessable(f"no swap {asked.cn_api_id!r} of {asked.unique_id!r} is on record; nothing was paid")
