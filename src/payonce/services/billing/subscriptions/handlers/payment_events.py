"""Applies payment events once: the event's record and the resulting change are one commit."""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid, Retry
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers import dunning, merchant_events, plan_change_invoices, settlement
from payonce.services.billing.subscriptions.model import WRONG_AMOUNT, Invoice, InvoiceState
from payonce.services.billing.subscriptions.store import credit_notes, credit_payouts, invoices, subscriptions
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.subscriptions.store.test_clock_wakeup import wake
from payonce.services.billing.wire import CREDIT_KEY, Action, Notification, Status

PROCESSED: Final = "processed"
DUPLICATE: Final = "duplicate"
UNAPPLIED_REASON_MAX_LENGTH: Final = 500
PAID_WITH_MAX_LENGTH: Final = 100
ENDED_MEANWHILE: Final = frozenset({InvoiceState.VOID, InvoiceState.UNCOLLECTIBLE})

log = get_logger(__name__)


@dataclass(frozen=True)
class Applied:
    """The webhook's response, and the recorded mismatch, if any."""

    status: str
    problem: str | None = None


async def apply(tx: Tx, notification: Notification) -> Applied:
    """Applies an event the first time that it arrives. Raises Retry without changes if an earlier event is still
    missing."""
    first = await tx.fetchval(
        """
        insert into subscriptions.payment_webhook_requests (event_id, payload, processed, processed_at)
        values ($1, $2::jsonb, true, payonce.due_now()) on conflict (event_id) do nothing returning id
        """,
        notification.event_id,
        msgspec.json.encode(notification).decode(),
    )
    if first is None:
        await tx.execute(
            "update subscriptions.payment_webhook_requests set retry_count = retry_count + 1 where event_id = $1",
            notification.event_id,
        )
        return Applied(DUPLICATE)
    problem = await _apply(tx, notification)
    if problem is not None:
        await tx.execute(
            "update subscriptions.payment_webhook_requests set error_message = $2 where event_id = $1",
            notification.event_id,
            problem,
        )
        log.error("payment_event_does_not_fit", event_id=notification.event_id, problem=problem)
        await tx.audit("billing.unapplied", notification.event_id, problem, actor="billing", severity=Severity.ERROR)
    return Applied(PROCESSED, problem)


async def _apply(tx: Tx, notification: Notification) -> str | None:
    """Returns None, or a sentence about a mismatch."""
    match notification.action:
        case Action.PAYMENT_METHOD:
            await dunning.try_new_card(tx, _text(notification, "account_id") or "")
            return None
        case Action.PAYMENT:
            return None
        case Action.CREDIT_HOLD:
            return await plan_change_invoices.follow_answer(tx, notification)
        case Action.REFUND:
            return await _refund(tx, notification)
        case _:
            return await _charge(tx, notification)


async def _charge(tx: Tx, notification: Notification) -> str | None:
    found = await _invoice(tx, notification)
    if found is None:
        return await _record_unapplied(
            tx, notification, None, f"there is no invoice {_text(notification, 'invoice_id')!r}"
        )
    locked, invoice = found
    if invoice.charging and _answers(notification, invoice):
        fits = _amount(notification, invoice) == invoice.due
        if notification.status is Status.FAILED:
            code, hard = _text(notification, "decline_code"), notification.metadata.get("hard") is True
            await settlement.fail(tx, locked, invoice, code, hard)
            return None if fits else _another_amount(notification, invoice)
        if not fits:
            return await _release(tx, locked, notification, invoice)
        await _paid(tx, locked, invoice, notification)
        return None
    if notification.status is Status.FAILED:
        return None if invoice.state in ENDED_MEANWHILE else _out_of_turn(notification, invoice)
    return await _refund_late(tx, notification, invoice)


async def _paid(tx: Tx, locked: LockedSubscription, invoice: Invoice, notification: Notification) -> None:
    if (posting := ledger.paid(invoice)) is not None:
        await tx.post(posting)
    await settlement.pay(tx, locked, invoice, notification.transaction_id, _paid_with(notification))


