"""Amounts and assets as people type them into a form."""

from collections.abc import Mapping
from typing import Any

from payonce.console.forms import number_of, text_of
from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import Invalid


def asset_of(given: Mapping[str, Any]) -> Asset:
    """Fields `asset` and, for one that is not well known, `decimals`."""
    code, decimals = text_of(given, "asset"), number_of(given, "decimals")
    if decimals is not None:
        return Asset(code, decimals)
    try:
        return well_known(code)
    except Invalid:
        raise Invalid(f"{code[:40]!r} is not among the well-known assets; say how many decimals it has") from None


def amount_of(given: Mapping[str, Any]) -> Amount:
    """Field `amount` in major units, a decimal text."""
    return Amount.from_decimal(text_of(given, "amount"), asset_of(given))
