"""Parsing of requests to the simulated exchange; invalid ones are denied with the vendor's error codes."""

import hashlib
import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import Denied, moment_on_wire
from payonce.vendors.changenow.port import REFERENCE_MAX_CHARS, Pair
from payonce.vendors.changenow.prices import Listing

PAYLOAD_FIELDS_MAX: Final = 5
AMOUNT_MAX_CHARS: Final = 80
DIGITS_MAX: Final = 40
"""On either side of the point."""


def parts(pair: Pair) -> tuple[str, str, str, str]:
    return pair.from_currency, pair.from_network, pair.to_currency, pair.to_network


def payin_address(given: Listing, exchange_id: str) -> str:
    """A deposit address, unique per exchange."""
    digest = hashlib.blake2b(f"payin {exchange_id}".encode(), digest_size=32).hexdigest()
    return f"0x{digest[:40]}" if given.network in ("eth", "bsc") else f"{given.network}{digest[:32]}"


def amount_asked(value: Any) -> Decimal:
    if isinstance(value, int | str | Decimal) and not isinstance(value, bool) and len(str(value)) <= AMOUNT_MAX_CHARS:
        try:
            amount = Decimal(value)
        except InvalidOperation:
            amount = Decimal("NaN")
        if amount.is_finite() and amount > 0 and abs(amount.adjusted()) < DIGITS_MAX:
            return amount
    raise Denied("not_valid_params", "fromAmount must be a number above 0")


def free_fields(payload: Any) -> Any:
    """The vendor's free fields: up to five, of up to 64 characters each."""
    if payload is None:
        return None
    if not isinstance(payload, dict) or len(payload) > PAYLOAD_FIELDS_MAX:
        raise Denied("not_valid_params", f"payload has up to {PAYLOAD_FIELDS_MAX} fields")
    if any(len(str(value)) > REFERENCE_MAX_CHARS for value in payload.values()):
        raise Denied("not_valid_params", f"a field of payload has up to {REFERENCE_MAX_CHARS} characters")
    return {name: str(value) for name, value in payload.items()}


def order_in(body: bytes) -> dict[str, Any]:
    try:
        order = loads_exact(body)
    except Invalid:
        raise Denied("not_valid_params", "Unexpected token in JSON") from None
    if not isinstance(order, dict):
        raise Denied("not_valid_params", "an order is an object")
    return order


def moment_or_none(text: str | None) -> datetime | None:
    return None if not text else moment_on_wire(text)


def whole_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Denied("bad_params", f"{text[:40]!r} is no whole number")
    return int(text)
