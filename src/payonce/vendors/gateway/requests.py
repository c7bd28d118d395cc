"""Parsing of requests to the simulated gateway; invalid ones are denied with its error codes."""

import hashlib
import re
from contextlib import suppress
from typing import Any, Final

import msgspec

from payonce.kit.money import WELL_KNOWN_CODES, loads_exact, well_known
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import Denied
from payonce.vendors.gateway.port import (
    AMOUNT_MAX,
    METADATA_MAX,
    METADATA_MAX_CHARS,
    PAGE_MAX,
    REFERENCE_MAX_CHARS,
    RefusalCode,
)

EXPONENT_MAX: Final = 3
"""Codes with more decimals are coins or units of account, which cards cannot pay."""
_LINE: Final = re.compile(r"txn_([0-9]{1,12})", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


def document_in(body: bytes) -> dict[str, Any]:
    try:
        document = loads_exact(body)
    except Invalid:
        raise bad("The body is not JSON.") from None
    if not isinstance(document, dict):
        raise bad("The body is not an object.")
    return document


def digest_of(path: str, body: bytes) -> str:
    """A digest of the request that ignores the order of fields and compares numbers by their digits."""
    with suppress(Invalid):
        body = msgspec.json.encode(loads_exact(body), order="sorted")
    return hashlib.sha256(path.encode() + b"\x00" + body).hexdigest()


def amount_in(document: dict[str, Any]) -> int:
    amount = document.get("amount")
    if type(amount) is not int or not 0 < amount <= AMOUNT_MAX:
        raise bad("An amount is a whole number of minor units above zero.")
    return amount


def currency_in(document: dict[str, Any]) -> str:
    code = document.get("currency")
    if not isinstance(code, str) or code not in WELL_KNOWN_CODES or well_known(code).exponent > EXPONENT_MAX:
        raise bad("The currency is not supported.")
    return code


def reference_in(document: dict[str, Any]) -> str:
    reference = document.get("reference")
    if not isinstance(reference, str) or not 1 <= len(reference) <= REFERENCE_MAX_CHARS:
        raise bad(f"A reference has 1 to {REFERENCE_MAX_CHARS} characters.")
    return reference


def metadata_in(document: dict[str, Any]) -> dict[str, str]:
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, dict) or len(metadata) > METADATA_MAX:
        raise bad(f"metadata has up to {METADATA_MAX} fields.")
    if any(not isinstance(value, str) or len(value) > METADATA_MAX_CHARS for value in metadata.values()):
        raise bad(f"A field of metadata is a text of up to {METADATA_MAX_CHARS} characters.")
    return metadata


def limit_in(text: str | None) -> int:
    if text is None:
        return PAGE_MAX
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= PAGE_MAX:
        raise bad(f"limit is 1 to {PAGE_MAX}.")
    return int(text)


def line_in(text: str | None) -> int:
    """The number of the line that precedes the page."""
    if not text:
        return 0
    match = _LINE.fullmatch(text)
    if match is None:
        raise bad("after is the id of a balance transaction.")
    return int(match[1])


def bad(text: str) -> Denied:
    return Denied(RefusalCode.BAD_REQUEST, text)