async def _release(tx: Tx, locked: LockedSubscription, notification: Notification, invoice: Invoice) -> str:
    """A payment of another amount pays nothing: it is refunded, and the attempt has failed. There is no other attempt
    until it is refunded (dunning.py)."""
    problem = _another_amount(notification, invoice)
    if notification.transaction_id is None:
        return problem
    await _send_back(tx, notification, notification.transaction_id, invoice, problem)
    await settlement.fail(tx, locked, invoice, WRONG_AMOUNT, hard=False)
    return problem


async def _refund_late(tx: Tx, notification: Notification, invoice: Invoice) -> str | None:
    """The charge was in progress when its invoice ended, or another charge paid it: the customer gets a refund."""
    if notification.transaction_id is None or invoice.transaction_id == notification.transaction_id:
        return _out_of_turn(notification, invoice)
    reason = f"invoice {invoice.number} was {invoice.state} when its payment arrived"
    await _send_back(tx, notification, notification.transaction_id, invoice, reason)
    log.warning("late_payment_given_back", invoice=invoice.number, transaction=notification.transaction_id)
    return None


async def _send_back(tx: Tx, notification: Notification, transaction_id: str, invoice: Invoice, reason: str) -> None:
    await _record_unapplied(tx, notification, invoice, reason, refund_asked=True)
    await request_refund(tx, transaction_id, reason, invoice.subscription_id)


async def request_refund(tx: Tx, transaction_id: str, reason: str, about: str | None, *, again: bool = False) -> UUID:
    """Requests a refund of whatever is left: an operator may have refunded a part before this event arrived. Returns
    the message id. Pass `again` if the message was lost: its key is remembered, and payments recognises the refund by
    the key in the payload."""
    key = f"late:{transaction_id}"
    return await tx.send(
        REFUND_INITIATION,
        {"transaction_id": transaction_id, "reason": reason, "key": key},
        action=Action.REFUND,
        key=None if again else key,
        correlation_id=about,
    )


async def _refund(tx: Tx, notification: Notification) -> str | None:
    refund_id, refund_key = _text(notification, "refund_id"), _text(notification, "refund_key")
    if refund_key is not None and refund_key.startswith(CREDIT_KEY):
        return await credit_payouts.apply(tx, notification, refund_key)
    apart = await _returned(tx, notification, refund_id)
    if apart or _text(notification, "invoice_id") is None:
        return None
    found = await _invoice(tx, notification)
    if found is None:
        return f"there is no invoice {_text(notification, 'invoice_id')!r} to refund"
    locked, invoice = found
    if invoice.charging:
        raise Retry(f"the payment event of invoice {invoice.number} has not arrived yet")
    amount = _amount(notification, invoice)
    if invoice.transaction_id != notification.transaction_id or amount is None or refund_id is None:
        refunded = f"{notification.amount} {notification.currency}"
        return f"refund {refund_id!r} of {refunded} does not match invoice {invoice.number}"
    if notification.status is Status.FAILED:
        await invoices.mark_not_refunded(tx, invoice)
        await wake(tx, locked.subscription.test_clock_id)
        return f"refund {refund_id} of invoice {invoice.number} failed at the gateway"
    if invoice.refunded + amount > invoice.due:
        return f"refund {refund_id} exceeds what was paid for invoice {invoice.number}"
    outside: Any = notification.metadata.get("outside")
    note = CreditNote(
        str(new_id()),
        "",
        invoice.id,
        refund_id,
        amount,
        _text(notification, "reason") or "refund",
        locked.now,
        outside if isinstance(outside, bool) else None,
    )
    await _credit(tx, locked, invoice, refund_id, note)
    return None


async def _credit(
    tx: Tx, locked: LockedSubscription, invoice: Invoice, refund_id: str, credit_note: CreditNote
) -> None:
    amount = credit_note.amount
    await tx.post(ledger.refunded(invoice, refund_id, amount))
    invoice = await invoices.mark_refunded(tx, invoice, amount)
    credit_note = await credit_notes.insert(tx, credit_note, locked.subscription.test_clock_id)
    detail = {"invoice_id": invoice.id, "credit_note": credit_note.number, "amount": amount.to_text()}
    await subscriptions.add_timeline_entry(tx, locked.subscription, "refunded", locked.now, detail)
    await merchant_events.announce_invoice(tx, "credited", invoice, credit_note)
    await wake(tx, locked.subscription.test_clock_id)


