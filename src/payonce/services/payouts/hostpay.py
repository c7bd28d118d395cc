"""GCHostPay: the host wallet pays the deposit of a swap, or the client where no swap is needed. Once."""

from typing import Any

from payonce.engine import metrics
from payonce.engine.audit import Severity, note
from payonce.engine.transaction import Tx
from payonce.engine.work import Work, handles
from payonce.kit.money import Amount
from payonce.kit.outcomes import Held, Invalid, Retry
from payonce.services.payouts import swap_store, wallet_limits, wallet_store
from payonce.services.payouts.model import ETH, ETH_NETWORK, ETH_TICKER, Hold, State, Swap, SwapState
from payonce.services.payouts.policies import FOLLOW, HOSTPAY
from payonce.services.payouts.requoting import lapse_and_keep, lapse_and_swap_anew
from payonce.services.payouts.tokens import hops
from payonce.services.payouts.wallet import HostWallet, PayDeposit
from payonce.vendors.changenow.port import ChangeNow, Exchange, Status

FUNDS_LOOK_S = 300.0
"""How often a payment looks whether the wallet has been filled up; whoever fills it is a person."""

UNPAID = frozenset({Status.NEW, Status.WAITING})
TOO_LATE = frozenset({Status.EXPIRED, Status.FAILED, Status.REFUNDED})


@handles(HOSTPAY)
async def pay_swap(work: Work, changenow: ChangeNow, host: HostWallet) -> None:
    """Pay the deposit. Running twice is harmless: nonce and bytes are on record first."""
    try:
        asked = hops.read(hops.HostPay, work.message.payload)
    except Invalid as no:
        async with work.commit(rejected=str(no)):
            return
    swap = await swap_store.swap_of_exchange(work.read, asked.unique_id, asked.cn_api_id)
    if swap is None:
        await _refuse_stranger(work, asked)
        return
    match swap.state:
        case SwapState.CREATED:
            if not await _may_be_paid(work, changenow, host, asked, swap):
                return
        case SwapState.PAYING:
            pass  # an earlier run died on its way: the record says how far it came
        case SwapState.PAID_IN:
            async with work.commit() as tx:
                await send_follow(tx, work, swap)
            return
        case _:
            return
    await _pay(work, host, swap)


async def _pay(work: Work, host: HostWallet, swap: Swap) -> None:
    lease = await host.lease()
    effect = PayDeposit(host, work.read, swap)

    async def intent(tx: Tx) -> None:
        """Everything that must be on record before the first byte leaves."""
        signed = await effect.sign(tx, lease)
        # Behind the lock of the wallet's row: of two payments that pass each alone, the second sees the first.
        if why := await wallet_limits.exceeded(tx, swap):
            raise Retry(why, after_s=0.0)
        await wallet_store.open_hostpay(tx, swap, ETH_TICKER, ETH_NETWORK, signed)
        await swap_store.advance(tx, swap, SwapState.PAYING)

    await work.effect(effect, key=f"{swap.id}/pay", scope=swap.scope, intent=intent)
    metrics.WALLET_PAYMENTS.labels(swap.amount.asset.code, "sent").inc()
    async with work.commit() as tx:
        await wallet_store.note_hostpay(tx, swap, "sent")
        await send_follow(tx, work, swap)


async def send_follow(tx: Tx, work: Work, swap: Swap, told: str = "", delay_s: float = 0.0) -> None:
    """The message that sees a payment to its end. It ends with the message that it follows from, so there is one."""
    payload: dict[str, Any] = {"swap_id": swap.id, "told": told}
    message = work.message
    await tx.send(
        FOLLOW, payload, correlation_id=message.correlation_id, lane=message.lane, delay_s=delay_s
    )  # fmt: skip


async def _may_be_paid(work: Work, changenow: ChangeNow, host: HostWallet, asked: hops.HostPay, swap: Swap) -> bool:
    """Whether everything that is known agrees that this deposit is wanted. If not, the message has been settled."""
    if (wrong := _differs(asked, swap)) is not None:
        await _keep(work, swap, Hold.MISMATCH, wrong)
        return False
    if kept := await _kept(work, swap):
        why = f"payout {kept} was given to a person before it was paid"
        async with work.commit(rejected=why) as tx:
            await lapse_and_swap_anew(tx, swap, why)
        return False
    if not swap.direct:
        exchange = await changenow.exchange(asked.cn_api_id)
        if exchange is None:
            raise Retry(f"the exchange does not know {asked.cn_api_id} yet")
        if not await _waits_for_us(work, swap, exchange):
            return False
    if why := await wallet_limits.exceeded(work.read, swap):
        async with work.commit(rejected=why) as tx:
            await wallet_limits.ask_for(tx, swap, why)
        return False
    await _has_funds(work, host, swap)
    return True


