"""The port of the card gateway, and its types.

Amounts are whole minor units with a currency code, as the gateway writes them. No type has a field for a card number:
the customer's browser sends it to the gateway, and payonce knows only the resulting token.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from payonce.kit.money import Amount, well_known
from payonce.kit.outcomes import Invalid, NotSent, Refused

KEYS_KEPT_S: Final = 24 * 3_600.0
"""How long the gateway remembers a key, by its own clock. Rely on it for less: its clock is not ours."""
REQUESTS_PER_S: Final = 100.0
"""The gateway's limit per key."""
BUDGET_PER_S: Final = REQUESTS_PER_S * 0.8
BUDGET_BURST: Final = 8
TURN_MAX_S: Final = 5.0
ANSWER_MAX_S: Final = 14.0
CALL_MAX_S: Final = 20.0
"""A call consists of the wait for its turn, the wait for the answer, and a second to record a requested pause."""
PAGE_MAX: Final = 100
"""Maximum page size of the statement."""
AMOUNT_MAX: Final = 2**53 - 1
"""Above it some JSON parsers lose digits."""
REFERENCE_MAX_CHARS: Final = 200
METADATA_MAX: Final = 20
METADATA_MAX_CHARS: Final = 200
INVOICE: Final = "invoice"
"""The field of `metadata` by which the gateway's books count captures per invoice, over all attempts."""


