"""Enqueues the due steps of subscriptions, once for each due time."""

from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Tx
from payonce.services.billing.policies import BILLING_CLOCK, PAYMENT_INITIATION
from payonce.services.billing.subscriptions.model import Due
from payonce.services.billing.wire import Action

TAKEN_MAX: Final = 500
"""Per call; the caller repeats a full batch."""
EXPIRE: Final = "expire_incomplete"


async def take_due(tx: Tx, limit: int = TAKEN_MAX) -> int:
    """For all customers on real time. A renewal waits while an earlier invoice is open, so that nobody is charged for
    two periods at once."""
    rows = await tx.fetch(
        f"""
        with due as (
            select s.id from subscriptions.subscriptions s
            where s.due_at <= payonce.due_now() and s.test_clock_id is null and s.due_at is not null
              and s.put_for is distinct from s.due_at and {_READY}
            order by s.due_at limit $1 for update skip locked
        ) {_PUT}
        """,
        limit,
    )
    return await _put(tx, rows)


async def take_due_by_clock(tx: Tx, test_clock_id: str, now: datetime, limit: int = TAKEN_MAX) -> int:
    """For the customers on one test clock, whose time is `now`."""
    rows = await tx.fetch(
        f"""
        with due as (
            select s.id from subscriptions.subscriptions s
            where s.due_at <= $2 and s.test_clock_id = $3 and s.put_for is distinct from s.due_at and {_READY}
            order by s.due_at limit $1 for update skip locked
        ) {_PUT}
        """,
        limit,
        now,
        test_clock_id,
    )
    return await _put(tx, rows)


async def is_passed_over(tx: Tx, test_clock_id: str, now: datetime) -> bool:
    """Whether due steps remain that `take_due_by_clock` skipped because another transaction holds their lock; that one
    may not wake the clock when it ends."""
    found: bool = await tx.fetchval(
        f"""
        select exists (
            select from subscriptions.subscriptions s
            where s.due_at <= $1 and s.test_clock_id = $2 and s.put_for is distinct from s.due_at and {_READY})
        """,
        now,
        test_clock_id,
    )
    return found


async def put_now(tx: Tx, subscription_id: str) -> None:
    """Enqueues a step that this transaction made due, without waiting for the schedule."""
    rows = await tx.fetch(f"with due as (select $1::text as id) {_PUT}", subscription_id)
    await _put(tx, rows)


_READY: Final = """
    (s.due_for in ('expire', 'dun') or not exists (
        select from subscriptions.invoices i where i.subscription_id = s.id and i.state = 'open'))"""

_PUT: Final = """
    update subscriptions.subscriptions s set put_for = s.due_at from due where s.id = due.id
    returning s.id, s.due_at, s.due_for, s.period, s.revision, s.trace_id, (
        select i.id from subscriptions.invoices i
        where s.due_for = 'dun' and i.subscription_id = s.id and i.state = 'open'
        order by i.issued_at limit 1) as invoice
"""


async def _put(tx: Tx, rows: list[Any]) -> int:
    if rows:
        await tx.send_all([_message(row) for row in rows])
    return len(rows)


def _message(row: Any) -> Message:
    payload: dict[str, Any] = {"subscription_id": row["id"]}
    match Due(row["due_for"]):
        case Due.EXPIRE:
            queue, action = BILLING_CLOCK.queue, EXPIRE
        case Due.DUN:
            queue, action = PAYMENT_INITIATION.queue, Action.RENEWAL.value
            payload["invoice_id"] = row["invoice"]
        case Due.RENEW | Due.TRIAL_END:
            queue, action = PAYMENT_INITIATION.queue, Action.RENEWAL.value
            payload["period"] = row["period"] + 1
    return Message(
        queue=queue,
        action=action,
        payload=payload,
        correlation_id=row["id"],
        # The revision distinguishes a repeated due time, after an obstacle, from the first one.
        idempotency_key=f"due:{row['id']}:{row['due_at'].isoformat()}:{row['revision']}",
        trace_id=row["trace_id"],
    )
