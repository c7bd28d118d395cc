"""The gateway's documents as they come over the wire, and what they are in the port's words.

What a document has beyond these fields is ignored; one without them, or with an amount, a status or a moment that is
none, is unusable: `Unknown`, whose reason completes "the answer …".
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from payonce.kit.outcomes import Unknown
from payonce.kit.redact import redact
from payonce.vendors.gateway.port import (
    AMOUNT_MAX,
    CardToken,
    Charge,
    ChargeOrder,
    ChargeStatus,
    LineKind,
    Refund,
    RefundOrder,
    StatementLine,
)

ID_MAX_CHARS: Final = 128
TEXT_MAX_CHARS: Final = 256
MOMENT_MAX_S: Final = 32_503_680_000
"""The year 3000: milliseconds taken for seconds lie beyond it."""
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{ID_MAX_CHARS}}}", re.ASCII)
_LAST4: Final = re.compile(r"[0-9]{4}", re.ASCII)

Shape = TypeVar("Shape")


class WireCharge(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    amount: int
    amount_captured: int
    amount_refunded: int
    currency: str
    payment_method: str
    reference: str
    created: int
    failure_code: str | None = None
    failure_message: str | None = None


class WireRefund(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    charge: str
    amount: int
    currency: str
    reference: str
    created: int


class WireToken(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int


class WireLine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str
    source: str
    reference: str
    amount: int
    currency: str
    created: int


class WireCharges(msgspec.Struct, frozen=True):
    data: list[WireCharge]
    has_more: bool


class WireRefunds(msgspec.Struct, frozen=True):
    data: list[WireRefund]
    has_more: bool


class WireLines(msgspec.Struct, frozen=True):
    data: list[WireLine]
    has_more: bool


class WireError(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str = ""
    charge: str | None = None
    reference: str | None = None


class WireErrors(msgspec.Struct, frozen=True):
    error: WireError


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise Unknown(f"has another form than the gateway's: {redact(str(problem))[:TEXT_MAX_CHARS]}") from None


def charge(document: WireCharge) -> Charge:
    status = _word(document.status, ChargeStatus, "status")
    captured, refunded = document.amount_captured, document.amount_refunded
    if not 0 < document.amount <= AMOUNT_MAX or not 0 <= refunded <= captured:
        raise Unknown("has amounts that no charge has")
    if captured != (document.amount if status is ChargeStatus.SUCCEEDED else 0):
        raise Unknown("has a captured amount that does not fit its status")
    return Charge(
        _id(document.id),
        status,
        document.amount,
        captured,
        refunded,
        _currency(document.currency),
        document.reference,
        document.payment_method,
        _moment(document.created),
        _short(document.failure_code),
        _short(document.failure_message),
    )


def charged(document: WireCharge, order: ChargeOrder) -> Charge:
    """The answer to an order, believed when it is about that order."""
    found = charge(document)
    if found.status is not ChargeStatus.SUCCEEDED:
        raise Unknown("calls a charge created that failed")
    said = (found.amount, found.currency, found.payment_method, found.reference)
    if said != (order.amount, order.currency, order.payment_method, order.reference):
        raise Unknown("is about another charge than the one that was ordered")
    return found


def refund(document: WireRefund) -> Refund:
    if not 0 < document.amount <= AMOUNT_MAX:
        raise Unknown("has an amount that no refund has")
    return Refund(
        _id(document.id),
        _id(document.charge),
        document.amount,
        _currency(document.currency),
        document.reference,
        _moment(document.created),
    )


def refunded(document: WireRefund, order: RefundOrder) -> Refund:
    found = refund(document)
    said = (found.charge, found.amount, found.currency, found.reference)
    if said != (order.charge, order.amount, order.currency, order.reference):
        raise Unknown("is about another refund than the one that was ordered")
    return found


def token(document: WireToken, token_id: str) -> CardToken:
    if document.id != token_id:
        raise Unknown("is about another token than the one that was asked for")
    if not _LAST4.fullmatch(document.last4) or not 1 <= document.exp_month <= 12 or document.exp_year > 9_999:
        raise Unknown("describes a card that cannot be")
    brand = _short(document.brand) or "unknown"
    return CardToken(document.id, brand, document.last4, document.exp_month, document.exp_year)


def line(document: WireLine) -> StatementLine:
    kind = _word(document.type, LineKind, "type")
    amount = document.amount if kind is LineKind.CHARGE else -document.amount
    if not 0 < amount <= AMOUNT_MAX:
        raise Unknown("has a line whose amount does not fit its type")
    return StatementLine(
        _id(document.id),
        kind,
        _id(document.source),
        document.reference,
        document.amount,
        _currency(document.currency),
        _moment(document.created),
    )


def metadata(order: ChargeOrder) -> Mapping[str, str]:
    """In one order: a store may hand the fields back in another, and the same key wants the same body."""
    return dict(sorted(order.metadata.items()))


Word = TypeVar("Word", ChargeStatus, LineKind)


def _word(text: str, words: type[Word], what: str) -> Word:
    try:
        return words(text)
    except ValueError:
        raise Unknown(f"has the {what} {redact(text)[:40]!r}, which payonce does not know") from None


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise Unknown("has an id that is none")
    return text


def _currency(code: str) -> str:
    if not _CURRENCY.fullmatch(code):
        raise Unknown("has a currency that is no code of three letters")
    return code


def _moment(seconds: int) -> datetime:
    if not 0 <= seconds <= MOMENT_MAX_S:
        raise Unknown("has a moment that is none")
    return datetime.fromtimestamp(seconds, UTC)


def _short(text: str | None) -> str | None:
    """A message for operators, redacted and truncated."""
    return None if text is None else redact(" ".join(text.split()))[:TEXT_MAX_CHARS]
