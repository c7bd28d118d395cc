"""What payments tells us, applied once: the event on record and the change that follows from it are one commit."""

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid, Retry
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.services.billing.subscriptions import ledger
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers import dunning, merchant_events, plan_change_billing, settlement
from payonce.services.billing.subscriptions.model import WRONG_AMOUNT, Invoice, InvoiceState
from payonce.services.billing.subscriptions.store import credit_notes, credit_payouts, invoices, subscriptions
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote
from payonce.services.billing.subscriptions.store.subscriptions import Standing
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
    """The answer to the webhook, and what did not fit, which is on record with it."""

    status: str
    problem: str | None = None


async def apply(tx: Tx, notification: Notification) -> Applied:
    """Changes what follows from an event, the first time that it comes. Raises Retry when something that happened
    before it has not been told yet; nothing is written then."""
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
    problem = await _follow(tx, notification)
    if problem is not None:
        await tx.execute(
            "update subscriptions.payment_webhook_requests set error_message = $2 where event_id = $1",
            notification.event_id,
            problem,
        )
        log.error("payment_event_does_not_fit", event_id=notification.event_id, problem=problem)
        await note(
            tx.connection, "billing.unapplied", notification.event_id, problem, actor="billing", severity=Severity.ERROR
        )
    return Applied(PROCESSED, problem)


async def _follow(tx: Tx, told: Notification) -> str | None:
    """None, or what does not fit."""
    match told.action:
        case Action.PAYMENT_METHOD:
            await dunning.try_new_card(tx, _text(told, "account_id") or "")
            return None
        case Action.PAYMENT:
            return None
        case Action.CREDIT_HOLD:
            return await plan_change_billing.follow_answer(tx, told)
        case Action.REFUND:
            return await _refund(tx, told)
        case _:
            return await _charge(tx, told)


async def _charge(tx: Tx, told: Notification) -> str | None:
    found = await _invoice(tx, told)
    if found is None:
        return await _keep_apart(tx, told, None, f"there is no invoice {_text(told, 'invoice_id')!r}")
    standing, invoice = found
    if invoice.charging and _answers(told, invoice):
        fits = _amount(told, invoice) == invoice.due
        if told.status is Status.FAILED:
            code, hard = _text(told, "decline_code"), told.metadata.get("hard") is True
            await settlement.fail(tx, standing, invoice, code, hard)
            return None if fits else _another_amount(told, invoice)
        if not fits:
            return await _release(tx, standing, told, invoice)
        await _paid(tx, standing, invoice, told)
        return None
    if told.status is Status.FAILED:
        return None if invoice.state in ENDED_MEANWHILE else _out_of_turn(told, invoice)
    return await _give_back(tx, told, invoice)


async def _paid(tx: Tx, standing: Standing, invoice: Invoice, told: Notification) -> None:
    if (posting := ledger.paid(invoice)) is not None:
        await tx.post(posting)
    await settlement.pay(tx, standing, invoice, told.transaction_id, _paid_with(told))


async def _release(tx: Tx, standing: Standing, told: Notification, invoice: Invoice) -> str:
    """More or less than is due pays nothing: it goes back, and the try has failed. Until it is back there is no other
    try (collecting.py), and then dunning goes on."""
    problem = _another_amount(told, invoice)
    if told.transaction_id is None:
        return problem
    await _send_back(tx, told, told.transaction_id, invoice, problem)
    await settlement.fail(tx, standing, invoice, WRONG_AMOUNT, hard=False)
    return problem


async def _give_back(tx: Tx, told: Notification, invoice: Invoice) -> str | None:
    """The charge was under way when its invoice ended, or another one paid it: the customer gets the money back."""
    if told.transaction_id is None or invoice.transaction_id == told.transaction_id:
        return _out_of_turn(told, invoice)
    reason = f"invoice {invoice.number} was {invoice.state} when its payment came"
    await _send_back(tx, told, told.transaction_id, invoice, reason)
    log.warning("late_payment_given_back", invoice=invoice.number, transaction=told.transaction_id)
    return None


async def _send_back(tx: Tx, told: Notification, transaction_id: str, invoice: Invoice, reason: str) -> None:
    await _keep_apart(tx, told, invoice, reason, refund_asked=True)
    await ask_back(tx, transaction_id, reason, invoice.subscription_id)


async def ask_back(tx: Tx, transaction_id: str, reason: str, about: str | None, *, again: bool = False) -> UUID:
    """Whatever is left of it: a person may have given back a part before we heard of the whole. Returns the id of the
    message. `again` when it was lost: its key is remembered, and payments knows the refund by the key in it."""
    key = f"late:{transaction_id}"
    return await tx.send(
        REFUND_INITIATION,
        {"transaction_id": transaction_id, "reason": reason, "key": key},
        action=Action.REFUND,
        key=None if again else key,
        correlation_id=about,
    )


