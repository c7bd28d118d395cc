"""Read models of invoices: filtered lists and totals, one invoice with lines and credit notes, and received payment
events."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset
from payonce.services.billing.subscriptions.model import InvoiceState, LineKind
from payonce.services.billing.subscriptions.store.queries import LAST_LETTER, LISTED_MAX
from payonce.services.billing.wire import Action


@dataclass(frozen=True)
class InvoiceFilter:
    """Filters; None does not filter."""

    state: InvoiceState | None = None
    action: Action | None = None
    account_id: str | None = None
    reference: str | None = None
    """An invoice's number or id, the id of its subscription or transaction, or a prefix of its customer's e-mail
    address."""
    failed: bool = False
    """Only invoices with a failed charge."""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class SummaryLine:
    kind: LineKind
    text: str
    amount: Amount
    earned: Amount
    service_start: datetime
    service_end: datetime


@dataclass(frozen=True)
class InvoiceSummary:
    """An invoice with its customer's e-mail address and its plan's name."""

    id: str
    number: str
    account_id: str
    email: str
    subscription_id: str
    test_clock_id: str | None
    action: Action
    plan_name: str
    period: int | None
    period_start: datetime
    period_end: datetime
    total: Amount
    credit: Amount
    due: Amount
    refunded: Amount
    state: InvoiceState
    generation: int
    charging: bool
    failures: int
    first_failed_at: datetime | None
    decline_code: str | None
    transaction_id: str | None
    paid_at: datetime | None
    issued_at: datetime
    trace_id: str | None
    lines: Sequence[SummaryLine] = field(default=())


@dataclass(frozen=True)
class InvoiceTotal:
    state: InvoiceState
    count: int
    due: Sequence[Amount]
    """By currency."""


@dataclass(frozen=True)
class CreditNoteSummary:
    number: str
    refund_id: str | None
    amount: Amount
    reason: str
    issued_at: datetime


@dataclass(frozen=True)
class ReceivedEvent:
    """A payment event as received here."""

    event_id: str
    processed: bool
    processed_at: datetime | None
    error_message: str | None
    retry_count: int
    created_at: datetime


async def listed(read: Reads, wanted: InvoiceFilter, before: str | None, limit: int) -> list[InvoiceSummary]:
    """Newest first; `before` is the last id of the previous page."""
    where, values = _where(wanted)
    if before is not None:
        values.append(before)
        where += f""" and (i.issued_at, i.id) < (
            select issued_at, id from subscriptions.invoices where id = ${len(values)})"""
    rows = await read.fetch(
        f"{_SELECT} where {where} order by i.issued_at desc, i.id desc limit {min(limit, LISTED_MAX)}", *values
    )
    return [_summary(row) for row in rows]


async def sums(read: Reads, wanted: InvoiceFilter) -> list[InvoiceTotal]:
    """By state, including empty ones; the state filter is ignored."""
    where, values = _where(replace(wanted, state=None))
    rows = await read.fetch(
        f"""
        select i.state, i.currency, i.exponent, count(*), sum(i.due_minor) as minor
        from subscriptions.invoices i where {where} group by 1, 2, 3 order by 1, 2
        """,
        *values,
    )
    found: dict[InvoiceState, list[Any]] = {state: [] for state in InvoiceState}
    for row in rows:
        found[InvoiceState(row["state"])].append(row)
    return [
        InvoiceTotal(
            state,
            sum(row["count"] for row in of_state),
            [Amount(int(row["minor"]), Asset(row["currency"], row["exponent"])) for row in of_state],
        )
        for state, of_state in found.items()
    ]


async def invoice(read: Reads, given: str) -> InvoiceSummary | None:
    """By id or number, with its lines."""
    row = await read.fetchrow(
        f"""{_SELECT} where i.id = (select id from subscriptions.invoices where id = $1
            union select id from subscriptions.invoices where number = upper($1) limit 1)""",
        given,
    )
    if row is None:
        return None
    lines = await read.fetch("select * from subscriptions.invoice_lines where invoice_id = $1 order by line", row["id"])
    found = _summary(row)
    return replace(found, lines=[_line(each, found.due.asset) for each in lines])


async def owed(read: Reads, subscription_id: str) -> InvoiceSummary | None:
    """The newest invoice that is open, or uncollectible and still payable."""
    row = await read.fetchrow(
        f"""{_SELECT} where i.subscription_id = $1 and i.state in ('open', 'uncollectible')
        order by i.issued_at desc, i.id desc limit 1""",
        subscription_id,
    )
    return None if row is None else _summary(row)


async def credit_notes(read: Reads, found: InvoiceSummary) -> list[CreditNoteSummary]:
    rows = await read.fetch(
        "select * from subscriptions.credit_notes where invoice_id = $1 order by issued_at, number", found.id
    )
    return [
        CreditNoteSummary(
            row["number"],
            row["refund_id"],
            Amount(row["amount_minor"], found.due.asset),
            row["reason"],
            row["issued_at"],
        )
        for row in rows
    ]


async def received(read: Reads, event_ids: Sequence[str]) -> dict[str, ReceivedEvent]:
    """By event id; events that never arrived are missing."""
    rows = await read.fetch(
        "select * from subscriptions.payment_webhook_requests where event_id = any($1::text[])", list(event_ids)
    )
    return {
        row["event_id"]: ReceivedEvent(
            row["event_id"],
            row["processed"],
            row["processed_at"],
            row["error_message"],
            row["retry_count"],
            row["created_at"],
        )
        for row in rows
    }


_SELECT: Final = """
    select i.*, a.email, p.name as plan_name, s.test_clock_id from subscriptions.invoices i
    join subscriptions.accounts a on a.id = i.account_id
    join subscriptions.plans p on p.id = i.plan_id
    join subscriptions.subscriptions s on s.id = i.subscription_id"""
_NAMED: Final = f"""i.id in (
    select id from subscriptions.invoices where id = {{}}
    union all select id from subscriptions.invoices where number = upper({{}})
    union all select id from subscriptions.invoices where subscription_id = {{}}
    union all select id from subscriptions.invoices where transaction_id = {{}}
    union all select id from subscriptions.invoices where account_id in (
        select id from subscriptions.accounts
        where email >= lower({{}}) and email < lower({{}}) || '{LAST_LETTER}'))"""


def _where(wanted: InvoiceFilter) -> tuple[str, list[Any]]:
    """Contains only the given filters, so that the statement can use an index."""
    asked = (
        ("i.action = {}", wanted.action),
        ("i.account_id = {}", wanted.account_id),
        (_NAMED, wanted.reference),
        ("(i.failures > 0) = {}", wanted.failed or None),
        ("i.issued_at >= {}", wanted.since),
        ("i.issued_at < {}", wanted.until),
    )
    given = [(condition, value) for condition, value in asked if value is not None]
    parts = [condition.replace("{}", f"${number}") for number, (condition, _) in enumerate(given, start=1)]
    if wanted.state is not None:
        # As a literal, since the planner uses a partial index only if it sees the state.
        parts.append(f"i.state = '{wanted.state.value}'")
    return " and ".join(parts) or "true", [value for _, value in given]


def _summary(row: Any) -> InvoiceSummary:
    asset = Asset(row["currency"], row["exponent"])
    total, credit, due, back = (
        Amount(row[name], asset) for name in ("total_minor", "credit_minor", "due_minor", "refunded_minor")
    )
    return InvoiceSummary(
        row["id"],
        row["number"],
        row["account_id"],
        row["email"],
        row["subscription_id"],
        row["test_clock_id"],
        Action(row["action"]),
        row["plan_name"],
        row["period"],
        row["period_start"],
        row["period_end"],
        total,
        credit,
        due,
        back,
        InvoiceState(row["state"]),
        row["generation"],
        row["charging"],
        row["failures"],
        row["first_failed_at"],
        row["decline_code"],
        row["transaction_id"],
        row["paid_at"],
        row["issued_at"],
        row["trace_id"],
    )


def _line(row: Any, asset: Asset) -> SummaryLine:
    return SummaryLine(
        LineKind(row["kind"]),
        row["text"],
        Amount(row["amount_minor"], asset),
        Amount(row["earned_minor"], asset),
        row["service_start"],
        row["service_end"],
    )
