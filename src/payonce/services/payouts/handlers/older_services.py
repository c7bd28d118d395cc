"""Tasks of older services, whose tokens (version 1) name no message on our record.

An estimate's request or response has all fields of a payout, so the payout is adopted from it. A token of a later hop
refers to the older service's own record and is refused: the task stays with its sender, and after a day the message is
parked with the reason. No such task succeeds without effect.
"""

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, NoReturn

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.engine.outbox import end_durable
from payonce.kit.log import get_logger
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.services.payouts.api import webhook
from payonce.services.payouts.domain.addresses import in_one_spelling, key_of, wrong_with
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.handlers.payloads import number_of
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import USDT, Hold, Payout, State, payout_from
from payonce.services.payouts.policies import ESTIMATE
from payonce.services.payouts.store import payouts
from payonce.services.payouts.store.orders import receive
from payonce.vendors.changenow.port import same_amount

CLOCKS_APART_S: Final = 300
"""How far an older service's clock may be behind ours, so that a response may appear older than its request."""

LEAST: Final = Decimal("0.000001")
"""The smallest unit of USDT."""
ADDRESS_MAX_CHARS: Final = 200
"""The maximum length of the address column."""

log = get_logger(__name__)


def is_from_older_service(work: Work) -> bool:
    return hops.OLDER in work.message.payload


def refuse(work: Work, reason: str) -> NoReturn:
    """Leaves the task with its sender by raising Retry."""
    log.error("older_service_refused", queue=work.message.queue, message_id=str(work.message.id), reason=reason)
    raise Retry(reason)


async def adopt_payout(
    work: Work, config: PayoutConfig, told: hops.EstimateRequest | hops.EstimateResponse, usdt: Decimal
) -> None:
    """A payout for what an older service handed over. Its message is known by the task that brought it, so the same
    task is one payout; what looks like another one of the last day goes to review."""
    asked = _order_from(work, told, usdt)
    wrong = _wrong_address(config, asked)
    async with work.commit() as tx:
        payout = (await receive(tx, asked, str(work.message.id), estimate=wrong is None)).payout
        if wrong is not None and payout.state is State.RECEIVED:
            await payouts.hold_payout(tx, payout, Hold.BAD_ADDRESS, wrong)
    log.info("payout_taken_up", payout=payout.id, queue=work.message.queue, amount=str(payout.adjusted))


async def find_requested_payout(work: Work, told: hops.EstimateResponse) -> Payout | None:
    """The payout of an older estimator's response, found by all fields of its token: the oldest unpriced one, otherwise
    the newest. None if it cannot answer a request of ours, so that the older service requested it itself."""
    if work.message.payload.get(hops.OLDER) != hops.EMIT:
        return None
    rows = await work.read.fetch(
        """
        select * from payouts.payouts
        where user_id = $1 and closed_channel_id = $2 and payouts.address_key(wallet_address) = $3
          and payout_currency = $4 and payout_network = $5
          and created_at < to_timestamp($6::float8)
        order by state <> 'received', case when state = 'received' then created_at end, created_at desc
        """,
        told.user_id,
        told.closed_channel_id,
        key_of(told.wallet_address),
        told.payout_currency.lower(),
        told.payout_network.lower(),
        number_of(work, hops.MADE_AT, 0) + CLOCKS_APART_S,
    )
    found = (payout_from(row) for row in rows)
    return next((each for each in found if same_amount(told.from_amount_usdt, each.adjusted.to_decimal())), None)


async def end_requests(tx: Tx, work: Work, payout: Payout) -> None:
    """Ends our request, which an older estimator answers without settling its message; otherwise it would be repeated
    every minute."""
    if is_from_older_service(work):
        await end_durable(tx, ESTIMATE.queue, payout.id, "an older service has answered it")


def _order_from(work: Work, told: hops.EstimateRequest | hops.EstimateResponse, usdt: Decimal) -> webhook.PayoutOrder:
    """The order of a token. The older service has deducted its fee, so the token's amount is the whole price."""
    # Checked before rounding, which fails for numbers with too many digits.
    if not LEAST <= usdt <= webhook.PRICE_MAX.to_decimal():
        refuse(
            work, f"the token's amount is {usdt:f} USDT; it must be at least {LEAST} and at most {webhook.PRICE_MAX}"
        )
    price = Amount.from_decimal(usdt.quantize(LEAST, ROUND_HALF_EVEN), USDT)
    if not 1 <= len(told.wallet_address) <= ADDRESS_MAX_CHARS:
        refuse(
            work,
            f"the token's wallet_address has {len(told.wallet_address)} characters; it must have 1 to "
            f"{ADDRESS_MAX_CHARS}",
        )
    try:
        currency, network = (
            webhook.ticker(name, getattr(told, name)) for name in ("payout_currency", "payout_network")
        )
        channel = webhook.channel(told.closed_channel_id)
    except webhook.WebhookRefused as refusal:
        refuse(work, f"the token cannot become a payout: {refusal}")
    return webhook.PayoutOrder(
        payment_id=None,
        user_id=told.user_id,
        closed_channel_id=channel,
        wallet_address=in_one_spelling(network, told.wallet_address),
        extra_id=None,
        says_extra_id=False,
        payout_currency=currency,
        payout_network=network,
        price=price,
        fee=Amount.zero(USDT),
        adjusted=price,
    )


def _wrong_address(config: PayoutConfig, asked: webhook.PayoutOrder) -> str | None:
    if (wrong := wrong_with(asked.payout_network, asked.wallet_address)) is not None:
        return f"wallet_address {wrong}"
    if key_of(asked.wallet_address) == key_of(config.host_wallet):
        return "wallet_address is the wallet that pays, which cannot pay itself"
    return None
