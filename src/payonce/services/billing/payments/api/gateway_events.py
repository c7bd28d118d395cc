"""The gateway's webhooks: each triggers a check of our records, and none is the only source of a result."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Tx
from payonce.engine.reconcile.source import split_reference
from payonce.engine.webhooks import Received, Receiver
from payonce.kit.log import get_logger
from payonce.kit.webhooks import Refusal, RefusalReason, Scheme, Secret
from payonce.kit.webhooks.verification import Headers
from payonce.services.billing.payments.effects import reference_of
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.payments.model import TAKEN, RefundState, State, Transaction
from payonce.services.billing.payments.reconciliation import CHARGE_KEY_COLONS, REFUND_KEY_COLONS
from payonce.services.billing.payments.store import refunds as refund_store
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.policies import CHARGE_INITIATION
from payonce.vendors.gateway.port import EventSubject, EventType, GatewayEvent

RECHECK_AFTER_S: Final = 5.0
"""The run that sent the order may be committing its result at this moment."""

log = get_logger(__name__)


class EventOutcome(StrEnum):
    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    IGNORED = "ignored"
    """An event type that is not used here."""


class GatewayEventReceiver:
    """Verifies the gateway's webhooks."""

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._receiver = Receiver("billing.gateway", tuple(secrets), Scheme.STANDARD) if secrets else None

    async def receive(self, read: Reads, headers: Headers, body: bytes) -> Received | Refusal:
        if self._receiver is None:
            return Refusal(
                RefusalReason.FORGED, "gateway webhooks are not accepted here: GATEWAY_WEBHOOK_SECRET is not set"
            )
        return await self._receiver.receive(read, headers, body)


async def apply_event(tx: Tx, received: Received) -> EventOutcome:
    """Processes an event once. A confirmed result changes nothing, a pending one is checked again, and a contradiction
    or an unknown object is reported to operators."""
    event = GatewayEvent.read(received.body)
    if event is None:
        return EventOutcome.IGNORED
    if not await received.first_time(tx):
        return EventOutcome.DUPLICATE
    about = _about_refund if event.type is EventType.REFUND_SUCCEEDED else _about_charge
    wrong = await about(tx, received.id, event)
    if wrong is not None:
        subject = event.data
        text = f"{event.type} {subject.id} of {subject.amount} {subject.currency}, {subject.reference!r:.220}: {wrong}"
        log.error("gateway_disagrees", said=received.id, charge=subject.id, why=wrong)
        await tx.audit("billing.gateway", subject.id, text, actor="billing.payments", severity=Severity.ERROR)
    return EventOutcome.PROCESSED


async def _about_charge(tx: Tx, event_id: str, event: GatewayEvent) -> str | None:
    subject = event.data
    transaction = await transactions.by_charge_key(tx, _key(subject, CHARGE_KEY_COLONS))
    if transaction is None:
        return "there is no such charge"
    if (transaction.amount.minor, transaction.amount.asset.code) != (subject.amount, subject.currency):
        return f"transaction {transaction.id} is of {transaction.amount}"
    if transaction.state is State.PENDING:
        await _recheck_charge(tx, event_id, transaction)
        return None
    succeeded = event.type is EventType.CHARGE_SUCCEEDED
    if succeeded == (transaction.state in TAKEN) and transaction.gateway_id in (None, subject.id):
        return None
    return f"transaction {transaction.id} is {transaction.state} as {transaction.gateway_id}"


async def _about_refund(tx: Tx, event_id: str, event: GatewayEvent) -> str | None:
    subject = event.data
    refund = await refund_store.find(tx, _key(subject, REFUND_KEY_COLONS))
    if refund is None:
        return "there is no such refund"
    if (refund.amount.minor, refund.amount.asset.code) != (subject.amount, subject.currency):
        return f"refund {refund.id} is of {refund.amount}"
    if refund.state is RefundState.PENDING:
        transaction = await transactions.find(tx, refund.transaction_id)
        assert transaction is not None
        await refunds.send(tx, refund, transaction, f"look:{event_id}", delay_s=RECHECK_AFTER_S)
        return None
    if refund.state is RefundState.SUCCEEDED and refund.gateway_id == subject.id:
        return None
    return f"refund {refund.id} is {refund.state} as {refund.gateway_id}"


async def _recheck_charge(tx: Tx, event_id: str, transaction: Transaction) -> None:
    """Sends a message of its own: the first one may wait an hour for its next attempt."""
    await tx.send(
        CHARGE_INITIATION,
        {"transaction_id": transaction.id},
        action=transaction.action.value,
        key=f"look:{event_id}",
        correlation_id=transaction.about,
        delay_s=RECHECK_AFTER_S,
    )


def _key(subject: EventSubject, colons: int) -> str:
    split = split_reference(reference_of(subject.reference, key_colons=colons))
    return subject.reference if split is None else split[0]
