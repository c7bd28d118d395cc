"""The role that estimates payouts: one call to the exchange per attempt, without sleeping."""

from decimal import Decimal
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Unprocessable
from payonce.services.payouts.domain.addresses import key_of
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.handlers import next_messages, older_services, refused_key
from payonce.services.payouts.handlers.payloads import fields_of, number_of
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER, USDT_TICKER, Hold, Payout, State
from payonce.services.payouts.policies import ESTIMATE
from payonce.services.payouts.store import currencies, payouts
from payonce.vendors.changenow.port import ChangeNow, Code, Estimate, ExchangeRefused, Pair

PRICED_PAIR: Final = Pair(USDT_TICKER, ETH_NETWORK, ETH_TICKER, ETH_NETWORK)
TRIES_OF_AN_INACTIVE_PAIR: Final = 5
"""A minute apart; after that an operator decides."""
TRY_AGAIN_S: Final = 60.0
REFUSALS: Final = "refusals"
"""Payload key: the number of refusals by the exchange, over this message and its predecessors."""


@handles(ESTIMATE)
async def price_payout(work: Work, changenow: ChangeNow, config: PayoutConfig) -> None:
    """Fetch the rate and send it to the orchestrator. Before that, check the currency and the memo of payouts accepted
    before there was a currency list: later steps do not check them."""
    asked = fields_of(work, hops.EstimateRequest)
    if older_services.is_from_older_service(work):
        await older_services.adopt_payout(work, config, asked, asked.adjusted_amount_usdt)
        return
    payout, asked_at_s = await _payout(work)
    if payout.state is not State.RECEIVED:
        return
    try:
        if await _is_held_or_requeued(work, payout, changenow, config):
            return
        found = await estimate_rate(changenow, asked.adjusted_amount_usdt)
    except ExchangeRefused as refusal:
        await _handle_refusal(work, payout, refusal)
        return
    async with work.commit() as tx:
        put = number_of(work, "put", next_messages.FIRST)
        await next_messages.send_estimated(tx, asked, payout, put, found, asked_at_s)
        tx.log("vendor_estimated", payout=payout.id, usdt=str(found.from_amount), eth=str(found.to_amount))


async def _payout(work: Work) -> tuple[Payout, int]:
    """The payout and the time of the read, in seconds."""
    found = await payouts.find_now(work.read, work.message.correlation_id or "")
    if found is None:
        raise Unprocessable(f"there is no payout {work.message.correlation_id!r} to price")
    return found


async def _is_held_or_requeued(work: Work, payout: Payout, changenow: ChangeNow, config: PayoutConfig) -> bool:
    """Whether the message is settled: the payout was held, or a new message was sent after fetching the currency list.
    An attempt makes only one call to the exchange."""
    if key_of(payout.wallet_address) == key_of(config.host_wallet):
        # Intake refuses this address, but an operator may have entered it before anything was priced.
        reason = "wallet_address is the wallet that pays, which cannot pay itself"
        async with work.commit(rejected=reason) as tx:
            await payouts.hold_payout(tx, payout, Hold.BAD_ADDRESS, reason)
        return True
    try:
        wrong = await currencies.find_currency_problem(work.read, payout)
    except currencies.NoCurrencyList:
        found = await currencies.fetch_currencies(changenow)
        async with work.commit() as tx:
            await currencies.replace_currencies(tx, found)
            await next_messages.send_estimate(tx, payout, await payouts.next_put(tx, payout.id))
        return True
    if wrong is None:
        return False
    async with work.commit(rejected=wrong.reason) as tx:
        await payouts.hold_payout(tx, payout, wrong.hold, wrong.reason)
    return True


async def estimate_rate(changenow: ChangeNow, amount: Decimal) -> Estimate:
    """The exchange's rate. No USDT is ever sent, so an amount outside the range is priced at the nearest amount in
    range; whether the payout itself is too small shows with its swap."""
    try:
        return await changenow.estimate(PRICED_PAIR, amount)
    except ExchangeRefused as refusal:
        if refusal.code not in (Code.TOO_SMALL, Code.TOO_LARGE, Code.PAIR_INACTIVE):
            raise
        taken = await changenow.range(PRICED_PAIR)
        nearest = max(amount, taken.min_amount)
        if taken.max_amount is not None:
            nearest = min(nearest, taken.max_amount)
        if nearest == amount:
            raise
        return await changenow.estimate(PRICED_PAIR, nearest)


async def _handle_refusal(work: Work, payout: Payout, refusal: ExchangeRefused) -> None:
    if refusal.code is Code.NOT_ALLOWED:
        await refused_key.pause_and_requeue(work, refusal.reason)
        return
    # All other refusals concern the pair or the amount and may be temporary.
    refusals = number_of(work, REFUSALS, 0) + 1
    async with work.commit(rejected=refusal.reason) as tx:
        if refusals < TRIES_OF_AN_INACTIVE_PAIR:
            await _send_again(tx, work, refusals)
        else:
            hold = Hold.PAIR_INACTIVE if refusal.code is Code.PAIR_INACTIVE else Hold.REFUSED
            await payouts.hold_payout(tx, payout, hold, f"the exchange refuses a rate: {refusal.reason}")


async def _send_again(tx: Tx, work: Work, refusals: int) -> None:
    """Refusals are counted in the payload: the message's attempts also count outages, after which a single refusal
    would be final."""
    message = work.message
    await tx.send(
        ESTIMATE,
        {**message.payload, REFUSALS: refusals},
        key=f"refused:{message.id}",
        correlation_id=message.correlation_id,
        lane=message.lane,
        delay_s=TRY_AGAIN_S,
    )
