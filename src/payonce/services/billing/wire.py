"""The wire format between the two billing services: payloads on their queues, and the body of a notification."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

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
    """Requested at payments itself, without an invoice."""
    PAYMENT_METHOD = "payment_method"
    """No money: the account has a new card, and overdue invoices may be charged at once."""
    CREDIT_HOLD = "credit_hold"
    """No money: the answer to a `CreditHold`. Its metadata is a `HoldAnswer`."""


WITHOUT_AMOUNT: Final = frozenset({Action.PAYMENT_METHOD, Action.CREDIT_HOLD})


class Status(StrEnum):
    SUCCESS = "success"
    FAILED = "failed"


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:charge_initiation`, sent in the commit that issues the invoice or starts another attempt."""

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


class RefundExecution(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:refund_initiation`: execute a recorded refund."""

    refund_id: str


class ReturnedCredit(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:refund_initiation`: the total of a charge that was returned as credit and must not be refunded. Sent by
    earlier versions after the plan change; now subscriptions hold the credit before it."""

    transaction_id: str
    credited_minor: int


class HeldCredit(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one charge that a plan change returns as credit."""

    transaction_id: str
    minor: int
    refunded_minor: int
    """The part of the charge that is refunded or being refunded. The credit is computed from it."""


class CreditHold(msgspec.Struct, frozen=True, kw_only=True):
    """Reserve the credit of a plan change, so that refunds cannot return it a second time. Payments holds nothing if
    its refunds differ from `refunded_minor`; either way it answers with a notification."""

    change_id: str
    subscription_id: str
    account_id: str
    changed_at: datetime
    """When the change was requested, in the customer's time."""
    round: int
    """Grows each time the credit is recomputed because of a refund in between."""
    asked_at: datetime
    """By the clock of subscriptions: a hold never replaces one that was requested later."""
    credits: tuple[HeldCredit, ...]


class HoldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a `credit_hold` notification: the request, with the refunds known to payments."""

    change_id: str
    account_id: str
    changed_at: datetime
    round: int
    credits: tuple[HeldCredit, ...]


class CreditConfirmation(msgspec.Struct, frozen=True, kw_only=True):
    """The plan has changed and its credit is final. Payments holds the credit now if an earlier version issued the
    change without a hold."""

    change_id: str
    credits: tuple[HeldCredit, ...]


class CreditRelease(msgspec.Struct, frozen=True, kw_only=True):
    """The plan does not change: no credit is returned, and refunds may use the amount."""

    change_id: str


class NotificationDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """On `q:pay:subscription_update`: deliver a recorded notification."""

    event_id: str


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the signed webhook from payments to subscriptions. One event_id is one event, however often it is
    delivered."""

    event_id: str
    transaction_id: str | None
    subscription_id: str | None
    status: Status
    amount: str
    """In major units, as text with all decimals of its currency."""
    currency: str
    occurred_at: datetime
    action: Action
    metadata: dict[str, Any]
    """Always account_id; invoice_id, generation, decline_code, hard, refund_id and outside where they apply; for a
    credit hold the fields of `HoldAnswer`."""


class TokenVersionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a signed request to subscriptions for the current token version of an account."""

    account_id: str


class TokenVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: int | None
    """None if there is no such account."""


class ForwardedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a queue of payments, from a subscription service with a database of its own."""

    id: UUID
    queue: str
    action: str
    payload: dict[str, Any]
    correlation_id: str | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    created_at: datetime | None = None


class ForwardedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a signed request to payments."""

    messages: list[ForwardedMessage]


class ForwardedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for each message that payments rejected, by id. All others are committed, now or earlier."""

    refused: dict[str, str]


CREDIT_KEY: Final = "credit:"
"""Prefix of the refund keys of credit payouts; the payout's id follows."""
CREDITED: Final = "credited"
"""The action of a `ReturnedCredit` message."""
ZERO_AMOUNT: Final = "0"
NOTIFICATION_ID_MAX_CHARS: Final = 200
"""The size of the columns."""
NOTIFICATION_MINOR_MAX: Final = 2**53 - 1
"""As for the gateway's amounts: above it, some JSON parsers lose digits."""


def read_notification(body: bytes) -> Notification:
    """Decodes a notification that the database can store; raises Invalid with what the sender must correct."""
    try:
        notification = msgspec.json.decode(body, type=Notification)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the body is not a notification from payments: {error}") from error
    if _has_nul(msgspec.to_builtins(notification)):
        raise Invalid("a text of the notification contains the character U+0000, which the database cannot store")
    for name, text in (("event_id", notification.event_id), ("transaction_id", notification.transaction_id)):
        if text is not None and not 1 <= len(text) <= NOTIFICATION_ID_MAX_CHARS:
            raise Invalid(f"{name} {text[:40]!r} must have 1 to {NOTIFICATION_ID_MAX_CHARS} characters")
    if notification.action not in WITHOUT_AMOUNT:
        amount = Amount.from_decimal(notification.amount, asset_of(notification.currency))
        if not 0 < amount.minor <= NOTIFICATION_MINOR_MAX:
            most = Amount(NOTIFICATION_MINOR_MAX, amount.asset)
            raise Invalid(
                f"amount {notification.amount[:40]} {notification.currency} must be above zero and at most "
                f"{most.to_text()}"
            )
    return notification


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
    """The gateway's idempotency key, unique here as well: a replay has the same key, the next dunning attempt
    another."""
    return f"{invoice_id}:{generation}"