async def _refund(tx: Tx, told: Notification) -> str | None:
    refund_id, refund_key = _text(told, "refund_id"), _text(told, "refund_key")
    if refund_key is not None and refund_key.startswith(CREDIT_KEY):
        return await credit_payouts.apply(tx, told, refund_key)
    apart = await _returned(tx, told, refund_id)
    if apart or _text(told, "invoice_id") is None:
        return None
    found = await _invoice(tx, told)
    if found is None:
        return f"there is no invoice {_text(told, 'invoice_id')!r} to give back of"
    standing, invoice = found
    if invoice.charging:
        raise Retry(f"the payment of invoice {invoice.number} has not been told yet")
    amount = _amount(told, invoice)
    if invoice.transaction_id != told.transaction_id or amount is None or refund_id is None:
        return f"refund {refund_id!r} of {told.amount} {told.currency} does not fit invoice {invoice.number}"
    if told.status is Status.FAILED:
        await invoices.mark_not_refunded(tx, invoice)
        await wake(tx, standing.subscription.test_clock_id)
        return f"refund {refund_id} of invoice {invoice.number} failed at the gateway"
    if invoice.refunded + amount > invoice.due:
        return f"refund {refund_id} gives back more than invoice {invoice.number} was paid"
    outside: Any = told.metadata.get("outside")
    note = CreditNote(
        str(new_id()),
        "",
        invoice.id,
        refund_id,
        amount,
        _text(told, "reason") or "refund",
        standing.now,
        outside if isinstance(outside, bool) else None,
    )
    await _credit(tx, standing, invoice, refund_id, note)
    return None


async def _credit(tx: Tx, standing: Standing, invoice: Invoice, refund_id: str, credit_note: CreditNote) -> None:
    amount = credit_note.amount
    await tx.post(ledger.refunded(invoice, refund_id, amount))
    invoice = await invoices.mark_refunded(tx, invoice, amount)
    credit_note = await credit_notes.insert(tx, credit_note, standing.subscription.test_clock_id)
    detail = {"invoice_id": invoice.id, "credit_note": credit_note.number, "amount": amount.to_text()}
    await subscriptions.add_timeline_entry(tx, standing.subscription, "refunded", standing.now, detail)
    await merchant_events.tell_invoice(tx, "credited", invoice, credit_note)
    await wake(tx, standing.subscription.test_clock_id)


async def _returned(tx: Tx, told: Notification, refund_id: str | None) -> bool:
    """Whether it is of money that fitted no invoice, which is out of our books with this."""
    row = await tx.fetchrow(
        "select * from subscriptions.unapplied_payments where transaction_id = $1 for update", told.transaction_id
    )
    if row is None or told.transaction_id is None or refund_id is None:
        return False
    if told.status is Status.FAILED:
        # Nobody tries it again: from here on it is a person's.
        await tx.execute(
            """
            update subscriptions.unapplied_payments set refund_asked = false, updated_at = payonce.due_now()
            where transaction_id = $1
            """,
            told.transaction_id,
        )
        return True
    amount = Amount.from_decimal(told.amount, asset_of(told.currency))
    await tx.execute(
        """
        update subscriptions.unapplied_payments
        set returned_minor = returned_minor + $2, updated_at = payonce.due_now() where transaction_id = $1
        """,
        told.transaction_id,
        amount.minor,
    )
    await tx.post(ledger.returned(told.transaction_id, refund_id, amount))
    return True


async def _keep_apart(
    tx: Tx, told: Notification, invoice: Invoice | None, reason: str, *, refund_asked: bool = False
) -> str:
    """Money for what nobody owes is named in the books, and found by an invariant until it is back."""
    if told.status is Status.FAILED or told.transaction_id is None:
        return reason
    amount = Amount.from_decimal(told.amount, asset_of(told.currency))
    await tx.execute(
        """
        insert into subscriptions.unapplied_payments (transaction_id, event_id, subscription_id, invoice_id, currency,
            exponent, amount_minor, refund_asked, reason)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (transaction_id) do nothing
        """,
        told.transaction_id,
        told.event_id,
        told.subscription_id,
        None if invoice is None else invoice.id,
        amount.asset.code,
        amount.asset.exponent,
        amount.minor,
        refund_asked,
        reason[:UNAPPLIED_REASON_MAX_LENGTH],
    )
    await tx.post(ledger.unapplied(told.transaction_id, amount))
    return reason


async def _invoice(tx: Tx, told: Notification) -> tuple[Standing, Invoice] | None:
    """Behind the lock of the subscription that the event names; None when the invoice is not one of its own."""
    invoice_id = _text(told, "invoice_id")
    if invoice_id is None or told.subscription_id is None:
        return None
    try:
        standing = await subscriptions.locked(tx, told.subscription_id)
    except NotFound:
        return None
    invoice = await invoices.find(tx, invoice_id)
    if invoice is None or invoice.subscription_id != standing.subscription.id:
        return None
    return standing, invoice


def _amount(told: Notification, invoice: Invoice) -> Amount | None:
    """None: it is not one of the invoice's currency."""
    if told.currency != invoice.due.asset.code:
        return None
    try:
        return Amount.from_decimal(told.amount, invoice.due.asset)
    except Invalid:
        return None


def _answers(told: Notification, invoice: Invoice) -> bool:
    """Whether it is the answer to the try that is under way, and not to one before it."""
    return told.metadata.get("generation") == invoice.generation


def _another_amount(told: Notification, invoice: Invoice) -> str:
    return f"{told.amount} {told.currency} is not what {invoice.number} is of"


def _out_of_turn(told: Notification, invoice: Invoice) -> str:
    return f"{told.status} of try {told.metadata.get('generation')} came when {invoice.number} was {invoice.state}"


def _paid_with(told: Notification) -> str | None:
    """None where payments does not name the card, as versions before this do not."""
    brand, last4 = _text(told, "card_brand"), _text(told, "card_last4")
    return f"{brand} card ending in {last4}"[:PAID_WITH_MAX_LENGTH] if brand and last4 else None


def _text(told: Notification, name: str) -> str | None:
    value: Any = told.metadata.get(name)
    return value if isinstance(value, str) else None
