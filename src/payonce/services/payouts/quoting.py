"""What a payout would come to if it were ordered now. Nothing is written and nothing is promised."""

from typing import Any

from payonce.kit.money import Amount
from payonce.services.payouts.estimator import estimate_rate
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER
from payonce.services.payouts.pricing import fee_and_rest, market_value
from payonce.services.payouts.terms import Terms
from payonce.vendors.changenow.port import ChangeNow, Pair, Range


async def quote(changenow: ChangeNow, terms: Terms, price: Amount, currency: str, network: str) -> dict[str, Any]:
    fee, adjusted = fee_and_rest(price, terms.fee_percent)
    found = await estimate_rate(changenow, adjusted.to_decimal())
    value = market_value(adjusted, found.from_amount, found.to_amount, found.deposit_fee, found.withdrawal_fee)
    direct = (currency, network) == (ETH_TICKER, ETH_NETWORK)
    pair = Pair(ETH_TICKER, ETH_NETWORK, currency, network)
    taken = None if direct else await changenow.range(pair)
    accumulates = value is not None and taken is not None and value.to_decimal() < taken.min_amount
    return {
        "price_usdt": price.to_text(), "fee_usdt": fee.to_text(), "adjusted_usdt": adjusted.to_text(),
        "value_eth": None if value is None else value.to_text(),
        "minimum_eth": "0" if taken is None else format(taken.min_amount, "f"), "accumulates": accumulates,
        "client_gets": None if value is None or accumulates else await _gets(changenow, pair, value, taken),
    }  # fmt: skip


async def _gets(changenow: ChangeNow, pair: Pair, value: Amount, taken: Range | None) -> str | None:
    if taken is None:
        return value.to_text()
    if taken.max_amount is not None and value.to_decimal() > taken.max_amount:
        return None
    return format((await changenow.estimate(pair, value.to_decimal())).to_amount, "f")