class ChargeStatus(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Declined: recorded, but nothing was captured."""


class DeclineCode(StrEnum):
    """The gateway's decline codes. Unknown codes count as soft declines."""

    INSUFFICIENT_FUNDS = "insufficient_funds"
    CARD_DECLINED = "card_declined"
    EXPIRED_CARD = "expired_card"
    INVALID_CVV = "invalid_cvv"


HARD: Final = frozenset({DeclineCode.EXPIRED_CARD.value, DeclineCode.INVALID_CVV.value})
"""Hard declines: no retry with the same card will succeed."""


class RefusalCode(StrEnum):
    """The gateway's refusal codes, as far as we handle them."""

    NO_SUCH_TOKEN = "no_such_payment_method"  # noqa: S105  a word, no secret
    NO_SUCH_CHARGE = "no_such_charge"
    AMOUNT_TOO_LARGE = "amount_too_large"
    """A refund above the remaining amount of its charge."""
    CHARGE_FAILED = "charge_failed"
    """A refund of a charge that captured nothing."""
    BAD_REQUEST = "bad_request"


class GatewayRefused(Refused):
    """A definite refusal, with the gateway's code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"refused ({code}): {message}")
        self.code = code
        self.message = message


class Declined(Refused):
    """The card was declined. The gateway has recorded a charge that captured nothing.

    An effect's record keeps only the reason; `read` parses it back.
    """

    def __init__(self, code: str, message: str, charge_id: str | None = None) -> None:
        # In brackets, since `invalid_cvv: 123` would be redacted as a secret and its name.
        super().__init__(f"declined ({code}): {message} [{charge_id or '-'}]")
        self.code = code
        self.message = message
        self.charge_id = charge_id

    @property
    def hard(self) -> bool:
        return self.code in HARD

    @classmethod
    def read(cls, refusal: Refused) -> "Declined | None":
        """The decline in a refusal; None if the gateway or our own controls refused."""
        if isinstance(refusal, cls):
            return refusal
        match = _DECLINED.fullmatch(refusal.reason)
        if match is None:
            return None
        return cls(match["code"], match["message"], None if match["charge"] == "-" else match["charge"])


_DECLINED: Final = re.compile(
    r"declined \((?P<code>\w{1,64})\): (?P<message>.*) \[(?P<charge>[\w-]+)\]", re.ASCII | re.DOTALL
)


class NotAllowed(NotSent):
    """401 and 403: the gateway refuses our key. It has done nothing, which proves nothing about earlier attempts. Only
    an operator can resolve it, so handlers pause the queue. In an effect it is the cause of the Retry."""


class ChargeOrder(msgspec.Struct, frozen=True):
    """A charge of a card. Sent again unchanged, it happens once."""

    key: str
    amount: int
    """Minor units."""
    currency: str
    payment_method: str
    """A token, `pm_…`."""
    reference: str
    """Finds the charge after the key has expired."""
    metadata: Mapping[str, str] = {}

    @property
    def money(self) -> Amount:
        return Amount(self.amount, well_known(self.currency))


class Charge(msgspec.Struct, frozen=True):
    id: str
    status: ChargeStatus
    amount: int
    """The ordered amount."""
    captured: int
    refunded: int
    currency: str
    reference: str
    payment_method: str
    created: datetime
    decline_code: str | None = None
    decline_message: str | None = None

    @property
    def money(self) -> Amount:
        """The captured amount."""
        return Amount(self.captured, well_known(self.currency))

    @property
    def declined(self) -> Declined | None:
        """The error that `charge` would have raised; None if the charge succeeded."""
        if self.status is ChargeStatus.SUCCEEDED:
            return None
        return Declined(self.decline_code or DeclineCode.CARD_DECLINED, self.decline_message or "declined", self.id)


class RefundOrder(msgspec.Struct, frozen=True):
    """A refund of part or all of a charge. Sent again unchanged, it happens once."""

    key: str
    charge: str
    """The gateway's id of it, `ch_…`."""
    amount: int
    currency: str
    """Of the charge; not sent, and held against the answer."""
    reference: str
    reason: str = ""

    @property
    def money(self) -> Amount:
        return Amount(self.amount, well_known(self.currency))


class Refund(msgspec.Struct, frozen=True):
    id: str
    charge: str
    amount: int
    currency: str
    reference: str
    created: datetime

    @property
    def money(self) -> Amount:
        return Amount(self.amount, well_known(self.currency))


class CardToken(msgspec.Struct, frozen=True):
    """All that we ever know of a card."""

    id: str
    brand: str
    last4: str
    exp_month: int
    exp_year: int


class LineKind(StrEnum):
    CHARGE = "charge"
    REFUND = "refund"


class StatementLine(msgspec.Struct, frozen=True):
    """One movement of money. A declined charge moved none and is not here."""

    id: str
    kind: LineKind
    source: str
    """The id of the charge or refund."""
    reference: str
    amount: int
    """Signed: what a refund gives back is negative."""
    currency: str
    created: datetime

    @property
    def money(self) -> Amount:
        return Amount(self.amount, well_known(self.currency))


class StatementPage(msgspec.Struct, frozen=True):
    lines: Sequence[StatementLine]
    after: str | None
    """Where the next page begins; None at the end."""


class EventType(StrEnum):
    CHARGE_SUCCEEDED = "charge.succeeded"
    CHARGE_FAILED = "charge.failed"
    REFUND_SUCCEEDED = "refund.succeeded"


class EventSubject(msgspec.Struct, frozen=True):
    """The charge or refund that an event tells of, as far as both have it."""

    id: str
    reference: str
    amount: int
    currency: str

    def __post_init__(self) -> None:
        if "\x00" in self.id + self.reference + self.currency:
            raise ValueError("a text with U+0000 is nothing that could be looked for")


class GatewayEvent(msgspec.Struct, frozen=True):
    """What the gateway posts, signed by Standard Webhooks; its id is the signed `webhook-id`. It comes at least once,
    late, and in any order: a reason to look, never the only way to learn of something."""

    type: EventType
    timestamp: datetime
    data: EventSubject

    @classmethod
    def read(cls, body: bytes) -> "GatewayEvent | None":
        """Of a body whose signature was verified. None: an event of another type, which is to be thanked for and
        left alone."""
        try:
            if msgspec.json.decode(body, type=_Typed).type not in set(EventType):
                return None
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise Invalid("the event is not one of the gateway's: it needs type, timestamp and data") from None


class _Typed(msgspec.Struct):
    type: str


@runtime_checkable
class Gateway(Protocol):
    """Every call is one request of at most 20 seconds. All raise NotAllowed; questions raise Retry when no usable
    answer came: ask again."""

    async def charge(self, order: ChargeOrder) -> Charge:
        """A charge that succeeded. Raises Declined, GatewayRefused (a definite no, nothing moved), NotSent (it never
        arrived) or Unknown."""
        ...

    async def refund(self, order: RefundOrder) -> Refund:
        """Raises GatewayRefused, NotSent or Unknown."""
        ...

    async def find_charge(self, reference: str) -> Charge | None:
        """By the reference it was ordered with, also after the key was forgotten: the one that captured, or else the
        latest that was declined. Raises Unknown when several captured."""
        ...

    async def find_refund(self, reference: str) -> Refund | None:
        """Raises Unknown when there are several."""
        ...

    async def token(self, token_id: str) -> CardToken | None:
        """None: the gateway knows no such token."""
        ...

    async def statement(self, after: str | None = None, limit: int = PAGE_MAX) -> StatementPage:
        """Every capture and refund of our key, in the order of booking, for reconciliation."""
        ...
