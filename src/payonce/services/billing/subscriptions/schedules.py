"""Periodic work of subscriptions: due renewals and dunning, revenue recognition, stalled test clocks, and lost
messages."""

from typing import Final
from uuid import UUID

from payonce.engine.audit import Severity
from payonce.engine.janitors import Daily, Every, Schedule
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.services.billing.policies import (
    BILLING_CLOCK,
    CHARGE_INITIATION,
    CREDIT_HOLD,
    PAYMENT_INITIATION,
    PLAN_CHANGE,
    REFUND_INITIATION,
    SUBSCRIPTION_UPDATE,
    TRIAL_PAYMENT,
)
from payonce.services.billing.subscriptions.handlers import invoices, payment_events, plan_migrations, revenue
from payonce.services.billing.subscriptions.handlers import plan_changes as changing
from payonce.services.billing.subscriptions.handlers.payments_relay import RELAY
from payonce.services.billing.subscriptions.store import (
    allowance_windows,
    credit_payouts,
    due_work,
    plan_changes,
    plans,
)
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store.test_clock_wakeup import MOVE, wake
from payonce.services.billing.wire import Action

RENEW: Final = "renew_due"
EARN: Final = "earn_revenue"
CLEAN_UP: Final = "clean_up"
PUT_BACK: Final = "put_back_billing"
PUT_BACK_NOTES: Final = "billing.put_back"
"""The audit log's location for re-enqueued work."""
PUT_BACK_MAX: Final = 100
"""Per run; the next run finds the others."""
FORGOTTEN_AFTER_S: Final = 900.0
"""Work without a message for so long after its last step is lost, not between two messages."""
CLOCKS_MAX: Final = 1_000
"""Per run; further test clocks advance when the work that they wait for ends."""
KEEP_TOKENS: Final = "interval '30 days'"
"""After expiry: until then the reuse of a stolen token is still detected."""

SCHEDULES: Final = (
    Schedule("billing-renewals", BILLING_CLOCK, every=Every(60), action=RENEW),
    Schedule("billing-revenue", BILLING_CLOCK, every=Every(3_600), action=EARN),
    Schedule("billing-put-back", BILLING_CLOCK, every=Every(900), action=PUT_BACK),
    Schedule("billing-clean-up", BILLING_CLOCK, every=Daily("02:00", "UTC"), action=CLEAN_UP),
)

log = get_logger(__name__)


@handles(BILLING_CLOCK, RENEW)
async def renew_due(work: Work) -> None:
    """Enqueues due work, and continues at once if one batch was not enough."""
    async with work.commit() as tx:
        if await due_work.take_due(tx, due_work.TAKEN_MAX) >= due_work.TAKEN_MAX:
            await tx.send(BILLING_CLOCK, {}, action=RENEW)
        rows = await tx.fetch(
            """
            select id from subscriptions.test_clocks c where target_at > now_at or exists (
                select from subscriptions.subscriptions s
                where s.test_clock_id = c.id and s.due_at <= c.now_at and s.put_for is distinct from s.due_at)
            order by updated_at limit $1
            """,
            CLOCKS_MAX,
        )
        for row in rows:
            # The message that advances it may have been purged.
            await tx.send(BILLING_CLOCK, {"test_clock_id": row["id"]}, action=MOVE, correlation_id=row["id"])


@handles(BILLING_CLOCK, EARN)
async def earn_revenue(work: Work) -> None:
    async with work.commit() as tx:
        if await revenue.earn_due(tx, revenue.COUNTED_MAX) >= revenue.COUNTED_MAX:
            await tx.send(BILLING_CLOCK, {}, action=EARN)


@handles(BILLING_CLOCK, PUT_BACK)
async def put_back_billing(work: Work) -> None:
    """Re-enqueues work whose message was lost, for example when an operator purged a queue. Work with a message, even a
    parked one, is left alone. Repeating a charge request is harmless: payments recognises its key."""
    async with work.commit() as tx:
        await _put_windows_right(tx)
        await _put_back_due(tx)
        await _put_back_first_invoices(tx)
        await _put_back_plan_changes(tx)
        await _put_back_migrations(tx)
        await _put_back_charges(tx)
        await _put_back_refunds(tx)
        await _put_back_payouts(tx)


