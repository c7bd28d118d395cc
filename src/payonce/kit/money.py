"""Money: whole minor units of an asset, exact arithmetic, and explicit rounding."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from enum import Enum
from fractions import Fraction
from typing import Any, Final

import msgspec

from payonce.kit.outcomes import Invalid

MINOR_LIMIT: Final = 10**78
"""Absolute limit of amounts: a database column is NUMERIC(78,0)."""

EXPONENT_MAX: Final = 36
"""Twice that of the most divisible coin in use; a larger one is a misread contract."""

DIGITS_MAX: Final = 256
"""Limit of digits on either side of the decimal point: `1e999999999` expands to a gigabyte of zeros."""

Number = int | Decimal | Fraction


class Rounding(Enum):
    HALF_EVEN = "half even"
    DOWN = "down"
    """Towards zero."""
    UP = "up"
    """Away from zero."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A unit of account: its code, and the decimals of its major unit. The same code with another exponent is another
    asset: a token's exponent differs between networks, and its caller states it."""

    code: str
    exponent: int

    def __post_init__(self) -> None:
        if not isinstance(self.code, str) or not _CODE.fullmatch(self.code):
            raise Invalid(
                f"{_shown(self.code)} is not an asset code: use 1 to 32 letters, digits, dots, dashes or underscores"
            )
        if type(self.exponent) is not int or not 0 <= self.exponent <= EXPONENT_MAX:
            raise Invalid(f"the exponent of {self.code} must be a whole number from 0 to {EXPONENT_MAX}")

    def __str__(self) -> str:
        return self.code


def well_known(code: str) -> Asset:
    """The well-known asset of this code, on its own chain or in ISO 4217. Raises Invalid for others: state them as
    `Asset(code, exponent)`."""
    exponent = _EXPONENTS.get(code)
    if exponent is None:
        raise Invalid(f"{_shown(code)} is not among the well-known assets: state it as Asset(code, exponent)")
    return Asset(code, exponent)


