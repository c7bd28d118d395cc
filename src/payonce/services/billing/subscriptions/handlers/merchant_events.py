"""Events for merchants' webhooks about customers, subscriptions and invoices, announced in the commit that causes
them."""

from typing import Any, Literal

from payonce.engine.messages.transaction import Tx
from payonce.engine.webhooks import announce
from payonce.services.billing.subscriptions.model import Account, Invoice, PlanChangeRecord, Subscription
from payonce.services.billing.subscriptions.store.credit_notes import CreditNote

SubscriptionEvent = Literal[
    "created",
    "activated",
    "trial_started",
    "renewed",
    "past_due",
    "unpaid",
    "paused",
    "resumed",
    "canceled",
    "expired",
    "plan_change_requested",
    "plan_change_scheduled",
    "plan_changed",
    "plan_change_failed",
    "plan_change_canceled",
]
InvoiceEvent = Literal["issued", "paid", "payment_failed", "voided", "credited"]


async def announce_subscription(
    tx: Tx,
    event: SubscriptionEvent,
    subscription: Subscription,
    *,
    has_webhooks: bool = True,
    change: dict[str, Any] | None = None,
) -> None:
    """Announces `subscription.<event>`; events of a plan change include the `change`. `has_webhooks` is False if no
    endpoint is known to exist."""
    if not has_webhooks:
        return
    data = described(subscription)
    if change is not None:
        data["plan_change"] = change
    await announce(tx, f"subscription.{event}", data, trace_id=subscription.trace_id)


async def announce_customer(tx: Tx, event: str, customer: Account) -> None:
    """Announces `customer.<event>`; `event` is created or updated."""
    await announce(tx, f"customer.{event}", described_customer(customer))


async def announce_invoice(
    tx: Tx, event: InvoiceEvent, invoice: Invoice, note: CreditNote | None = None, *, has_webhooks: bool = True
) -> None:
    """Announces `invoice.<event>`."""
    if not has_webhooks:
        return
    data = described_invoice(invoice)
    if note is not None:
        data["credit_note"] = described_note(note)
    await announce(tx, f"invoice.{event}", data, trace_id=invoice.trace_id)


def described_customer(customer: Account) -> dict[str, Any]:
    return {
        "id": customer.id,
        "external_id": customer.external_id,
        "email": customer.email,
        "name": customer.name,
        "time_zone": customer.time_zone,
        "locale": customer.locale,
        "test_clock_id": customer.test_clock_id,
        "has_password": customer.has_password,
        "revision": customer.revision,
        "created_at": _time(customer.created_at),
        "updated_at": _time(customer.updated_at),
    }


def described(subscription: Subscription) -> dict[str, Any]:
    """The subscription as in webhooks and our own routes."""
    return {
        "id": subscription.id,
        "account_id": subscription.account_id,
        "plan_id": subscription.plan_id,
        "state": subscription.state.value,
        "period": subscription.period,
        "period_start": _time(subscription.period_start),
        "period_end": _time(subscription.period_end),
        "trial_ends_at": _time(subscription.trial_ends_at),
        "converts_to_plan_id": subscription.converts_to_plan_id,
        "next_plan_id": subscription.next_plan_id,
        "cancel_at_period_end": subscription.cancel_at_period_end,
        "paused_at": _time(subscription.paused_at),
        "ended_at": _time(subscription.ended_at),
        "reason": subscription.reason,
        "time_zone": subscription.time_zone,
        "test_clock_id": subscription.test_clock_id,
        "created_at": _time(subscription.created_at),
    }


def described_change(change: PlanChangeRecord, subscription: Subscription) -> dict[str, Any]:
    return {
        "change_id": change.id,
        "from_plan_id": change.from_plan_id,
        "to_plan_id": change.to_plan_id,
        "when": change.timing.value,
        "state": change.state.value,
        "reason": change.reason,
        "effective_at": _time(change.effective_at(subscription)),
        "migration_id": change.migration_id,
        "requested_at": _time(change.requested_at),
        "ended_at": _time(change.ended_at),
    }


def described_invoice(invoice: Invoice) -> dict[str, Any]:
    """Amounts are in major units, as text with all decimals of their currency."""
    return {
        "id": invoice.id,
        "number": invoice.number,
        "account_id": invoice.account_id,
        "subscription_id": invoice.subscription_id,
        "action": invoice.action.value,
        "plan_id": invoice.plan_id,
        "period": invoice.period,
        "period_start": _time(invoice.period_start),
        "period_end": _time(invoice.period_end),
        "currency": invoice.total.asset.code,
        "total": invoice.total.to_text(),
        "credit": invoice.credit.to_text(),
        "due": invoice.due.to_text(),
        "refunded": invoice.refunded.to_text(),
        "state": invoice.state.value,
        "charging": invoice.charging,
        "failures": invoice.failures,
        "decline_code": invoice.decline_code,
        "transaction_id": invoice.transaction_id,
        "issued_at": _time(invoice.issued_at),
        "paid_at": _time(invoice.paid_at),
        "lines": [
            {
                "line": line.line,
                "kind": line.kind.value,
                "text": line.text,
                "plan_id": line.plan_id,
                "amount": line.amount.to_text(),
                "service_start": _time(line.service_start),
                "service_end": _time(line.service_end),
            }
            for line in invoice.lines
        ],
    }


def described_note(note: CreditNote) -> dict[str, Any]:
    return {
        "id": note.id,
        "number": note.number,
        "invoice_id": note.invoice_id,
        "refund_id": note.refund_id,
        "amount": note.amount.to_text(),
        "currency": note.amount.asset.code,
        "reason": note.reason,
        "issued_at": _time(note.issued_at),
    }


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat()
