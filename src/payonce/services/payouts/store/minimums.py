"""What is paid at least: what the exchange takes or, where the wallet pays the client itself, what is worth its gas."""

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
"""Pairs that one page asks about: each takes a turn of the budget that payouts live on."""
ASK_LIMIT_S: Final = 3.0
"""A page does not wait for an exchange that is away."""

GAS_MULTIPLE: Final = 20
"""A payment to the client is this many times what its gas costs at most now: no more than a twentieth goes to the
network. The exchange has a minimum of its own."""

log = get_logger(__name__)

Coin = tuple[str, str]
"""A currency and its network."""


async def payment_range(changenow: ChangeNow, host: HostWallet | None, coin: Coin) -> Range:
    """How much ETH one payment for this coin may be. Raises ExchangeRefused as the exchange does, which has no such
    pair where a process without a wallet asks for ETH."""
    if host is not None and coin == (ETH_TICKER, ETH_NETWORK):
        return Range((await least_direct_payment(host)).to_decimal(), None)
    return await changenow.range(Pair(ETH_TICKER, ETH_NETWORK, *coin))


async def least_direct_payment(host: HostWallet) -> Amount:
    """What the wallet pays a client at least, where nothing has to be changed."""
    return (await host.market(ETH)).fees.most * GAS_MULTIPLE


async def minimums(resources: Sequence[object], coins: Iterable[Coin]) -> Mapping[Coin, Amount]:
    """By coin, asked now; without those that nobody here may ask about, or that were not answered in time."""
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