def asset_of(currency: str) -> Asset:
    """The ISO 4217 currency with its decimals: two for AED, three for KWD, none for JPY."""
    if not isinstance(currency, str) or currency not in CURRENCIES:
        raise Invalid(f"{_shown(currency)} is not a currency of ISO 4217: write its three capital letters, such as AED")
    return well_known(currency)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of minor units of an asset. Ordered and added only within one asset."""

    minor: int
    asset: Asset

    def __post_init__(self) -> None:
        # `type`, not `isinstance`: bool is a subclass of int.
        if type(self.minor) is not int:
            raise TypeError(
                f"an amount is a whole number of minor units, not {type(self.minor).__name__}: "
                "use Amount.from_decimal with text or Decimal"
            )
        if not -MINOR_LIMIT < self.minor < MINOR_LIMIT:
            raise Invalid(f"the amount has more than 78 digits in minor units of {self.asset}")

    @staticmethod
    def zero(asset: Asset) -> "Amount":
        return Amount(0, asset)

    @staticmethod
    def total(amounts: Iterable["Amount"], asset: Asset) -> "Amount":
        """The sum; zero of the asset for no amounts."""
        return sum(amounts, start=Amount(0, asset))

    @staticmethod
    def from_decimal(value: str | int | Decimal, asset: Asset) -> "Amount":
        """From major units, exactly. Raises Invalid for more decimals than the asset has, instead of rounding."""
        minor = _fraction(_decimal(value)) * 10**asset.exponent
        if minor.denominator != 1:
            raise Invalid(f"{_shown(value)} has more than the {asset.exponent} decimals of {asset}")
        return Amount(minor.numerator, asset)

    @staticmethod
    def from_minor(value: str | int, asset: Asset) -> "Amount":
        """From minor units, as a number or its text."""
        if isinstance(value, str):
            if not _WHOLE.fullmatch(value):
                raise Invalid(f"{_shown(value)} is not a whole number of minor units of {asset}")
            value = int(value)
        return Amount(value, asset)

    def to_decimal(self) -> Decimal:
        """Major units. Built from text: arithmetic would round to the 28 digits of the decimal context."""
        return Decimal(f"{self.minor}E{-self.asset.exponent}")

    def to_text(self) -> str:
        """Major units with all decimals of the asset; for JSON, whose numbers lose digits."""
        return format(self.to_decimal(), "f")

    def to_minor_text(self) -> str:
        """Minor units as text; the other form for JSON."""
        return str(self.minor)

    def __str__(self) -> str:
        return f"{self.to_text()} {self.asset}"

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.minor + self._minor_of(other, "add"), self.asset)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.minor - self._minor_of(other, "subtract"), self.asset)

    def __neg__(self) -> "Amount":
        return Amount(-self.minor, self.asset)

    def __abs__(self) -> "Amount":
        return Amount(abs(self.minor), self.asset)

    def __mul__(self, count: int) -> "Amount":
        if type(count) is not int:
            raise TypeError(f"* takes a whole number, not {type(count).__name__}: use times(ratio, rounding)")
        return Amount(self.minor * count, self.asset)

    __rmul__ = __mul__

    def __lt__(self, other: "Amount") -> bool:
        return self.minor < self._minor_of(other, "compare")

    def __le__(self, other: "Amount") -> bool:
        return self.minor <= self._minor_of(other, "compare")

    def __gt__(self, other: "Amount") -> bool:
        return self.minor > self._minor_of(other, "compare")

    def __ge__(self, other: "Amount") -> bool:
        return self.minor >= self._minor_of(other, "compare")

    def __bool__(self) -> bool:
        return self.minor != 0

    def times(self, ratio: Number, rounding: Rounding) -> "Amount":
        return Amount(_rounded(self.minor * _ratio(ratio), rounding), self.asset)

    def split(self, weights: Sequence[Number]) -> tuple["Amount", ...]:
        """Splits into shares in proportion to the weights, which add up to the amount: largest remainder first, ties to
        the earlier share."""
        ratios = [_ratio(weight) for weight in weights]
        whole = sum(ratios)
        if any(ratio < 0 for ratio in ratios) or whole == 0:
            raise Invalid("the weights of a split must not be negative, nor all zero")
        sign = -1 if self.minor < 0 else 1
        exact = [abs(self.minor) * ratio / whole for ratio in ratios]
        shares = [share.numerator // share.denominator for share in exact]
        left = abs(self.minor) - sum(shares)
        by_remainder = sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])
        for index in by_remainder[:left]:
            shares[index] += 1
        return tuple(Amount(sign * share, self.asset) for share in shares)

    def _minor_of(self, other: "Amount", verb: str) -> int:
        if not isinstance(other, Amount):
            raise TypeError(f"cannot {verb} an amount of {self.asset} and {type(other).__name__}")
        if other.asset != self.asset:
            raise Invalid(f"cannot {verb} {_full_name(self.asset)} and {_full_name(other.asset)}: convert one first")
        return other.minor


def loads_exact(document: bytes | str) -> Any:
    """Decodes JSON with whole numbers as int and others as Decimal, without binary fractions."""
    try:
        return _EXACT.decode(document)
    except (msgspec.DecodeError, UnicodeError, ArithmeticError, RecursionError, ValueError) as problem:
        # The parser's message may quote the document; its position is enough.
        place = re.search(r"byte \d+", str(problem))
        raise Invalid(f"the text is not usable JSON{f' at {place[0]}' if place else ''}") from None


def render(amount: Amount, locale: str = "en") -> str:
    """Formats an amount for display: in the locale's style if babel is installed, with the code, since `$` names many
    currencies."""
    text = amount.to_text()
    if amount.asset.exponent > _ALWAYS_SHOWN_DECIMALS:
        whole, decimals = text.split(".")
        text = f"{whole}.{decimals.rstrip('0').ljust(_SHORTEST_DECIMALS, '0')}"
    try:
        from babel.core import UnknownLocaleError
        from babel.numbers import format_decimal
    except ImportError:
        return f"{text}\N{NO-BREAK SPACE}{amount.asset}"
    decimals_shown = len(text.partition(".")[2])
    pattern = "#,##0" + ("." + "0" * decimals_shown if decimals_shown else "")
    try:
        with localcontext(Context(prec=DIGITS_MAX)):
            number = format_decimal(Decimal(text), pattern, locale=locale.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        raise Invalid(f"{_shown(locale)} is not a known locale, such as en or de_CH") from None
    return f"{number}\N{NO-BREAK SPACE}{amount.asset}"


_CODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_PLAIN: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d{1,78}", re.ASCII)
_EXACT: Final = msgspec.json.Decoder(float_hook=Decimal)
_SHOWN_MAX_CHARS: Final = 80
# Up to four decimals are always shown in full; eighteen zeros are not.
_ALWAYS_SHOWN_DECIMALS: Final = 4
_SHORTEST_DECIMALS: Final = 2

# From ISO 4217: CLDR shows fewer digits for some currencies, less than a customer was charged.
_CURRENCIES_BY_EXPONENT: Final = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW "
    "CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF "
    "IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK "
    "MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP "
    "SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG "
    "YER ZAR ZMW ZWG",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_COINS_BY_EXPONENT: Final = {
    6: "TRX USDC USDT XRP",
    8: "BCH BTC DOGE LTC",
    9: "SOL TON",
    12: "XMR",
    18: "BNB DAI ETH",
}
_EXPONENTS: Final = {
    code: exponent
    for table in (_CURRENCIES_BY_EXPONENT, _COINS_BY_EXPONENT)
    for exponent, codes in table.items()
    for code in codes.split()
}
CURRENCIES: Final = frozenset(code for codes in _CURRENCIES_BY_EXPONENT.values() for code in codes.split())
WELL_KNOWN_CODES: Final = frozenset(_EXPONENTS)


def _decimal(value: str | int | Decimal) -> Decimal:
    if isinstance(value, str):
        if len(value) > DIGITS_MAX or not _PLAIN.fullmatch(value):
            raise Invalid(f"{_shown(value)} is not a decimal number such as 12.50")
        return Decimal(value)
    if type(value) is int and abs(value) < MINOR_LIMIT:
        return Decimal(value)
    if isinstance(value, Decimal):
        return value
    if type(value) is int:
        raise Invalid("the amount has more than 78 digits")
    raise TypeError(f"money is never made from {type(value).__name__}: use text, a whole number or Decimal")


def _ratio(value: Number) -> Fraction:
    if type(value) is int or isinstance(value, Fraction):
        return Fraction(value)
    if isinstance(value, Decimal):
        return _fraction(value)
    raise TypeError(f"a ratio is never {type(value).__name__}: use a whole number, Decimal or Fraction")


def _fraction(value: Decimal) -> Fraction:
    """Raises Invalid for NaN and infinity, and for exponents that expand to more digits than any amount has."""
    if not value.is_finite():
        raise Invalid(f"{_shown(value)} is not a number")
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -DIGITS_MAX or value.adjusted() > DIGITS_MAX:
        raise Invalid(f"{_shown(value)} has more than {DIGITS_MAX} digits on one side of the point")
    return Fraction(value)


def _rounded(exact: Fraction, rounding: Rounding) -> int:
    match rounding:
        case Rounding.HALF_EVEN:
            return round(exact)
        case Rounding.DOWN | Rounding.UP:
            whole, left = divmod(abs(exact.numerator), exact.denominator)
            whole += rounding is Rounding.UP and left > 0
            return -whole if exact < 0 else whole
        case _:
            raise TypeError("the rounding must be Rounding.HALF_EVEN, DOWN or UP")


def _full_name(asset: Asset) -> str:
    return f"{asset.code} of {asset.exponent} decimals"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}…")
