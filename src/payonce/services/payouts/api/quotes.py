"""The quote of a payout: what it would yield if ordered now. Nothing is written, and nothing is guaranteed."""

import math
from fractions import Fraction
from typing import Any

from payonce.kit.money import Amount
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest, market_value
from payonce.services.payouts.handlers.estimator import estimate_rate
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH_NETWORK, ETH_TICKER, PARTS_MAX
from payonce.services.payouts.store.minimums import GAS_MULTIPLE, payment_range
from payonce.vendors.changenow.port import ChangeNow, Pair, Range


async def quote(
    changenow: ChangeNow, host: HostWallet | None, config: PayoutConfig, price: Amount, currency: str, network: str
) -> dict[str, Any]:
    fee, adjusted = fee_and_rest(price, config.fee_percent)
    found = await estimate_rate(changenow, adjusted.to_decimal())
    value = market_value(adjusted, found.from_amount, found.to_amount, found.deposit_fee, found.withdrawal_fee)
    pair = Pair(ETH_TICKER, ETH_NETWORK, currency, network)
    direct = (currency, network) == (ETH_TICKER, ETH_NETWORK)
    taken = await payment_range(changenow, host, (currency, network))
    accumulates = value is not None and value.to_decimal() < taken.min_amount
    reason = _why_not(value, taken, f"{GAS_MULTIPLE} times its gas" if direct else "the exchange's minimum")
    return {
        "price_usdt": price.to_text(),
        "fee_usdt": fee.to_text(),
        "adjusted_usdt": adjusted.to_text(),
        "value_eth": None if value is None else value.to_text(),
        "minimum_eth": format(taken.min_amount, "f"),
        "accumulates": accumulates,
        "maximum_eth": None if taken.max_amount is None else format(taken.max_amount, "f"),
        "client_gets": None if value is None or reason else await _gets(changenow, pair, value, direct),
        "reason": reason,
    }


def _why_not(value: Amount | None, taken: Range, least: str) -> str | None:
    """Why the client's amount is unknown; None if it can be estimated."""
    if value is None:
        return "the exchange's fees exceed it: it would be held"
    if value.to_decimal() < taken.min_amount:
        return f"it is below {least}: it would accumulate until the client's total is enough"
    most = taken.max_amount
    if most is None or value.to_decimal() <= most:
        return None
    count = 0 if most <= 0 else math.ceil(Fraction(value.to_decimal()) / Fraction(most))
    if not 2 <= count <= PARTS_MAX:
        return f"it is above the exchange's maximum and would need more than {PARTS_MAX} parts: it would go to review"
    return f"it is above the exchange's maximum: it would be paid in {count} parts, each at its own rate"


async def _gets(changenow: ChangeNow, pair: Pair, value: Amount, direct: bool) -> str:
    if direct:
        return value.to_text()
    return format((await changenow.estimate(pair, value.to_decimal())).to_amount, "f")
