"""Parsers of amounts and assets in forms."""

from collections.abc import Mapping
from typing import Any

from payonce.console.forms import number_of, text_of
from payonce.kit.money import Amount, Asset, well_known
from payonce.kit.outcomes import Invalid


def asset_of(given: Mapping[str, Any]) -> Asset:
    """Reads the fields `asset` and, for one that is not well known, `decimals`."""
    code, decimals = text_of(given, "asset"), number_of(given, "decimals")
    if decimals is not None:
        return Asset(code, decimals)
    try:
        return well_known(code)
    except Invalid:
        raise Invalid(f"{code[:40]!r} is not a well-known asset; fill in its decimals") from None


def amount_of(given: Mapping[str, Any]) -> Amount:
    """Reads the field `amount`, a decimal in major units, and the asset."""
    return Amount.from_decimal(text_of(given, "amount"), asset_of(given))