async def _returned(tx: Tx, notification: Notification, refund_id: str | None) -> bool:
    """Whether it refunds money without a matching invoice, which is hereby removed from the ledger."""
    row = await tx.fetchrow(
        "select * from subscriptions.unapplied_payments where transaction_id = $1 for update",
        notification.transaction_id,
    )
    if row is None or notification.transaction_id is None or refund_id is None:
        return False
    if notification.status is Status.FAILED:
        # It is not retried; an operator decides.
        await tx.execute(
            """
            update subscriptions.unapplied_payments set refund_asked = false, updated_at = payonce.due_now()
            where transaction_id = $1
            """,
            notification.transaction_id,
        )
        return True
    amount = Amount.from_decimal(notification.amount, asset_of(notification.currency))
    await tx.execute(
        """
        update subscriptions.unapplied_payments
        set returned_minor = returned_minor + $2, updated_at = payonce.due_now() where transaction_id = $1
        """,
        notification.transaction_id,
        amount.minor,
    )
    await tx.post(ledger.returned(notification.transaction_id, refund_id, amount))
    return True


async def _record_unapplied(
    tx: Tx, notification: Notification, invoice: Invoice | None, reason: str, *, refund_asked: bool = False
) -> str:
    """Books money without a matching invoice separately; an invariant reports it until it is refunded."""
    if notification.status is Status.FAILED or notification.transaction_id is None:
        return reason
    amount = Amount.from_decimal(notification.amount, asset_of(notification.currency))
    await tx.execute(
        """
        insert into subscriptions.unapplied_payments (transaction_id, event_id, subscription_id, invoice_id, currency,
            exponent, amount_minor, refund_asked, reason)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (transaction_id) do nothing
        """,
        notification.transaction_id,
        notification.event_id,
        notification.subscription_id,
        None if invoice is None else invoice.id,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        refund_asked,
        reason[:UNAPPLIED_REASON_MAX_LENGTH],
    )
    await tx.post(ledger.unapplied(notification.transaction_id, amount))
    return reason


async def _invoice(tx: Tx, notification: Notification) -> tuple[LockedSubscription, Invoice] | None:
    """The invoice and its locked subscription; None if the invoice does not belong to the subscription."""
    invoice_id = _text(notification, "invoice_id")
    if invoice_id is None or notification.subscription_id is None:
        return None
    try:
        locked = await subscriptions.locked(tx, notification.subscription_id)
    except NotFound:
        return None
    invoice = await invoices.find(tx, invoice_id)
    if invoice is None or invoice.subscription_id != locked.subscription.id:
        return None
    return locked, invoice


def _amount(notification: Notification, invoice: Invoice) -> Amount | None:
    """None if the currency is not the invoice's."""
    if notification.currency != invoice.due.asset.code:
        return None
    try:
        return Amount.from_decimal(notification.amount, invoice.due.asset)
    except Invalid:
        return None


def _answers(notification: Notification, invoice: Invoice) -> bool:
    """Whether it answers the current attempt, and not an earlier one."""
    return notification.metadata.get("generation") == invoice.generation


def _another_amount(notification: Notification, invoice: Invoice) -> str:
    return f"{notification.amount} {notification.currency} is not the amount of {invoice.number}"


def _out_of_turn(notification: Notification, invoice: Invoice) -> str:
    attempt = notification.metadata.get("generation")
    return f"{notification.status} of attempt {attempt} arrived when {invoice.number} was {invoice.state}"


def _paid_with(notification: Notification) -> str | None:
    """None if payments does not name the card, as earlier versions do."""
    brand, last4 = _text(notification, "card_brand"), _text(notification, "card_last4")
    return f"{brand} card ending in {last4}"[:PAID_WITH_MAX_LENGTH] if brand and last4 else None


def _text(notification: Notification, name: str) -> str | None:
    value: Any = notification.metadata.get(name)
    return value if isinstance(value, str) else None
