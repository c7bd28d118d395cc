"""Removes safeguards of billing one at a time: the scenarios must detect each removal."""

from typing import Any, Final

import msgspec

from payonce.engine.messages.transaction import Tx
from payonce.kit.ids import new_id
from payonce.services.billing import wire
from payonce.services.billing.subscriptions.handlers import invoices, payment_events, plan_change_invoices, renewals
from payonce.services.billing.subscriptions.handlers.payment_events import PROCESSED, Applied
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.services.billing.wire import Notification
from payonce.testing.crash.ablations import (
    DAMAGE,
    Ablation,
    message_after_the_commit,
    no_intent_on_record,
    posting_after_the_commit,
    put,
)
from payonce.testing.crash.model import Mode
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.port import ChargeOrder, RefundOrder

STUCK: Final = frozenset({"stuck"})


def no_generation_in_the_key() -> None:
    """The invoice id only: the next dunning attempt is taken for a repetition of the first."""

    def by_invoice_alone(invoice_id: str, generation: int) -> str:
        return invoice_id

    put(wire, "charge_key", by_invoice_alone)
    put(invoices, "charge_key", by_invoice_alone)


def another_key_for_every_charge() -> None:
    """The gateway cannot recognise an order that it already executed."""
    charge = GatewayClient.charge

    async def charge_anew(client: GatewayClient, order: ChargeOrder) -> Any:
        return await charge(client, msgspec.structs.replace(order, key=f"{order.key} {new_id()}"))

    put(GatewayClient, "charge", charge_anew)


def another_key_for_every_refund() -> None:
    refund = GatewayClient.refund

    async def refund_anew(client: GatewayClient, order: RefundOrder) -> Any:
        return await refund(client, msgspec.structs.replace(order, key=f"{order.key} {new_id()}"))

    put(GatewayClient, "refund", refund_anew)


def events_applied_as_often_as_they_come() -> None:
    """The event is recorded without a check for duplicates."""

    async def apply_again(tx: Tx, notification: Notification) -> Applied:
        problem = await payment_events._apply(tx, notification)
        await tx.execute(
            """
            insert into subscriptions.payment_webhook_requests
                (event_id, payload, processed, processed_at, error_message)
            values ($1, $2::jsonb, true, payonce.due_now(), $3)
            on conflict (event_id) do update set error_message = $3
            """,
            notification.event_id,
            msgspec.json.encode(notification).decode(),
            problem,
        )
        return Applied(PROCESSED, problem)

    put(payment_events, "apply", apply_again)


def event_before_its_change() -> None:
    """The event is recorded at once, and the change follows in a second transaction."""
    apply = payment_events.apply

    async def apply_later(tx: Tx, notification: Notification) -> Applied:
        connection = tx.connection
        known = await tx.fetchval(
            "select true from subscriptions.payment_webhook_requests where event_id = $1", notification.event_id
        )
        if known:
            return Applied(payment_events.DUPLICATE)
        await tx.execute(
            """
            insert into subscriptions.payment_webhook_requests (event_id, payload, processed, processed_at)
            values ($1, $2::jsonb, true, payonce.due_now())
            """,
            notification.event_id,
            msgspec.json.encode(notification).decode(),
        )
        await connection.execute("commit")
        await connection.execute("begin")
        await tx.execute(
            "delete from subscriptions.payment_webhook_requests where event_id = $1", notification.event_id
        )
        return await apply(tx, notification)

    put(payment_events, "apply", apply_later)


def periods_not_counted() -> None:
    """Every renewal message begins a period."""
    renew = renewals._renew

    async def renew_whatever_is_next(tx: Tx, locked: LockedSubscription, number: int) -> None:
        await renew(tx, locked, locked.subscription.period + 1)

    put(renewals, "_renew", renew_whatever_is_next)
    put(renewals, "is_due", lambda *_: True)


def changes_beside_an_open_invoice() -> None:
    """A plan change is billed while another charge is in progress."""

    def nothing(*_: object) -> None:
        return None

    put(plan_change_invoices, "_obstacle", nothing)


ABLATIONS: Final = (
    Ablation("the generation in the key of a charge", no_generation_in_the_key, "billing-renewal", Mode.BEFORE),
    Ablation(
        "one key for all sends of a charge",
        another_key_for_every_charge,
        "billing-renewal",
        Mode.AFTER,
        near="vendors.gateway.client",
    ),
    Ablation(
        "one key for all sends of a refund",
        another_key_for_every_refund,
        "billing-trial",
        Mode.AFTER,
        near="vendors.gateway.client",
    ),
    Ablation("the intent of a charge", no_intent_on_record, "billing-trial", Mode.AFTER, near="vendors.gateway.client"),
    Ablation(
        "the notification in the commit of its charge",
        message_after_the_commit,
        "billing-trial",
        Mode.AFTER,
        DAMAGE | STUCK,
        "engine.messages.work",
    ),
    Ablation(
        "the books in the same commit",
        posting_after_the_commit,
        "billing-trial",
        Mode.AFTER,
        near="engine.messages.work",
    ),
    Ablation(
        "an event is applied once",
        events_applied_as_often_as_they_come,
        "billing-renewal",
        Mode.AFTER,
        near="take_payment_event",
    ),
    Ablation(
        "event and change in one commit",
        event_before_its_change,
        "billing-trial",
        Mode.AFTER,
        near="take_payment_event",
    ),
    Ablation(
        "credit and the order to pay it out in one commit",
        message_after_the_commit,
        "billing-credit",
        Mode.AFTER,
        DAMAGE | STUCK,
        "engine.messages.work",
    ),
    Ablation(
        "a change of plan waits for no other invoice",
        changes_beside_an_open_invoice,
        "billing-change-renewal",
        Mode.STOPPED,
    ),
    Ablation("one invoice for each period", periods_not_counted, "billing-renewal", Mode.BEFORE),
)
