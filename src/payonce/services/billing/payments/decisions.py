"""Operators' decisions at payments: refund a charge in full or in part, record a refund made outside the gateway, and
send a notification again."""

from typing import Any, Final

import msgspec

from payonce.engine.controls import Action, Assessment, Link
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Tx
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.model import Transaction
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.policies import SUBSCRIPTION_UPDATE

ACTION: Final = "refund charge"
REASON_MAX_LENGTH: Final = 500
"""The longest refund reason, which is printed on the credit note."""


class RefundDecision(msgspec.Struct, frozen=True, kw_only=True):
    transaction_id: str
    left_minor: int
    """The refundable amount that the operator saw."""
    amount_minor: int | None = None
    """None refunds the rest that was not returned as credit."""
    beyond_credit: bool = False
    """Sent by earlier versions, and rejected: refunding what was returned as credit would give the customer both.
    Credit is paid out instead."""
    outside: bool = False
    """The money was returned by bank or in cash: the refund is recorded, and the gateway is not called."""
    note: str


def refund_action(_: Admin) -> Action[RefundDecision]:
    return Action(ACTION, RefundDecision, _weigh, _execute, _page)


def _page(transaction_id: str) -> Link:
    return Link("The charge", "/billing/invoices", {"reference": transaction_id})


async def resend(tx: Tx, event_id: str, by: str, why: str) -> None:
    """Sends a notification again, whether it was delivered or not: the receiver ignores duplicates."""
    row = await tx.fetchrow(
        """
        update payments.notifications n set delivered_at = null where event_id = $1
        returning n.action, n.account_id, (
            select count(*) from payments.webhook_outbound_requests where event_id = n.event_id) as attempts
        """,
        event_id,
    )
    if row is None:
        raise Invalid(f"there is no notification {event_id[:100]!r}")
    # Two requests before the next attempt result in one message.
    await tx.send(
        SUBSCRIPTION_UPDATE,
        {"event_id": event_id},
        action=row["action"],
        key=f"resend:{event_id}:{row['attempts']}",
        correlation_id=row["account_id"],
    )
    await tx.audit("billing.notifications", event_id, f"sent again: {why}", actor=by)


async def _weigh(tx: Tx, asked: RefundDecision) -> Assessment:
    transaction = await _known(tx, asked.transaction_id)
    amount = _amount(transaction, asked)
    what = "record as refunded outside the gateway" if asked.outside else "refund"
    return Assessment(transaction.id, f"{what} {amount} of charge {transaction.id} of {transaction.amount}", [amount])


async def _execute(tx: Tx, asked: RefundDecision, by: str) -> dict[str, Any]:
    transaction = await transactions.locked(tx, asked.transaction_id)
    if transaction is None:
        raise Invalid(f"there is no charge {asked.transaction_id[:100]!r}")
    if transaction.left.minor != asked.left_minor:
        raise Stale(
            f"{transaction.left} of charge {transaction.id} is refundable, which is not what you saw; reload and "
            "decide again"
        )
    amount = _amount(transaction, asked)
    # Numbered behind the lock: a failed refund may be requested again.
    number = await tx.fetchval("select count(*) from payments.refunds where transaction_id = $1", transaction.id)
    key = f"person:{transaction.id}:{number}"
    give_back = refunds.record_outside if asked.outside else refunds.request
    refund = await give_back(tx, transaction.id, amount, asked.note[:REASON_MAX_LENGTH], key)
    return {"refund": refund.id, "amount": refund.amount.to_text(), "state": refund.state.value}


async def _known(tx: Tx, transaction_id: str) -> Transaction:
    found = await transactions.find(tx, transaction_id)
    if found is None:
        raise Invalid(f"there is no charge {transaction_id[:100]!r}")
    return found


def _amount(transaction: Transaction, asked: RefundDecision) -> Amount:
    if asked.beyond_credit:
        raise refunds.already_credited(transaction)
    minor = asked.amount_minor
    return refunds.chosen(transaction, None if minor is None else Amount(minor, transaction.amount.asset))
