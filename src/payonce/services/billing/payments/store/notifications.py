"""Notifications to subscriptions: the bytes of each, created once, in the commit of the change that it reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.services.billing.payments.effects import ChargeFailure
from payonce.services.billing.payments.model import PaymentMethod, Refund, Transaction
from payonce.services.billing.policies import SUBSCRIPTION_UPDATE
from payonce.services.billing.wire import (
    ZERO_AMOUNT,
    Action,
    CreditHold,
    HeldCredit,
    HoldAnswer,
    Notification,
    Status,
)

QUEUED_AFTER_S: Final = 5.0
"""The immediate attempt goes first; the queue finds the notification delivered, or delivers it."""
NO_CURRENCY: Final = ""


@dataclass(frozen=True)
class Notice:
    """A stored notification."""

    event_id: str
    transaction_id: str | None
    refund_id: str | None
    account_id: str
    action: Action
    body: bytes
    about: str
    """The correlation id of the message that delivers it."""
    now: datetime
    """By the database's clock."""
    first: bool = True
    """It is the first notification of its transaction."""


async def record(tx: Tx, notice: Notice) -> None:
    """Stores a notification without a transaction; the others are stored by the statement that changes their
    transaction."""
    await tx.execute(
        "insert into payments.notifications (event_id, account_id, action, body, trace_id) values ($1, $2, $3, $4, $5)",
        notice.event_id,
        notice.account_id,
        notice.action,
        notice.body,
        tx.trace_id,
    )


async def send(tx: Tx, notice: Notice) -> None:
    """Sends the message that delivers it if the immediate attempt does not."""
    await tx.send(
        SUBSCRIPTION_UPDATE,
        {"event_id": notice.event_id},
        action=notice.action.value,
        key=notice.event_id,
        correlation_id=notice.about,
        delay_s=QUEUED_AFTER_S,
    )


def of_charge(
    transaction: Transaction, failure: ChargeFailure | None, now: datetime, paid_with: Mapping[str, str] | None = None
) -> Notice | None:
    """None for a payment without an invoice. `paid_with` is the card as printed on invoices."""
    if not transaction.told:
        return None
    metadata = {**_metadata(transaction), **(paid_with or {})}
    if failure is not None:
        metadata |= {"decline_code": failure.code, "hard": failure.hard, "reason": failure.reason}
    status = Status.SUCCESS if failure is None else Status.FAILED
    # One outcome is one event, so its id is derived from the transaction.
    event_id = f"charge-{transaction.id}"
    body = _body(event_id, transaction, status, transaction.amount, transaction.action, metadata, now)
    return Notice(
        event_id, transaction.id, None, transaction.account_id, transaction.action, body, transaction.about, now
    )


def of_refund(refund: Refund, transaction: Transaction, failure: str | None, now: datetime) -> Notice | None:
    if not transaction.told:
        return None
    metadata = _metadata(transaction) | {
        "refund_id": refund.id,
        "refund_key": refund.refund_key,
        "reason": failure or refund.reason,
        "outside": refund.outside,
    }
    status = Status.SUCCESS if failure is None else Status.FAILED
    event_id = f"refund-{refund.id}"
    body = _body(event_id, transaction, status, refund.amount, Action.REFUND, metadata, now)
    return Notice(
        event_id,
        transaction.id,
        refund.id,
        transaction.account_id,
        Action.REFUND,
        body,
        transaction.about,
        now,
        first=False,
    )


def refused_id(refund_key: str) -> str:
    """The id of the event for a refused refund. One key, one event."""
    return f"refund-refused-{refund_key.replace(':', '-')}"


def of_refused(refund_key: str, account_id: str, amount: Amount, why: str, about: str, now: datetime) -> Notice:
    """A refused refund, which no transaction records."""
    event_id = refused_id(refund_key)
    notification = Notification(
        event_id=event_id,
        transaction_id=None,
        subscription_id=None,
        status=Status.FAILED,
        amount=amount.to_text(),
        currency=amount.asset.code,
        occurred_at=now,
        action=Action.REFUND,
        metadata={"account_id": account_id, "refund_key": refund_key, "reason": why},
    )
    return Notice(
        event_id, None, None, account_id, Action.REFUND, msgspec.json.encode(notification), about, now, first=False
    )


def of_method(method: PaymentMethod, now: datetime) -> Notice:
    """A new default card: overdue invoices may be charged at once."""
    event_id = f"method-{new_id()}"
    notification = Notification(
        event_id=event_id,
        transaction_id=None,
        subscription_id=None,
        status=Status.SUCCESS,
        amount=ZERO_AMOUNT,
        currency=NO_CURRENCY,
        occurred_at=now,
        action=Action.PAYMENT_METHOD,
        metadata={"account_id": method.account_id, "payment_method_id": method.id},
    )
    body = msgspec.json.encode(notification)
    return Notice(event_id, None, None, method.account_id, Action.PAYMENT_METHOD, body, method.account_id, now)


def of_credit_hold(
    message_id: str, asked: CreditHold, status: Status, shares: Sequence[HeldCredit], now: datetime
) -> Notice:
    """The answer to a hold request, one for each message."""
    answer = HoldAnswer(
        change_id=asked.change_id,
        account_id=asked.account_id,
        changed_at=asked.changed_at,
        round=asked.round,
        credits=tuple(shares),
    )
    notification = Notification(
        event_id=f"credit-hold-{message_id}",
        transaction_id=None,
        subscription_id=asked.subscription_id,
        status=status,
        amount=ZERO_AMOUNT,
        currency=NO_CURRENCY,
        occurred_at=now,
        action=Action.CREDIT_HOLD,
        metadata=msgspec.to_builtins(answer),
    )
    return Notice(
        notification.event_id,
        None,
        None,
        asked.account_id,
        notification.action,
        msgspec.json.encode(notification),
        asked.subscription_id,
        now,
    )


def _metadata(transaction: Transaction) -> dict[str, Any]:
    return {
        "account_id": transaction.account_id,
        "invoice_id": transaction.invoice_id,
        "generation": transaction.generation,
    }


def _body(
    event_id: str,
    transaction: Transaction,
    status: Status,
    amount: Amount,
    action: Action,
    metadata: dict[str, Any],
    now: datetime,
) -> bytes:
    return msgspec.json.encode(
        Notification(
            event_id=event_id,
            transaction_id=transaction.id,
            subscription_id=transaction.subscription_id,
            status=status,
            amount=amount.to_text(),
            currency=amount.asset.code,
            occurred_at=now,
            action=action,
            metadata=metadata,
        )
    )
