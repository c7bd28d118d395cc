"""What payonce asks of ChangeNOW, and the words it asks with.

Amounts are decimals in major units, as the vendor writes them: how many decimals a currency has its caller knows.
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
"""What the vendor allows one key; all queues, polls, quotes and reconciliation together."""
BUDGET_PER_S: Final = REQUESTS_PER_S * 0.8
BUDGET_BURST: Final = 1
"""Within any second at most 25 have their turn; the rest is for those that were held up on their way."""
CALL_MAX_S: Final = 20.0
TURN_MAX_S: Final = 5.0
ANSWER_MAX_S: Final = 14.0
"""A call is the wait for its turn, for the answer, and a second to tell others of a rest that the vendor asks for."""
PAGE_MAX: Final = 100
"""Of the list of exchanges."""
REFERENCE_MAX_CHARS: Final = 64
"""Of one field of the vendor's `payload`."""
DOUBLE_STEP: Final = Decimal("1e-15")
"""Amounts this close, in proportion, are one: on its way through a binary double a number keeps 15 digits."""
_EVM_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")


def same_amount(said: Decimal, ours: Decimal) -> bool:
    """Whether what the vendor says can be our amount, which is the exact one."""
    return abs(said - ours) <= ours * DOUBLE_STEP


def same_address(said: str, ours: str) -> bool:
    """Whether what the vendor says is our address. One of an EVM network is compared by its bytes, since the vendor may
    write it in other capitals; any other to the letter."""
    return said == ours or (_EVM_ADDRESS.fullmatch(ours) is not None and said.lower() == ours.lower())


class Status(StrEnum):
    """Of an exchange, in the vendor's words."""

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
    """Why the vendor refuses, as far as we act on it; what it calls otherwise is OTHER."""

    TOO_SMALL = "too_small"
    """out_of_range, deposit_too_small, less_min_amount."""
    TOO_LARGE = "too_large"
    """max_amount_exceeded."""
    BAD_ADDRESS = "bad_address"
    BAD_REFUND_ADDRESS = "bad_refund_address"
    PAIR_INACTIVE = "pair_inactive"
    """Also what it says of amounts below the minimum: check the range."""
    NOT_ALLOWED = "not_allowed"
    """401 and 403: the key, not the payout."""
    OTHER = "other"


class ExchangeRefused(Refused):
    """A definite no, with the vendor's word for it."""

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
    """In the currency that is given."""
    withdrawal_fee: Decimal
    """In the currency that is got."""
    rate_id: str | None = None
    valid_until: datetime | None = None
    speed_forecast: str | None = None
    warning: str | None = None


class Range(msgspec.Struct, frozen=True):
    """What the pair takes at once; None: no upper limit."""

    min_amount: Decimal
    max_amount: Decimal | None


class Order(msgspec.Struct, frozen=True):
    """Creates an exchange. It moves nothing before somebody pays its deposit address."""

    pair: Pair
    from_amount: Decimal
    address: str
    extra_id: str | None
    refund_address: str
    refund_extra_id: str | None = None
    user_id: str | None = None
    payload: str | None = None
    """Our reference, at most 64 characters; the vendor keeps it and says it back in `exchange`."""


class Swap(msgspec.Struct, frozen=True):
    """An exchange as it was created."""

    id: str
    pair: Pair
    from_amount: Decimal
    """As ordered: the vendor says it back as a JSON number, which keeps 15 digits."""
    to_amount: Decimal
    payin_address: str
    payin_extra_id: str | None
    """Without it a deposit to the address is nobody's."""
    payout_address: str
    payout_extra_id: str | None
    refund_address: str | None
    flow: str
    type: str
    valid_until: datetime | None = None


class Exchange(msgspec.Struct, frozen=True):
    """An exchange as it stands now. Amounts are None until the vendor knows them."""

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
    """Every call is one request of at most 20 seconds. Raises ExchangeRefused (a definite no), Retry (a question that
    got no answer; ask again) or, only `create`, NotSent or Unknown."""

    async def estimate(self, pair: Pair, from_amount: Decimal) -> Estimate: ...

    async def create(self, order: Order) -> Swap: ...

    async def exchange(self, exchange_id: str) -> Exchange | None:
        """None: the vendor knows no exchange of this id."""
        ...

    async def range(self, pair: Pair) -> Range: ...

    async def min_amount(self, pair: Pair) -> Decimal: ...

    async def currencies(self) -> Sequence[Currency]: ...

    async def validate_address(self, currency: str, network: str, address: str, extra_id: str | None) -> AddressVerdict:
        """Of the address on that network. The vendor judges no extra ids; `currencies` says where one may be needed."""
        ...

    async def exchanges(self, since: datetime, until: datetime, offset: int, limit: int) -> Sequence[Exchange]:
        """The list of our key's exchanges, by creation, for reconciliation. Fewer than `limit` (1 to 100) are the last;
        one at the edge of the interval may be shown though it lies just outside."""
        ...
