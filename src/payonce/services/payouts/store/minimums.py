"""The smallest payment: the exchange's minimum or, for direct payments, a multiple of the gas."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING
from typing import Final

from payonce.kit.log import get_logger
from payonce.kit.money import Amount
from payonce.kit.outcomes import PayonceError
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH, ETH_NETWORK, ETH_TICKER
from payonce.vendors.changenow.port import ChangeNow, ExchangeRefused, Pair, Range

ASKED_MAX: Final = 10
"""Pairs that one page queries: each takes a turn of the budget that payouts share."""
ASK_LIMIT_S: Final = 3.0
"""A page does not wait for an unavailable exchange."""

GAS_MULTIPLE: Final = 20
"""A direct payment is at least this many times its maximum gas now: at most a twentieth goes to the network."""

log = get_logger(__name__)

Coin = tuple[str, str]
"""A currency and its network."""


async def payment_range(changenow: ChangeNow, host: HostWallet | None, coin: Coin) -> Range:
    """The range of ETH amounts of one payment in this coin. Raises ExchangeRefused, also for direct ETH payments in a
    process without a wallet, as the exchange has no such pair."""
    if host is not None and coin == (ETH_TICKER, ETH_NETWORK):
        return Range((await least_direct_payment(host)).to_decimal(), None)
    return await changenow.range(Pair(ETH_TICKER, ETH_NETWORK, *coin))


async def least_direct_payment(host: HostWallet) -> Amount:
    """The smallest direct payment."""
    return (await host.market(ETH)).fees.most * GAS_MULTIPLE


async def minimums(resources: Sequence[object], coins: Iterable[Coin]) -> Mapping[Coin, Amount]:
    """The present minimums by coin; without coins that cannot be queried here or were not answered in time."""
    changenow = next((each for each in resources if isinstance(each, ChangeNow)), None)
    host = next((each for each in resources if isinstance(each, HostWallet)), None)
    if changenow is None:
        return {}
    asked = list(dict.fromkeys(coins))[:ASKED_MAX]
    found = await asyncio.gather(*(_minimum(changenow, host, coin) for coin in asked))
    return {coin: least for coin, least in zip(asked, found, strict=True) if least is not None}


async def _minimum(changenow: ChangeNow, host: HostWallet | None, coin: Coin) -> Amount | None:
    try:
        async with asyncio.timeout(ASK_LIMIT_S):
            taken = await payment_range(changenow, host, coin)
    except (ExchangeRefused, PayonceError, TimeoutError) as error:
        log.warning("minimum_not_told", currency=coin[0], network=coin[1], error=str(error))
        return None
    return Amount(int((taken.min_amount * 10**ETH.exponent).to_integral_value(ROUND_CEILING)), ETH)
