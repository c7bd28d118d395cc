"""The simulated exchange's currencies, fixed prices and fees, and quotes by exact arithmetic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from typing import Final

from payonce.kit.money import Asset
from payonce.vendors.changenow.port import Pair

EXACT: Final = Context(prec=60, rounding=ROUND_DOWN)
"""More digits than any product here has; quotients are truncated, never rounded up."""

_EVM: Final = r"0x[0-9a-fA-F]{40}"
_BASE58: Final = "[1-9A-HJ-NP-Za-km-z]"
ADDRESSES: Final[Mapping[str, str]] = {
    "eth": _EVM,
    "bsc": _EVM,
    "btc": rf"(bc1q[a-z0-9]{{19,69}}|[13]{_BASE58}{{25,34}})",
    "ltc": rf"(ltc1[a-z0-9]{{20,70}}|[LM3]{_BASE58}{{25,34}})",
    "doge": rf"D{_BASE58}{{25,34}}",
    "trx": rf"T{_BASE58}{{33}}",
    "sol": rf"{_BASE58}{{32,44}}",
    "ton": r"[A-Za-z0-9_-]{48}",
    "xrp": rf"r{_BASE58}{{24,34}}",
    "xlm": r"G[A-Z2-7]{55}",
    "xmr": rf"[48]{_BASE58}{{94}}",
}
"""By network, the format of addresses; the vendor also verifies checksums, and pays no Taproot addresses."""


@dataclass(frozen=True)
class Listing:
    ticker: str
    network: str
    name: str
    decimals: int
    price: Decimal
    """Of one, in USDT."""
    fee: Decimal
    """Of a deposit or a withdrawal, in the currency itself."""
    least: Decimal
    """That is taken at once."""
    most: Decimal | None = None
    has_extra_id: bool = False

    @property
    def asset(self) -> Asset:
        return Asset(f"{self.ticker}.{self.network}".upper(), self.decimals)


@dataclass(frozen=True)
class Quote:
    from_amount: Decimal
    to_amount: Decimal
    deposit_fee: Decimal
    withdrawal_fee: Decimal

    @property
    def gross(self) -> Decimal:
        """What the deposit buys before the withdrawal is paid for."""
        return EXACT.add(self.to_amount, self.withdrawal_fee)


def _listing(
    place: str, name: str, decimals: int, price: str, fee: str, least: str, most: str | None = None, memo: bool = False
) -> Listing:
    ticker, network = place.split("/")
    limit = None if most is None else Decimal(most)
    return Listing(ticker, network, name, decimals, Decimal(price), Decimal(fee), Decimal(least), limit, memo)


LISTINGS: Final[Mapping[tuple[str, str], Listing]] = {
    (each.ticker, each.network): each
    for each in (
        _listing("usdt/eth", "Tether (ERC20)", 6, "1", "0.5", "5", "500000"),
        _listing("usdt/trx", "Tether (TRC20)", 6, "1", "1", "5", "500000"),
        _listing("usdt/bsc", "Tether (BEP20)", 18, "1", "0.25", "5", "500000"),
        _listing("usdc/eth", "USD Coin", 6, "1", "0.5", "5", "500000"),
        _listing("eth/eth", "Ethereum", 18, "2500", "0.0005", "0.002", "200"),
        _listing("bnb/bsc", "BNB", 18, "625", "0.0005", "0.008"),
        _listing("btc/btc", "Bitcoin", 8, "62500", "0.00002", "0.0001", "8"),
        _listing("ltc/ltc", "Litecoin", 8, "80", "0.0005", "0.06"),
        _listing("doge/doge", "Dogecoin", 8, "0.125", "1", "40"),
        _listing("trx/trx", "Tron", 6, "0.125", "1", "40"),
        _listing("sol/sol", "Solana", 9, "160", "0.0001", "0.03"),
        _listing("ton/ton", "Toncoin", 9, "5", "0.02", "1", memo=True),
        _listing("xrp/xrp", "Ripple", 6, "0.5", "0.1", "10", memo=True),
        _listing("xlm/xlm", "Stellar", 7, "0.1", "0.1", "50", memo=True),
        _listing("xmr/xmr", "Monero", 12, "160", "0.0002", "0.03"),
    )
}


def listing(ticker: str, network: str) -> Listing | None:
    """A currency without a network is the one of its own chain."""
    place = (ticker.lower(), (network or ticker).lower())
    return LISTINGS.get(place)


def quote(given: Listing, got: Listing, from_amount: Decimal) -> Quote:
    """(from - deposit fee) x ratio of prices, cut to the decimals of what is got, less the withdrawal fee; never below
    zero."""
    left = EXACT.subtract(from_amount, given.fee)
    bought = EXACT.divide(EXACT.multiply(left, given.price), got.price)
    gross = bought.quantize(Decimal((0, (1,), -got.decimals)), context=EXACT)
    to_amount = max(EXACT.subtract(gross, got.fee), Decimal(0))
    return Quote(from_amount, to_amount, given.fee, got.fee)


def is_address(network: str, address: str) -> bool:
    shape = ADDRESSES.get(network.lower())
    return shape is not None and re.fullmatch(shape, address) is not None


def both(pair: Pair) -> tuple[Listing, Listing] | None:
    given = listing(pair.from_currency, pair.from_network)
    got = listing(pair.to_currency, pair.to_network)
    return None if given is None or got is None else (given, got)