async def _waits_for_us(work: Work, swap: Swap, exchange: Exchange) -> bool:
    status = exchange.status
    if status in TOO_LATE:
        async with work.commit(rejected=f"exchange {exchange.id} is {status}") as tx:
            await lapse_and_swap_anew(tx, swap, f"exchange {exchange.id} was {status} before it was paid")
        return False
    if status is Status.VERIFYING:
        await _keep(work, swap, Hold.VERIFYING, f"exchange {exchange.id} is verifying before it was paid")
        return False
    if status not in UNPAID:
        why = f"exchange {exchange.id} is {status}, and we have paid nothing"
        await _keep(work, swap, Hold.MISMATCH, why, State.REVIEW)
        return False
    expected = exchange.expected_from
    if exchange.payin_address != swap.payin_address or (
        expected is not None and expected != swap.amount.to_decimal()
    ):  # fmt: skip
        why = f"exchange {exchange.id} asks for another amount or address than it did when it was made"
        await _keep(work, swap, Hold.MISMATCH, why)
        return False
    return True


def _differs(asked: hops.HostPay, swap: Swap) -> str | None:
    """What the message says against what is on record; the record stands."""
    if (asked.from_currency, asked.from_network) != (ETH_TICKER, ETH_NETWORK) or swap.amount.asset != ETH:
        return f"the wallet was told to pay {asked.from_currency} on {asked.from_network}; it pays ether on ethereum"
    if asked.payin_address != swap.payin_address or asked.from_amount != swap.amount.to_decimal():
        return "the wallet was told to pay another amount or address than is on record"
    if swap.payin_extra_id is not None:
        return "the deposit address needs a memo, which ether cannot carry"
    return None


async def _has_funds(work: Work, host: HostWallet, swap: Swap) -> None:
    """Before a nonce is taken: one that cannot be paid for would hold up all that stand behind it."""
    market = await host.market(swap.amount.asset)
    flying = await wallet_store.in_flight(work.read, host.wallet.address, swap.amount.asset)
    needed = swap.amount + flying + market.fees.most
    limit = await wallet_limits.limit_of(work.read, swap.amount.asset)
    if market.balance < needed:
        _observe(market.balance, low=True)
        why = (f"the wallet {host.wallet.address} holds {market.balance} and needs {needed} for what is under way and "
               f"{swap.id}; fill it up")  # fmt: skip
        await host.note_waiting(swap, why)
        raise Held(why, FUNDS_LOOK_S)
    if swap.waits_for is not None:
        await host.note_waiting(swap, None)
    # One that fits does not make the wallet full enough for another that waits.
    below = limit is not None and market.balance < limit.low_balance
    _observe(market.balance, low=below or await wallet_store.payments_wait(work.read))


def _observe(balance: Amount, *, low: bool) -> None:
    metrics.WALLET_BALANCE.labels(balance.asset.code).set(float(balance.to_decimal()))
    metrics.WALLET_LOW.labels(balance.asset.code).set(int(low))


async def _kept(work: Work, swap: Swap) -> str | None:
    found: str | None = await work.read.fetchval(
        """
        select p.id from payouts.payouts p join payouts.shares h on h.payout_id = p.id
        where h.swap_id = $1 and p.state in ('held', 'review') limit 1
        """,
        swap.id,
    )
    return found


async def _keep(work: Work, swap: Swap, hold: Hold, why: str, as_state: State = State.HELD) -> None:
    async with work.commit(rejected=why) as tx:
        await lapse_and_keep(tx, swap, hold, why, as_state)


async def _refuse_stranger(work: Work, asked: hops.HostPay) -> None:
    """Nothing is paid that is not on record here, whoever signed the token."""
    why = f"no swap {asked.cn_api_id!r} of {asked.unique_id!r} is on record; nothing was paid"
    async with work.commit(rejected=why) as tx:
        await note(
            tx.connection, "payouts.hostpay", asked.unique_id, why, actor="payouts", severity=Severity.ERROR
        )  # fmt: skip
