"""Periodic work of payments: re-enqueues work that lost its message, and deletes old delivery attempts."""

from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.janitors import Daily, Every, Schedule
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.services.billing.policies import (
    CHARGE_INITIATION,
    PAYMENTS_CLOCK,
    REFUND_INITIATION,
    SUBSCRIPTION_UPDATE,
)

PUT_BACK: Final = "put_back_payments"
CLEAN_UP: Final = "clean_up_payments"
FORGOTTEN_AFTER_S: Final = 600.0
"""Work without a message for so long after its last step is lost, not between two messages."""
PUT_BACK_MAX: Final = 100
"""Of each kind per run; the next run finds the others."""
ATTEMPTS_KEPT: Final = "interval '90 days'"
CLEAN_UP_MAX: Final = 50_000
"""Rows per night; the rest is deleted the next night."""

SCHEDULES: Final = (
    Schedule("billing-payments-put-back", PAYMENTS_CLOCK, every=Every(300), action=PUT_BACK),
    Schedule("billing-payments-clean-up", PAYMENTS_CLOCK, every=Daily("02:00", "UTC"), action=CLEAN_UP),
)

log = get_logger(__name__)


@handles(PAYMENTS_CLOCK, PUT_BACK)
async def put_back_payments(work: Work) -> None:
    """Re-enqueues work whose message was lost, for example when an operator purged a queue. Work with a message, even a
    parked one, is left alone."""
    async with work.commit() as tx:
        await _put_back_charges(tx)
        await _put_back_refunds(tx)
        await _put_back_notifications(tx)


@handles(PAYMENTS_CLOCK, CLEAN_UP)
async def clean_up_payments(work: Work) -> None:
    async with work.commit() as tx:
        await tx.execute(
            f"""
            delete from payments.webhook_outbound_requests where id in (
                select id from payments.webhook_outbound_requests
                where created_at < payonce.due_now() - {ATTEMPTS_KEPT} order by created_at limit $1)
            """,
            CLEAN_UP_MAX,
        )


async def _put_back_charges(tx: Tx) -> None:
    rows = await tx.fetch(
        """
        select t.id, t.action, coalesce(t.subscription_id, t.id) as about from payments.transactions t
        where t.state = 'pending' and t.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists (select from payonce.live_messages m
                          where m.queue = $2 and m.correlation_id = coalesce(t.subscription_id, t.id))
        order by t.created_at limit $3 for update of t skip locked
        """,
        FORGOTTEN_AFTER_S,
        CHARGE_INITIATION.queue,
        PUT_BACK_MAX,
    )
    for row in rows:
        await tx.send(
            CHARGE_INITIATION, {"transaction_id": row["id"]}, action=row["action"], correlation_id=row["about"]
        )
        await _record(tx, row["id"], "the charge was pending and had no message")


async def _put_back_refunds(tx: Tx) -> None:
    rows = await tx.fetch(
        """
        select r.id, coalesce(t.subscription_id, t.id) as about
        from payments.refunds r join payments.transactions t on t.id = r.transaction_id
        where r.state = 'pending' and r.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists (select from payonce.live_messages m
                          where m.queue = $2 and m.correlation_id = coalesce(t.subscription_id, t.id))
        order by r.created_at limit $3 for update of r skip locked
        """,
        FORGOTTEN_AFTER_S,
        REFUND_INITIATION.queue,
        PUT_BACK_MAX,
    )
    for row in rows:
        await tx.send(REFUND_INITIATION, {"refund_id": row["id"]}, action="refund", correlation_id=row["about"])
        await _record(tx, row["id"], "the refund was pending and had no message")


async def _put_back_notifications(tx: Tx) -> None:
    """By their ids, which every message that delivers one has in its key."""
    rows = await tx.fetch(
        """
        select n.event_id, n.action, coalesce(t.subscription_id, t.id, n.account_id) as about,
            extract(epoch from payonce.due_now())::bigint as now
        from payments.notifications n left join payments.transactions t on t.id = n.transaction_id
        where n.delivered_at is null and n.created_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists (select from payonce.live_messages m
                          where m.queue = $2 and strpos(m.idempotency_key, n.event_id) > 0)
        order by n.created_at limit $3 for update of n skip locked
        """,
        FORGOTTEN_AFTER_S,
        SUBSCRIPTION_UPDATE.queue,
        PUT_BACK_MAX,
    )
    for row in rows:
        await tx.send(
            SUBSCRIPTION_UPDATE,
            {"event_id": row["event_id"]},
            action=row["action"],
            correlation_id=row["about"],
            key=f"back:{row['event_id']}:{row['now']}",
        )
        await _record(tx, row["event_id"], "the notification was not delivered and had no message")


async def _record(tx: Tx, reference: str, text: str) -> None:
    log.warning("payment_put_back", what=reference, why=text)
    await tx.audit("billing.put_back", reference, text, actor="billing.payments", severity=Severity.WARNING)
