"""The messages between the roles of payouts: one struct per hop, with the field names of the token tables.

A message's payload is the plain form of its struct (`plain`), with amounts as decimal strings. It may contain further
keys of our own, which `read` ignores.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from payonce.kit.outcomes import Invalid

TEXT_MAX_BYTES: Final = 255
"""The largest length that one byte can express."""
USER_ID_LIMIT: Final = 1 << 63
"""PostgreSQL's bigint; Telegram's ids have long passed 2³²."""
AMOUNT_LIMIT: Final = Decimal(10) ** 24
AMOUNT_DECIMALS_MAX: Final = 36
"""Twice the decimals of ether: senders that compute with doubles write more decimals than any coin has."""
OLDER: Final = "older"
"""Payload key of a message that arrived as a token of version 1: `accept` or `emit`, as this process is configured.
With `emit` it may be an older service's answer to our own request."""
EMIT: Final = "emit"
MADE_AT: Final = "made_at"
"""Payload key beside it: the token's time, in seconds since 1970."""


class HopFields(msgspec.Struct, frozen=True, kw_only=True):
    """Checks the fields of every hop, whatever their source."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_field(name, getattr(self, name))


class EstimateRequest(HopFields, frozen=True, kw_only=True):
    """GCSplit1 to GCSplit2: estimate the value in ether."""

    user_id: int
    closed_channel_id: str
    wallet_address: str
    payout_currency: str
    payout_network: str
    adjusted_amount_usdt: Decimal
    """The price less our fee."""


class EstimateResponse(HopFields, frozen=True, kw_only=True):
    """GCSplit2 to GCSplit1: the vendor's estimate."""

    user_id: int
    closed_channel_id: str
    wallet_address: str
    payout_currency: str
    payout_network: str
    from_amount_usdt: Decimal
    to_amount_eth_post_fee: Decimal
    deposit_fee: Decimal
    """In USDT."""
    withdrawal_fee: Decimal
    """In ether."""


class SwapRequest(HopFields, frozen=True, kw_only=True):
    """GCSplit1 to GCSplit3: swap this much ether for the client."""

    unique_id: str
    user_id: int
    closed_channel_id: str
    wallet_address: str
    payout_currency: str
    payout_network: str
    eth_amount: Decimal
    """The pure market value."""


class SwapResponse(HopFields, frozen=True, kw_only=True):
    """GCSplit3 to GCSplit1: the exchange that was created."""

    unique_id: str
    user_id: int
    closed_channel_id: str
    cn_api_id: str
    from_currency: str
    to_currency: str
    from_network: str
    to_network: str
    from_amount: Decimal
    to_amount: Decimal
    payin_address: str
    payout_address: str
    refund_address: str
    flow: str
    type: str


class HostPay(HopFields, frozen=True, kw_only=True):
    """GCSplit1 to GCHostPay: pay the exchange's deposit address."""

    unique_id: str
    cn_api_id: str
    from_currency: str
    from_network: str
    from_amount: Decimal
    payin_address: str


@dataclass(frozen=True)
class Hop:
    """One route of a token. Its name and audience are sealed into the token, which opens nowhere else."""

    name: str
    queue: str
    role: str
    """The role of payouts that may open it."""
    path: str
    """The path at which that role receives it."""
    fields: type[HopFields]

    @property
    def audience(self) -> str:
        return f"payouts.{self.role}{self.path}"


ESTIMATE_REQUEST: Final = Hop("1->2", "gcsplit-usdt-eth-estimate-queue", "estimator", "/", EstimateRequest)
ESTIMATE_RESPONSE: Final = Hop(
    "2->1", "gcsplit-usdt-eth-response-queue", "orchestrator", "/usdt-eth-estimate", EstimateResponse
)
SWAP_REQUEST: Final = Hop("1->3", "gcsplit-eth-client-swap-queue", "swapper", "/", SwapRequest)
SWAP_RESPONSE: Final = Hop(
    "3->1", "gcsplit-eth-client-response-queue", "orchestrator", "/eth-client-swap", SwapResponse
)
HOST_PAY: Final = Hop("1->hostpay", "gcsplit-hostpay-trigger-queue", "hostpay", "/", HostPay)

HOPS: Final = (ESTIMATE_REQUEST, ESTIMATE_RESPONSE, SWAP_REQUEST, SWAP_RESPONSE, HOST_PAY)

FieldsT = TypeVar("FieldsT", bound=HopFields)


def plain(fields: HopFields) -> dict[str, Any]:
    """The payload of the hop's message."""
    found = {name: getattr(fields, name) for name in fields.__struct_fields__}
    return {name: format(value, "f") if isinstance(value, Decimal) else value for name, value in found.items()}


def read(kind: type[FieldsT], payload: Mapping[str, Any]) -> FieldsT:
    """The hop's fields of a payload. Raises Invalid, also for an amount that is a JSON number, which may have been a
    float."""
    known = {name: payload[name] for name in kind.__struct_fields__ if name in payload}
    for name in _amounts_of(kind):
        if isinstance(known.get(name), int | float):
            raise Invalid(f"{name} of {kind.__name__} is a number; send amounts as decimal strings")
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the payload is not a valid {kind.__name__}: {error}") from None


@cache
def _amounts_of(kind: type[HopFields]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.type is Decimal)


def check_field(name: str, value: object) -> None:
    """Raises Invalid for a value that a token or a column cannot hold. The message shows the name but not the value,
    which may be confidential."""
    if isinstance(value, Decimal):
        _check_amount(name, value)
    elif isinstance(value, int):
        if not 0 <= value < USER_ID_LIMIT:
            raise Invalid(f"{name} is outside 0 to 2^63-1, the ids that a bigint holds")
    elif isinstance(value, str) and ("\x00" in value or len(_encoded(name, value)) > TEXT_MAX_BYTES):
        raise Invalid(f"{name} must be text of at most {TEXT_MAX_BYTES} bytes without NUL")


def _check_amount(name: str, value: Decimal) -> None:
    if not value.is_finite() or value.is_signed() or value >= AMOUNT_LIMIT:
        raise Invalid(f"{name} must be an amount from 0 up to 10^24")
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or abs(exponent) > AMOUNT_DECIMALS_MAX:
        # Positive exponents too: 0E+999999 is zero, but a megabyte when written out.
        raise Invalid(f"{name} has more than {AMOUNT_DECIMALS_MAX} decimals")


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"{name} cannot be encoded as UTF-8") from None
