"""Revenue recognition: on the first of each month and at the end of an invoice's service time."""

from datetime import datetime
from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.subscriptions.domain.calendar import whole_second
from payonce.services.billing.subscriptions.handlers import unpaid_invoices
from payonce.services.billing.subscriptions.store import invoices

COUNTED_MAX: Final = 200
"""Per call; the caller repeats a full batch."""


async def earn_due(tx: Tx, limit: int = COUNTED_MAX) -> int:
    """For all customers on real time."""
    rows = await tx.fetch(
        """
        select i.id, i.subscription_id, payonce.due_now() as now from subscriptions.invoices i
        join subscriptions.subscriptions s on s.id = i.subscription_id
        where i.earn_at <= payonce.due_now() and s.test_clock_id is null
        order by i.earn_at limit $1 for update of s skip locked
        """,
        limit,
    )
    for row in rows:
        await _earn(tx, row["id"], row["now"])
    return len(rows)


async def earn_due_by_clock(tx: Tx, test_clock_id: str, now: datetime, limit: int = COUNTED_MAX) -> int:
    """For the customers on one test clock, whose time is `now`."""
    rows = await tx.fetch(
        """
        select i.id from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
        where i.earn_at <= $2 and s.test_clock_id = $3 order by i.earn_at limit $1 for update of s skip locked
        """,
        limit,
        now,
        test_clock_id,
    )
    for row in rows:
        await _earn(tx, row["id"], now)
    return len(rows)


async def is_uncounted(tx: Tx, test_clock_id: str, now: datetime) -> bool:
    """Whether due revenue remains because another transaction holds the subscription's lock."""
    found: bool = await tx.fetchval(
        """
        select exists (
            select from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
            where i.earn_at <= $2 and s.test_clock_id = $1)
        """,
        test_clock_id,
        now,
    )
    return found


async def _earn(tx: Tx, invoice_id: str, now: datetime) -> None:
    invoice = await invoices.find(tx, invoice_id)
    if invoice is not None and invoice.earn_at is not None:
        await unpaid_invoices.count(tx, invoice, whole_second(now))
