"""Dunning: handles a failed charge until the invoice is paid or written off. The days are in domain/dunning.py."""

from datetime import datetime, timedelta
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.subscriptions.domain import dunning
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import invoices, merchant_events, unpaid_invoices
from payonce.services.billing.subscriptions.model import (
    WRONG_AMOUNT,
    AfterDunning,
    Due,
    Invoice,
    InvoiceState,
    State,
)
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store import plan_changes, subscriptions
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription

OWING: Final = frozenset({State.INCOMPLETE, State.PAST_DUE, State.UNPAID})
NOT_PAID: Final = "its renewal could not be charged within the dunning days"
NOT_FITTING: Final = "a payment of another amount arrived and is refunded before the next attempt"
LOOKED_AGAIN_AFTER: Final = timedelta(days=1)
"""On a dunning day, for a mismatched payment that is not refunded yet: nobody is charged twice meanwhile."""


async def follow_failure(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> Invoice:
    """After a failed renewal: schedules the next dunning day, or ends dunning as the plan says."""
    subscription, now = locked.subscription, locked.now
    if subscription.state is State.UNPAID:
        invoice = await unpaid_invoices.give_up(tx, invoice, now)
        await subscriptions.move(tx, subscription, "payment_failed", now, detail=_of(invoice))
        return invoice
    at = _next_step(locked, invoice)
    if at is None:
        return await end_dunning(tx, locked, invoice)
    kind = "payment_failed" if subscription.state is State.PAST_DUE else "past_due"
    moved = await subscriptions.move(
        tx,
        subscription,
        kind,
        now,
        detail={**_of(invoice), "next": at.isoformat()},
        state=State.PAST_DUE,
        due_at=at,
        due_for=Due.DUN,
        reason=_why(invoice),
    )
    if kind == "past_due":
        await merchant_events.announce_subscription(tx, "past_due", moved)
    return invoice


async def dun(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> Invoice:
    """Processes a dunning day. After a hard decline there is only one, the last."""
    if (transaction_id := await invoice_store.on_its_way_back(tx, invoice)) is not None:
        at = locked.now + LOOKED_AGAIN_AFTER
        detail = {**_of(invoice), "transaction_id": transaction_id, "next": at.isoformat()}
        await subscriptions.move(tx, locked.subscription, "dunning_waits", locked.now, detail=detail, due_at=at)
        return invoice
    return await (end_dunning if invoice.declined_hard else try_again)(tx, locked, invoice)


async def try_again(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> Invoice:
    """Starts the next attempt with a new generation, which makes it a new charge; nothing else is due until it is
    answered."""
    subscription = locked.subscription
    if invoice.state is InvoiceState.UNCOLLECTIBLE:
        invoice = await unpaid_invoices.take_up_again(tx, invoice, locked.now)
    invoice = await invoice_store.begin_charge(tx, invoice)
    await invoices.send_charge(tx, invoice)
    due = {"due_at": None, "due_for": None} if subscription.state is State.PAST_DUE else {}
    detail = {**_of(invoice), "generation": invoice.generation}
    await subscriptions.move(tx, subscription, "payment_retried", locked.now, detail=detail, **due)
    return invoice


async def end_dunning(tx: Tx, locked: LockedSubscription, invoice: Invoice) -> Invoice:
    """Ends dunning: the subscription becomes unpaid, and may be paid later, or canceled, depending on its plan."""
    now = locked.now
    invoice = await unpaid_invoices.give_up(tx, invoice, now)
    if locked.plan.after_dunning is AfterDunning.UNPAID:
        moved = await subscriptions.move(
            tx,
            locked.subscription,
            "unpaid",
            now,
            detail=_of(invoice),
            state=State.UNPAID,
            due_at=None,
            due_for=None,
            reason=NOT_PAID,
        )
        await merchant_events.announce_subscription(tx, "unpaid", moved)
        return invoice
    await unpaid_invoices.close_books(tx, locked.subscription, now, NOT_PAID)
    moved = await subscriptions.move(
        tx,
        locked.subscription,
        "canceled",
        now,
        detail=_of(invoice),
        state=State.CANCELED,
        due_at=None,
        due_for=None,
        ended_at=now,
        reason=NOT_PAID,
        next_plan_id=None,
    )
    await merchant_events.announce_subscription(tx, "canceled", moved)
    await plan_changes.fail_all(
        tx, subscriptions.with_subscription(locked, moved), f"the subscription ended: {NOT_PAID}"
    )
    return invoice


async def try_new_card(tx: Tx, account_id: str) -> Invoice | None:
    """After the account added a card: charges an overdue invoice at once."""
    locked = await subscriptions.locked_of_account(tx, account_id)
    if locked is None:
        return None
    invoice = await invoice_store.latest_owed(tx, locked.subscription.id)
    if invoice is None:
        return None
    if invoice.charging:
        return await invoice_store.mark_for_new_card(tx, invoice)
    if locked.subscription.state not in OWING or await invoice_store.on_its_way_back(tx, invoice) is not None:
        return None
    if await unpaid_invoices.missing_credit(tx, invoice):
        # A request to pay reports the missing credit; a new card alone is no such request.
        return None
    return await try_again(tx, locked, invoice)


async def pay_invoice(tx: Tx, account_id: str | None, invoice_id: str) -> Invoice:
    """Charges an invoice at once, requested by its customer, or by an operator (no account). Raises NotFound or
    Conflict."""
    found = await invoice_store.find(tx, invoice_id)
    if found is None or account_id not in (None, found.account_id):
        raise NotFound(f"there is no invoice {invoice_id!r}")
    locked = await subscriptions.locked(tx, found.subscription_id)
    owed = await invoice_store.latest_owed(tx, found.subscription_id)
    if owed is None or owed.id != found.id or locked.subscription.state not in OWING:
        raise Conflict(f"invoice {found.number} is {found.state} and cannot be paid")
    if owed.charging:
        raise Conflict(f"invoice {found.number} is being charged; wait for the answer")
    if (transaction_id := await invoice_store.on_its_way_back(tx, owed)) is not None:
        raise Conflict(
            f"payment {transaction_id} did not match invoice {found.number} and is being refunded; pay once it is "
            "refunded"
        )
    return await try_again(tx, locked, owed)


def _next_step(locked: LockedSubscription, invoice: Invoice) -> datetime | None:
    """None when dunning has ended. Additional attempts, for example with another card, do not use up a day."""
    assert invoice.first_failed_at is not None
    zone = locked.subscription.time_zone
    return dunning.next_day(invoice.first_failed_at, invoice.declined_hard, zone, locked.now)


def _why(invoice: Invoice) -> str:
    return NOT_FITTING if invoice.decline_code == WRONG_AMOUNT else f"its card was declined: {invoice.decline_code}"


def _of(invoice: Invoice) -> dict[str, object]:
    return {"invoice_id": invoice.id, "number": invoice.number, "decline_code": invoice.decline_code}
