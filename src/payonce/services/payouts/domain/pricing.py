"""Exact arithmetic of payouts: the fee, and the value of the remainder in ETH."""

from decimal import Decimal
from fractions import Fraction
from typing import Final

from payonce.kit.money import Amount, Rounding
from payonce.services.payouts.model import ETH

FEE_BELOW_PERCENT: Final = 100


def fee_and_rest(price: Amount, percent: Decimal) -> tuple[Amount, Amount]:
    """The remainder is rounded half to even and the fee is the difference, so that both always add up to the price."""
    rest = price.times(1 - Fraction(percent) / 100, Rounding.HALF_EVEN)
    return price - rest, rest


def market_value(
    adjusted: Amount, from_amount: Decimal, to_amount: Decimal, deposit_fee: Decimal, withdrawal_fee: Decimal
) -> Amount | None:
    """The remainder in ETH, at the estimate's rate without its two fees, rounded down to the wei.

    None if the fees exceed the amount, or less than a wei is left.
    """
    usdt_swapped = Fraction(from_amount) - Fraction(deposit_fee)
    if usdt_swapped <= 0:
        return None
    rate = (Fraction(to_amount) + Fraction(withdrawal_fee)) / usdt_swapped
    wei = Fraction(adjusted.to_decimal()) * rate * 10**ETH.exponent
    value = Amount(wei.numerator // wei.denominator, ETH)
    return value if value.minor > 0 else None