@handles(BILLING_CLOCK, CLEAN_UP)
async def clean_up(work: Work) -> None:
    """Deletes expired refresh tokens. Failed messages need no clean-up: redriving or deciding one removes it."""
    async with work.commit() as tx:
        await tx.execute(
            f"delete from subscriptions.refresh_tokens where expires_at < payonce.due_now() - {KEEP_TOKENS}"
        )


async def _put_windows_right(tx: Tx) -> None:
    for subscription_id in await allowance_windows.put_right(tx, PUT_BACK_MAX):
        await _record(tx, subscription_id, "its allowance windows did not match its period and were recomputed")


async def _put_back_due(tx: Tx) -> None:
    """A test clock stays at the moment that it enqueued, so it is woken to enqueue it again."""
    rows = await tx.fetch(
        """
        update subscriptions.subscriptions s set put_for = null, revision = revision + 1
        from (
            select id from subscriptions.subscriptions d
            where d.put_for = d.due_at and d.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
              and d.due_at <= subscriptions.time_of(d.test_clock_id)
                  - make_interval(secs => case when d.test_clock_id is null then $1::float8 else 0 end)
              and not exists (select from payonce.live_messages m
                              where m.correlation_id = d.id and m.queue = any($2::text[]))
            limit $3 for update skip locked
        ) forgotten where s.id = forgotten.id returning s.id, s.due_for, s.test_clock_id
        """,
        FORGOTTEN_AFTER_S,
        [PAYMENT_INITIATION.queue, BILLING_CLOCK.queue],
        PUT_BACK_MAX,
    )
    for row in rows:
        await _record(tx, row["id"], f"{row['due_for']} was due and had no message")
    for test_clock_id in sorted({row["test_clock_id"] for row in rows if row["test_clock_id"] is not None}):
        await wake(tx, test_clock_id)


async def _put_back_first_invoices(tx: Tx) -> None:
    """Without a first invoice nobody is charged, and a test clock waits forever."""
    rows = await tx.fetch(
        """
        select s.id, p.trial_days is not null as trial from subscriptions.subscriptions s
        join subscriptions.plans p on p.id = s.plan_id
        where s.state = 'incomplete' and s.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists (select from subscriptions.invoices i where i.subscription_id = s.id)
          and not exists (select from payonce.live_messages m
                          where m.correlation_id = s.id and m.queue = any($2::text[]))
        limit $3 for update of s skip locked
        """,
        FORGOTTEN_AFTER_S,
        [PAYMENT_INITIATION.queue, TRIAL_PAYMENT.queue, BILLING_CLOCK.queue],
        PUT_BACK_MAX,
    )
    for row in rows:
        policy, action = (TRIAL_PAYMENT, Action.TRIAL) if row["trial"] else (PAYMENT_INITIATION, Action.INITIAL)
        await tx.send(policy, {"subscription_id": row["id"]}, action=action, correlation_id=row["id"])
        await _record(tx, row["id"], "its first invoice was due and had no message")


async def _put_back_plan_changes(tx: Tx) -> None:
    """Accepted changes without an invoice: without a message they would stay pending forever."""
    rows = await tx.fetch(
        """
        update subscriptions.plan_changes c set updated_at = payonce.due_now()
        from (
            select p.id from subscriptions.plan_changes p
            where p.state = 'pending' and not p.at_period_end
              and p.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
              and not exists (select from subscriptions.invoices i where i.id = p.id)
              and not exists (select from payonce.live_messages m
                              where m.correlation_id = p.subscription_id and m.queue = any($2::text[]))
            limit $3 for update skip locked
        ) forgotten where c.id = forgotten.id returning c.*
        """,
        FORGOTTEN_AFTER_S,
        [PLAN_CHANGE.queue, CREDIT_HOLD.queue, SUBSCRIPTION_UPDATE.queue],
        PUT_BACK_MAX,
    )
    for change in map(plan_changes.change_from, rows):
        older, newer = [await plans.plan(tx, each) for each in (change.from_plan_id, change.to_plan_id)]
        await changing.send_change(tx, change, dearer=plans.is_dearer(newer, older), again=True)
        await _record(tx, change.subscription_id, f"change {change.id} was accepted and had no message")


