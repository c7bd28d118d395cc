"""A subscription's own part of its timeline: events, invoices, credit notes, payment events, usage and postings."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.timeline import POSTINGS_MAX, TimelineEntry, notes_about, postings_about
from payonce.kit.money import Amount, Asset
from payonce.kit.words import counted
from payonce.services.billing.subscriptions.store.queries import SubscriptionSummary

EVENTS_MAX: Final = 500
INVOICES_MAX: Final = 200
USAGE_MAX: Final = 200
_SAID_ELSEWHERE: Final = frozenset({"subscription_id", "revision"})


async def facts(read: Reads, of: SubscriptionSummary, event_ids: Sequence[str]) -> tuple[list[TimelineEntry], bool]:
    """In chronological order, and whether older entries were omitted. `event_ids` are the notifications that payments
    sent about it."""
    events = await _events(read, of)
    invoices = await _invoices(read, of)
    posted = await _posted(read, of)
    found = [
        *events,
        *invoices,
        *posted,
        *await _credited(read, of),
        *await _received(read, event_ids),
        *await _used(read, of),
        *await notes_about(read, [of.id]),
    ]
    cut = len(events) >= EVENTS_MAX or len(invoices) >= INVOICES_MAX or len(posted) >= POSTINGS_MAX
    return sorted(found, key=lambda fact: fact.at), cut


async def _events(read: Reads, of: SubscriptionSummary) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select * from subscriptions.subscription_events where subscription_id = $1
        order by id desc limit {EVENTS_MAX}
        """,
        of.id,
    )
    return [
        TimelineEntry(row["created_at"], "event", _title(row), row["to_state"] or row["kind"], _detail(row, of))
        for row in reversed(rows)
    ]


def _title(row: Any) -> str:
    title = row["kind"].replace("_", " ").replace(".", " ")
    moved = row["from_state"] is not None and row["to_state"] is not None and row["from_state"] != row["to_state"]
    return f"{title}, from {row['from_state']} to {row['to_state']}" if moved else title


def _detail(row: Any, of: SubscriptionSummary) -> str | None:
    detail: dict[str, Any] = msgspec.json.decode(row["detail"])
    title = [
        f"{name.replace('_', ' ')} {value}"
        for name, value in detail.items()
        if name not in _SAID_ELSEWHERE and value is not None
    ]
    if of.test_clock_id is not None:
        title.insert(0, f"at {row['at']:%Y-%m-%d %H:%M} by the customer's clock")
    return ", ".join(title) or None


async def _invoices(read: Reads, of: SubscriptionSummary) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select * from subscriptions.invoices where subscription_id = $1 order by created_at desc, id desc
        limit {INVOICES_MAX}
        """,
        of.id,
    )
    return [
        TimelineEntry(
            row["created_at"],
            "invoice",
            f"invoice {row['number']} for {row['action']}",
            row["state"],
            _for_what(row),
            Amount(row["due_minor"], Asset(row["currency"], row["exponent"])),
        )
        for row in reversed(rows)
    ]


def _for_what(row: Any) -> str:
    title = f"{row['period_start']:%Y-%m-%d} to {row['period_end']:%Y-%m-%d}"
    if row["failures"]:
        why = row["decline_code"] or "no answer"
        title += f", not paid {counted(row['failures'], 'time', 'times')}, last because of {why}"
    return title + (", a charge is in progress" if row["charging"] else "")


async def _credited(read: Reads, of: SubscriptionSummary) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select n.*, i.number as invoice, i.currency, i.exponent from subscriptions.credit_notes n
        join subscriptions.invoices i on i.id = n.invoice_id
        where i.subscription_id = $1 order by n.created_at desc limit {INVOICES_MAX}
        """,
        of.id,
    )
    return [
        TimelineEntry(
            row["created_at"],
            "credit note",
            f"credit note {row['number']} for invoice {row['invoice']}",
            "posted",
            row["reason"],
            Amount(row["amount_minor"], Asset(row["currency"], row["exponent"])),
        )
        for row in rows
    ]


async def _received(read: Reads, events: Sequence[str]) -> list[TimelineEntry]:
    """Payment events as received here."""
    rows = await read.fetch(
        """
        select processed_at, created_at, payload->>'action' as action, payload->>'status' as status, error_message
        from subscriptions.payment_webhook_requests where event_id = any($1::text[]) order by id
        """,
        list(events),
    )
    return [
        TimelineEntry(
            row["processed_at"] or row["created_at"],
            "told",
            f"payment event {row['action']}: {row['status']}",
            "failed" if row["error_message"] else "success",
            row["error_message"],
        )
        for row in rows
    ]


async def _used(read: Reads, of: SubscriptionSummary) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select * from subscriptions.usage_totals where subscription_id = $1 order by period_start desc, feature
        limit {USAGE_MAX}
        """,
        of.id,
    )
    return [
        TimelineEntry(
            row["updated_at"],
            "usage",
            f"{row['feature']}: {row['total']:,} used",
            "counted",
            f"{row['events']:,} events in the period from {row['period_start']:%Y-%m-%d}",
        )
        for row in rows
    ]


async def _posted(read: Reads, of: SubscriptionSummary) -> list[TimelineEntry]:
    rows = await read.fetch(
        f"""
        select id from subscriptions.invoices where subscription_id = $1 order by created_at desc limit {POSTINGS_MAX}
        """,
        of.id,
    )
    return await postings_about(read, [("billing_invoice", row["id"]) for row in rows])
