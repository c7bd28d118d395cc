"""What the two services of billing say to each other: the payloads on their queues, and the body of a notification."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.kit.money import Amount, Asset, asset_of
from payonce.kit.outcomes import Invalid


class Action(StrEnum):
    INITIAL = "initial"
    TRIAL = "trial"
    RENEWAL = "renewal"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    REFUND = "refund"
    PAYMENT = "payment"
    """Asked for at payments itself, for no invoice."""
    PAYMENT_METHOD = "payment_method"
    """No money: the account has a new card, and what waits for one may be tried at once."""


class Status(StrEnum):
    SUCCESS = "success"
    FAILED = "failed"


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:charge_initiation`, put in the commit that issues the invoice or asks for another try."""

    invoice_id: str
    generation: int
    account_id: str
    subscription_id: str
    action: Action
    amount_minor: int
    currency: str
    exponent: int

    @property
    def key(self) -> str:
        return charge_key(self.invoice_id, self.generation)

    @property
    def amount(self) -> Amount:
        return Amount(self.amount_minor, Asset(self.currency, self.exponent))


class RefundAsked(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:refund_initiation`: a refund that is on record, to be carried out."""

    refund_id: str


class Credited(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:refund_initiation`: what of a charge came back as credit, all in all, and need not be given back. An
    earlier version said so after the change; now subscriptions hold it in the commit of the change."""

    transaction_id: str
    credited_minor: int


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:subscription_update`: a notification that is on record, to be delivered."""

    event_id: str


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the signed webhook from payments to subscriptions. One event_id is one event, however it comes."""

    event_id: str
    transaction_id: str | None
    subscription_id: str | None
    status: Status
    amount: str
    """In major units, a text with all decimals of its currency."""
    currency: str
    occurred_at: datetime
    action: Action
    metadata: dict[str, Any]
    """account_id always; invoice_id, generation, decline_code, hard, refund_id where they apply."""


CREDITED: Final = "credited"
"""The action of a message that says so."""
AMOUNT_OF_NOTHING: Final = "0"
TOLD_ID_MAX_CHARS: Final = 200
"""As the tables have room for them."""
TOLD_MINOR_MAX: Final = 2**53 - 1
"""As the gateway's amounts: beyond it some reader of JSON on the way would have lost digits."""


def read_notification(body: bytes) -> Notification:
    """As it came, if our books can hold it: what they cannot is the sender's to mend, and one sentence says what."""
    try:
        told = msgspec.json.decode(body, type=Notification)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is no notification of payments: {error}") from error
    if _has_nul(msgspec.to_builtins(told)):
        raise Invalid("a text of the notification has the character U+0000 in it, which the store does not keep")
    for name, text in (("event_id", told.event_id), ("transaction_id", told.transaction_id)):
        if text is not None and not 1 <= len(text) <= TOLD_ID_MAX_CHARS:
            raise Invalid(f"{name} {text[:40]!r} must have 1 to {TOLD_ID_MAX_CHARS} characters")
    if told.action is not Action.PAYMENT_METHOD:
        amount = Amount.from_decimal(told.amount, asset_of(told.currency))
        if not 0 < amount.minor <= TOLD_MINOR_MAX:
            most = Amount(TOLD_MINOR_MAX, amount.asset)
            raise Invalid(f"amount {told.amount[:40]} {told.currency} must be above zero and at most {most.to_text()}")
    return told


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(_has_nul(each) for pair in value.items() for each in pair)
        case list():
            return any(_has_nul(each) for each in value)
        case _:
            return False


def charge_key(invoice_id: str, generation: int) -> str:
    """A replay has the same key, dunning's next try another: what the gateway honours, and what is unique here."""
    return f"{invoice_id}:{generation}"


def read(kind: type[msgspec.Struct], payload: object) -> Any:
    """A queue's payload as its type; one sentence names what does not fit."""
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the message is no {kind.__name__}: {error}") from error