async def _put_back_migrations(tx: Tx) -> None:
    rows = await tx.fetch(
        """
        update subscriptions.plan_migrations c set updated_at = payonce.due_now()
        from (
            select p.id from subscriptions.plan_migrations p
            where p.state in ('running', 'canceling')
              and p.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
              and not exists (select from payonce.live_messages m where m.correlation_id = p.id and m.queue = $2)
            limit $3 for update skip locked
        ) forgotten where c.id = forgotten.id returning c.id
        """,
        FORGOTTEN_AFTER_S,
        BILLING_CLOCK.queue,
        PUT_BACK_MAX,
    )
    for row in rows:
        await plan_migrations.send_step(tx, row["id"])
        await _record(tx, row["id"], "the plan migration had no message")


async def _put_back_charges(tx: Tx) -> None:
    """In random order: if payments has a database of its own, its messages are not visible here, and the same hundred
    invoices would be selected every time."""
    rows = await tx.fetch(
        """
        select i.id, s.id as subscription_id from subscriptions.invoices i
        join subscriptions.subscriptions s on s.id = i.subscription_id
        where i.state = 'open' and i.charging
          and i.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
          and not exists (select from payonce.live_messages m
                          where m.correlation_id = s.id and m.queue = any($2::text[]))
        order by random() limit $3 for update of s skip locked
        """,
        FORGOTTEN_AFTER_S,
        [CHARGE_INITIATION.queue, SUBSCRIPTION_UPDATE.queue],
        PUT_BACK_MAX,
    )
    for row in rows:
        invoice = await invoice_store.find(tx, row["id"])
        if invoice is not None and invoice.charging:
            sent = await invoices.send_charge(tx, invoice, again=True)
            await _record_repeat(tx, sent, row["subscription_id"], f"invoice {invoice.number} was being charged")


async def _put_back_refunds(tx: Tx) -> None:
    """Refunds of late payments. Payments records such a refund only when it processes the message."""
    rows = await tx.fetch(
        """
        update subscriptions.unapplied_payments u set updated_at = payonce.due_now()
        from (
            select transaction_id from subscriptions.unapplied_payments p
            where p.refund_asked and p.returned_minor < p.amount_minor
              and p.updated_at < payonce.due_now() - make_interval(secs => $1::float8)
              and not exists (select from payonce.live_messages m
                              where m.correlation_id = p.subscription_id and m.queue = any($2::text[]))
            limit $3 for update skip locked
        ) forgotten where u.transaction_id = forgotten.transaction_id
        returning u.transaction_id, u.subscription_id, u.reason
        """,
        FORGOTTEN_AFTER_S,
        [REFUND_INITIATION.queue, SUBSCRIPTION_UPDATE.queue],
        PUT_BACK_MAX,
    )
    for row in rows:
        about = row["subscription_id"]
        sent = await payment_events.request_refund(tx, row["transaction_id"], row["reason"], about, again=True)
        await _record_repeat(tx, sent, about, f"the refund of late payment {row['transaction_id']} was requested")


async def _put_back_payouts(tx: Tx) -> None:
    queues = [REFUND_INITIATION.queue, SUBSCRIPTION_UPDATE.queue]
    for payout, about in await credit_payouts.forgotten(tx, FORGOTTEN_AFTER_S, queues, PUT_BACK_MAX):
        sent = await credit_payouts.ask_payments(tx, payout, about, again=True)
        await _record_repeat(tx, sent, about, f"payout {payout.id} of credit was pending")


async def _record_repeat(tx: Tx, message_id: UUID, subscription_id: str, what: str) -> None:
    """If payments has a database of its own, the message may exist there. That is no loss to warn about, and is noted
    once, however often the request is repeated."""
    if not await tx.fetchval(
        "select exists (select from payonce.outbox where id = $1 and relay = $2)", message_id, RELAY
    ):
        await _record(tx, subscription_id, f"{what} and had no message")
        return
    why = f"{what} and had no answer; requested again"
    log.info("billing_asked_again", subscription=subscription_id, why=why)
    said = "select exists (select from payonce.audit_log where reference = $1 and location = $2 and text = $3)"
    if not await tx.fetchval(said, subscription_id, PUT_BACK_NOTES, why):
        await tx.audit(PUT_BACK_NOTES, subscription_id, why, actor="billing")


async def _record(tx: Tx, subscription_id: str, why: str) -> None:
    log.warning("billing_put_back", subscription=subscription_id, why=why)
    await tx.audit(PUT_BACK_NOTES, subscription_id, why, actor="billing", severity=Severity.WARNING)
