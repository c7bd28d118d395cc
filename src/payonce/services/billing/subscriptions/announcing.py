"""What merchants' webhooks hear of subscriptions and invoices, said in the commit that it follows from."""

from typing import Any

from payonce.engine.transaction import Tx
from payonce.engine.webhooks import announce
from payonce.services.billing.subscriptions.invoice_store import CreditNote
from payonce.services.billing.subscriptions.model import Invoice, Subscription


async def tell(tx: Tx, event: str, subscription: Subscription, *, heard: bool = True) -> None:
    """`event` is what happened to it: created, activated, trial_started, renewed, past_due, unpaid, paused, resumed,
    plan_changed, canceled or expired. `heard` is False when it is known already that nobody listens."""
    if not heard:
        return
    await announce(tx, f"subscription.{event}", described(subscription), trace_id=subscription.trace_id)


async def tell_invoice(
    tx: Tx, event: str, invoice: Invoice, note: CreditNote | None = None, *, heard: bool = True
) -> None:
    """`event` is issued, paid, payment_failed, voided or credited."""
    if not heard:
        return
    data = described_invoice(invoice)
    if note is not None:
        data["credit_note"] = described_note(note)
    await announce(tx, f"invoice.{event}", data, trace_id=invoice.trace_id)


def described(subscription: Subscription) -> dict[str, Any]:
    """As webhooks and our own routes show it."""
    return {
        "id": subscription.id, "account_id": subscription.account_id, "plan_id": subscription.plan_id,
        "state": subscription.state.value, "period": subscription.period,
        "period_start": _time(subscription.period_start), "period_end": _time(subscription.period_end),
        "trial_ends_at": _time(subscription.trial_ends_at), "next_plan_id": subscription.next_plan_id,
        "cancel_at_period_end": subscription.cancel_at_period_end, "paused_at": _time(subscription.paused_at),
        "ended_at": _time(subscription.ended_at), "reason": subscription.reason,
        "time_zone": subscription.time_zone, "test_clock_id": subscription.test_clock_id,
        "created_at": _time(subscription.created_at),
    }  # fmt: skip


def described_invoice(invoice: Invoice) -> dict[str, Any]:
    """Amounts in major units, as texts with all decimals of their currency."""
    return {
        "id": invoice.id, "number": invoice.number, "account_id": invoice.account_id,
        "subscription_id": invoice.subscription_id, "action": invoice.action.value, "plan_id": invoice.plan_id,
        "period": invoice.period, "period_start": _time(invoice.period_start), "period_end": _time(invoice.period_end),
        "currency": invoice.total.asset.code, "total": invoice.total.to_text(), "credit": invoice.credit.to_text(),
        "due": invoice.due.to_text(), "refunded": invoice.refunded.to_text(), "state": invoice.state.value,
        "charging": invoice.charging, "failures": invoice.failures, "decline_code": invoice.decline_code,
        "transaction_id": invoice.transaction_id, "issued_at": _time(invoice.issued_at),
        "paid_at": _time(invoice.paid_at),
        "lines": [
            {
                "line": line.line, "kind": line.kind.value, "text": line.text, "plan_id": line.plan_id,
                "amount": line.amount.to_text(), "service_start": _time(line.service_start),
                "service_end": _time(line.service_end),
            }
            for line in invoice.lines
        ],
    }  # fmt: skip


def described_note(note: CreditNote) -> dict[str, Any]:
    return {
        "id": note.id, "number": note.number, "invoice_id": note.invoice_id, "refund_id": note.refund_id,
        "amount": note.amount.to_text(), "currency": note.amount.asset.code, "reason": note.reason,
        "issued_at": _time(note.issued_at),
    }  # fmt: skip


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat()
