"""The port of ChangeNOW, and its types.

Amounts are decimals in major units, as the vendor writes them; callers know the number of decimals of a currency.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.outcomes import Refused

REQUESTS_PER_S: Final = 30.0
"""The vendor's limit per key, shared by all queues, polls, quotes and reconciliation."""
BUDGET_PER_S: Final = REQUESTS_PER_S * 0.8
BUDGET_BURST: Final = 1
"""At most 25 turns within any second; the rest is a reserve for delayed requests."""
CALL_MAX_S: Final = 20.0
TURN_MAX_S: Final = 5.0
ANSWER_MAX_S: Final = 14.0
"""A call consists of the wait for its turn, the wait for the answer, and a second to record a requested pause."""
PAGE_MAX: Final = 100
"""Maximum page size of the list of exchanges."""
REFERENCE_MAX_CHARS: Final = 64
"""Maximum length of one field of the vendor's `payload`."""
DOUBLE_STEP: Final = Decimal("1e-15")
"""Relative tolerance for equal amounts: a number keeps 15 digits through a binary double."""
_EVM_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")


def same_amount(said: Decimal, ours: Decimal) -> bool:
    """Whether the vendor's amount equals our exact one, within the precision of a double."""
    return abs(said - ours) <= ours * DOUBLE_STEP


def same_address(said: str, ours: str) -> bool:
    """Whether the vendor's address is ours. EVM addresses are compared by their bytes, since the vendor may change the
    letter case; all others exactly."""
    return said == ours or (_EVM_ADDRESS.fullmatch(ours) is not None and said.lower() == ours.lower())


class Status(StrEnum):
    """Status of an exchange, in the vendor's terms."""

    NEW = "new"
    WAITING = "waiting"
    CONFIRMING = "confirming"
    EXCHANGING = "exchanging"
    SENDING = "sending"
    FINISHED = "finished"
    FAILED = "failed"
    REFUNDED = "refunded"
    VERIFYING = "verifying"
    EXPIRED = "expired"


class Code(StrEnum):
    """The vendor's reasons for refusals, as far as we handle them; all others are OTHER."""

    TOO_SMALL = "too_small"
    """out_of_range, deposit_too_small, less_min_amount."""
    TOO_LARGE = "too_large"
    """max_amount_exceeded."""
    BAD_ADDRESS = "bad_address"
    BAD_REFUND_ADDRESS = "bad_refund_address"
    PAIR_INACTIVE = "pair_inactive"
    """Also returned for amounts below the minimum: check the range."""
    NOT_ALLOWED = "not_allowed"
    """401 and 403: the key was refused, not the payout."""
    OTHER = "other"


class ExchangeRefused(Refused):
    """A definite refusal, with the vendor's code."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Pair(msgspec.Struct, frozen=True):
    from_currency: str
    from_network: str
    to_currency: str
    to_network: str


class Estimate(msgspec.Struct, frozen=True):
    pair: Pair
    from_amount: Decimal
    to_amount: Decimal
    """After both fees."""
    deposit_fee: Decimal
    """In the source currency."""
    withdrawal_fee: Decimal
    """In the target currency."""
    rate_id: str | None = None
    valid_until: datetime | None = None
    speed_forecast: str | None = None
    warning: str | None = None


class Range(msgspec.Struct, frozen=True):
    """The amounts that the pair accepts per exchange; `max_amount` is None without an upper limit."""

    min_amount: Decimal
    max_amount: Decimal | None


class Order(msgspec.Struct, frozen=True):
    """An order for an exchange. No money moves before its deposit address is paid."""

    pair: Pair
    from_amount: Decimal
    address: str
    extra_id: str | None
    refund_address: str
    refund_extra_id: str | None = None
    user_id: str | None = None
    payload: str | None = None
    """Our reference, at most 64 characters; the vendor stores it and returns it with `exchange`."""


class Swap(msgspec.Struct, frozen=True):
    """An exchange as it was created."""

    id: str
    pair: Pair
    from_amount: Decimal
    """As ordered; the vendor returns it as a JSON number, which keeps 15 digits."""
    to_amount: Decimal
    payin_address: str
    payin_extra_id: str | None
    """Without it a deposit to the address cannot be attributed."""
    payout_address: str
    payout_extra_id: str | None
    refund_address: str | None
    flow: str
    type: str
    valid_until: datetime | None = None


class Exchange(msgspec.Struct, frozen=True):
    """The present state of an exchange. Amounts are None until the vendor knows them."""

    id: str
    status: Status
    pair: Pair
    amount_from: Decimal | None
    amount_to: Decimal | None
    expected_from: Decimal | None
    expected_to: Decimal | None
    payin_address: str
    payout_address: str
    payin_hash: str | None
    payout_hash: str | None
    refund_hash: str | None
    refund_amount: Decimal | None
    created_at: datetime
    updated_at: datetime
    payload: str | None = None


class Currency(msgspec.Struct, frozen=True):
    ticker: str
    network: str
    name: str
    has_extra_id: bool
    """Its addresses may need a memo."""
    decimals: int | None = None
    buy: bool = True
    sell: bool = True


class AddressVerdict(msgspec.Struct, frozen=True):
    valid: bool
    message: str | None = None


@runtime_checkable
class ChangeNow(Protocol):
    """Every call is one request of at most 20 seconds. Raises ExchangeRefused (definite), Retry (a query without an
    answer) or, for `create`, NotSent or Unknown."""

    async def estimate(self, pair: Pair, from_amount: Decimal) -> Estimate: ...

    async def create(self, order: Order) -> Swap: ...

    async def exchange(self, exchange_id: str) -> Exchange | None:
        """None if the vendor does not know the id."""
        ...

    async def range(self, pair: Pair) -> Range: ...

    async def min_amount(self, pair: Pair) -> Decimal: ...

    async def currencies(self) -> Sequence[Currency]: ...

    async def validate_address(self, currency: str, network: str, address: str, extra_id: str | None) -> AddressVerdict:
        """Validates the address on that network. The vendor does not check extra ids; `currencies` shows where one may
        be needed."""
        ...

    async def exchanges(self, since: datetime, until: datetime, offset: int, limit: int) -> Sequence[Exchange]:
        """Our key's exchanges by creation time, for reconciliation. A page of fewer than `limit` (1 to 100) is the
        last. Exchanges just outside the interval may be included."""
        ...
