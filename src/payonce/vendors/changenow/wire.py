"""ChangeNOW's documents on the wire, and their conversion to the port's types.

Amounts are JSON numbers, parsed as decimals from their digits. Further fields are ignored. A document with a missing
field, or with an invalid amount or status, raises `Unknown`.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Final, TypeVar

import msgspec

from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid, Unknown
from payonce.vendors.changenow.port import (
    Currency,
    Estimate,
    Exchange,
    Order,
    Pair,
    Range,
    Status,
    Swap,
    same_address,
    same_amount,
)

DIGITS_MAX: Final = 60
"""On either side of the point, since `1e999999999` is a valid number too."""
TEXT_MAX_CHARS: Final = 256
REFERENCE: Final = "reference"
"""The field of the vendor's `payload` that is ours."""
DECIMALS_MAX: Final = 36

Shape = TypeVar("Shape")


class WirePair(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    from_currency: str
    from_network: str
    to_currency: str
    to_network: str

    @property
    def pair(self) -> Pair:
        return Pair(self.from_currency, self.from_network, self.to_currency, self.to_network)


class WireEstimate(WirePair, frozen=True, rename="camel", kw_only=True):
    from_amount: Decimal
    to_amount: Decimal
    deposit_fee: Decimal
    withdrawal_fee: Decimal
    rate_id: str | None = None
    valid_until: datetime | None = None
    transaction_speed_forecast: str | None = None
    warning_message: str | None = None


class WireRange(WirePair, frozen=True, rename="camel", kw_only=True):
    min_amount: Decimal
    max_amount: Decimal | None = None


class WireSwap(WirePair, frozen=True, rename="camel", kw_only=True):
    id: str
    from_amount: Decimal
    to_amount: Decimal
    flow: str
    type: str
    payin_address: str
    payout_address: str
    payin_extra_id: str | None = None
    payout_extra_id: str | None = None
    refund_address: str | None = None
    valid_until: datetime | None = None


class WireExchange(WirePair, frozen=True, rename="camel", kw_only=True):
    id: str
    status: str
    payin_address: str
    payout_address: str
    created_at: datetime
    updated_at: datetime
    amount_from: Decimal | None = None
    amount_to: Decimal | None = None
    expected_amount_from: Decimal | None = None
    expected_amount_to: Decimal | None = None
    payin_hash: str | None = None
    payout_hash: str | None = None
    refund_hash: str | None = None
    refund_amount: Decimal | None = None
    payload: msgspec.Raw = msgspec.Raw(b"null")


class WireSide(msgspec.Struct, frozen=True, rename="camel"):
    """One side of an exchange in the list."""

    currency: str
    address: str
    network: str = ""
    amount: Decimal | None = None
    expected_amount: Decimal | None = None
    hash: str | None = None


class WireRefund(msgspec.Struct, frozen=True):
    amount: Decimal | None = None
    hash: str | None = None


class WirePartner(msgspec.Struct, frozen=True):
    payload: msgspec.Raw = msgspec.Raw(b"null")


class WireListed(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    request_id: str
    """The same as `id` in the answer to `create`."""
    status: str
    created_at: datetime
    updated_at: datetime
    payin: WireSide
    payout: WireSide
    refund: WireRefund | None = None
    partner_info: WirePartner | None = None


class WireList(msgspec.Struct, frozen=True):
    exchanges: list[WireListed]


class WireCurrency(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    ticker: str
    network: str
    name: str
    has_external_id: bool = False
    is_extra_id_supported: bool = False
    buy: bool = True
    sell: bool = True
    decimals: int | None = None


class WireVerdict(msgspec.Struct, frozen=True):
    result: bool
    message: str | None = None


def decoded(body: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(body, type=shape)
    except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
        raise Unknown(f"has not the form of one: {problem}") from None


def estimate(wire: WireEstimate, pair: Pair, from_amount: Decimal) -> Estimate:
    _same_pair(wire.pair, pair)
    _same_amount(wire.from_amount, from_amount)
    return Estimate(
        pair,
        from_amount,
        amount(wire.to_amount, "toAmount"),
        amount(wire.deposit_fee, "depositFee"),
        amount(wire.withdrawal_fee, "withdrawalFee"),
        wire.rate_id,
        moment_or_none(wire.valid_until),
        wire.transaction_speed_forecast,
        wire.warning_message,
    )


def limits(wire: WireRange, pair: Pair) -> Range:
    _same_pair(wire.pair, pair)
    return Range(amount(wire.min_amount, "minAmount"), amount_or_none(wire.max_amount, "maxAmount"))


def swap(wire: WireSwap, order: Order) -> Swap:
    """The created exchange. Raises Unknown unless it matches the order, as money is sent to its address."""
    _same_pair(wire.pair, order.pair)
    _same_amount(wire.from_amount, order.from_amount)
    same_memo = (wire.payout_extra_id or None) == (order.extra_id or None)
    if not same_memo or not same_address(wire.payout_address, order.address):
        raise Unknown("pays another address than the one that was ordered")
    if wire.refund_address and not same_address(wire.refund_address, order.refund_address):
        raise Unknown("refunds to another address than the one that was ordered")
    return Swap(
        text(wire.id, "id"),
        order.pair,
        order.from_amount,
        amount(wire.to_amount, "toAmount"),
        text(wire.payin_address, "payinAddress"),
        wire.payin_extra_id or None,
        wire.payout_address,
        wire.payout_extra_id or None,
        wire.refund_address or None,
        wire.flow,
        wire.type,
        moment_or_none(wire.valid_until),
    )


def exchange(wire: WireExchange) -> Exchange:
    return Exchange(
        text(wire.id, "id"),
        status(wire.status),
        wire.pair,
        amount_or_none(wire.amount_from, "amountFrom"),
        amount_or_none(wire.amount_to, "amountTo"),
        amount_or_none(wire.expected_amount_from, "expectedAmountFrom"),
        amount_or_none(wire.expected_amount_to, "expectedAmountTo"),
        wire.payin_address,
        wire.payout_address,
        wire.payin_hash or None,
        wire.payout_hash or None,
        wire.refund_hash or None,
        amount_or_none(wire.refund_amount, "refundAmount"),
        moment(wire.created_at),
        moment(wire.updated_at),
        reference(wire.payload),
    )


def listed(wire: WireListed) -> Exchange:
    given, got = wire.payin, wire.payout
    refund, partner = wire.refund or WireRefund(), wire.partner_info or WirePartner()
    return Exchange(
        text(wire.request_id, "requestId"),
        status(wire.status),
        Pair(given.currency, given.network, got.currency, got.network),
        amount_or_none(given.amount, "payin.amount"),
        amount_or_none(got.amount, "payout.amount"),
        amount_or_none(given.expected_amount, "payin.expectedAmount"),
        amount_or_none(got.expected_amount, "payout.expectedAmount"),
        given.address,
        got.address,
        given.hash or None,
        got.hash or None,
        refund.hash or None,
        amount_or_none(refund.amount, "refund.amount"),
        moment(wire.created_at),
        moment(wire.updated_at),
        reference(partner.payload),
    )


def currency(wire: WireCurrency) -> Currency:
    decimals = wire.decimals if wire.decimals is not None and 0 <= wire.decimals <= DECIMALS_MAX else None
    has_extra_id = wire.has_external_id or wire.is_extra_id_supported
    return Currency(wire.ticker, wire.network, wire.name, has_extra_id, decimals, wire.buy, wire.sell)


def amount(value: Decimal, name: str) -> Decimal:
    """A finite, non-negative amount with few enough digits to be written out; raises Unknown otherwise."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or value < 0 or value.adjusted() > DIGITS_MAX:
        raise Unknown(f"has a {name} that is no amount")
    if exponent < -DIGITS_MAX:
        raise Unknown(f"has a {name} of more than {DIGITS_MAX} decimals")
    # Not abs(): arithmetic would round to the 28 digits of the decimal context.
    return value.copy_abs()


def amount_or_none(value: Decimal | None, name: str) -> Decimal | None:
    return None if value is None else amount(value, name)


def moment(value: datetime) -> datetime:
    """The vendor sometimes omits the time zone; its times are UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def moment_or_none(value: datetime | None) -> datetime | None:
    return None if value is None else moment(value)


def status(word: str) -> Status:
    try:
        return Status(word)
    except ValueError:
        known = ", ".join(Status)
        raise Unknown(f"has the status {word[:40]!r}, which payonce does not know; it knows {known}") from None


def text(value: str, name: str) -> str:
    if not 1 <= len(value) <= TEXT_MAX_CHARS or not value.isprintable():
        raise Unknown(f"has a {name} that is none")
    return value


def reference(payload: msgspec.Raw) -> str | None:
    """Our reference in the vendor's free-form payload; None if the payload is not ours."""
    try:
        fields = loads_exact(bytes(payload))
    except Invalid:
        return None
    found = fields.get(REFERENCE) if isinstance(fields, dict) else None
    return found if isinstance(found, str) else None


def _same_pair(said: Pair, asked: Pair) -> None:
    if [part.lower() for part in msgspec.structs.astuple(said)] != [
        part.lower() for part in msgspec.structs.astuple(asked)
    ]:
        raise Unknown("is about another pair than the one that was asked for")


def _same_amount(said: Decimal, asked: Decimal) -> None:
    if not same_amount(amount(said, "fromAmount"), asked):
        raise Unknown("is about another amount than the one that was asked for")
