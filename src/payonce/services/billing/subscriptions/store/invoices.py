"""Invoices in the database. Every write happens under the lock of the invoice's subscription, so reads behind that lock
are stable."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Retry
from payonce.services.billing.subscriptions.model import Invoice, InvoiceLine, InvoiceState, LineKind
from payonce.services.billing.subscriptions.store.document_numbers import NUMBER, TAKE_NUMBER, series
from payonce.services.billing.wire import Action

LISTED_MAX: Final = 200
INVOICE_SERIES: Final = "INV"


async def find(read: Reader | Tx, invoice_id: str) -> Invoice | None:
    """By id or number."""
    row = await read.fetchrow(f"{WITH_LINES} where i.id = $1 or i.number = $1", invoice_id)
    return None if row is None else invoice_from(row)


async def of_account(
    read: Reader | Tx, account_id: str, after: str | None = None, limit: int = LISTED_MAX
) -> list[Invoice]:
    """Newest first; `after` is the last id of the previous page."""
    rows = await read.fetch(
        f"""
        {WITH_LINES} where i.account_id = $1 and ($2::text is null
            or (i.issued_at, i.id) < (
                select issued_at, id from subscriptions.invoices where id = $2 and account_id = $1))
        order by i.issued_at desc, i.id desc limit $3
        """,
        account_id,
        after,
        min(limit, LISTED_MAX),
    )
    return [invoice_from(row) for row in rows]


async def unsettled(tx: Tx, subscription_id: str) -> list[Invoice]:
    """Invoices that are open or have unrecognised revenue, oldest first."""
    rows = await tx.fetch(
        f"""
        {WITH_LINES} where i.subscription_id = $1 and (i.state = 'open' or i.earn_at is not null)
        order by i.issued_at, i.id
        """,
        subscription_id,
    )
    return [invoice_from(row) for row in rows]


async def latest_owed(tx: Tx, subscription_id: str) -> Invoice | None:
    """The newest unpaid invoice of a period: open, or uncollectible and still payable."""
    row = await tx.fetchrow(
        f"""
        {WITH_LINES} where i.subscription_id = $1 and i.period is not null and i.state in ('open', 'uncollectible')
        order by i.period desc limit 1
        """,
        subscription_id,
    )
    return None if row is None else invoice_from(row)


async def in_force(tx: Tx, subscription_id: str, at: datetime) -> list[tuple[Invoice, InvoiceLine]]:
    """Paid lines whose service time is not over; a plan change credits them at their own price."""
    rows = await tx.fetch(
        f"""
        {WITH_LINES} where i.subscription_id = $1 and i.state = 'paid' and exists (
            select from subscriptions.invoice_lines l
            where l.invoice_id = i.id and l.service_end > $2 and l.closed_at is null)
        order by i.issued_at, i.id
        """,
        subscription_id,
        at,
    )
    invoices = [invoice_from(row) for row in rows]
    return [
        (invoice, line)
        for invoice in invoices
        for line in invoice.lines
        if line.kind is not LineKind.UNUSED and line.service_end > at and line.closed_at is None
    ]


async def on_its_way_back(tx: Tx, invoice: Invoice) -> str | None:
    """The id of a payment for this invoice that did not match and is not refunded yet. If there is none, the holder of
    the subscription's lock may charge the invoice again."""
    found: str | None = await tx.fetchval(
        """
        select transaction_id from subscriptions.unapplied_payments
        where invoice_id = $1 and returned_minor < amount_minor limit 1
        """,
        invoice.id,
    )
    return found


async def insert(tx: Tx, new: Invoice, test_clock_id: str | None) -> Invoice:
    """Takes the next number, whose series stays locked until this transaction ends; therefore called last."""
    row = await tx.fetchrow(
        f"""
        with numbered as ({TAKE_NUMBER}), made as (
            insert into subscriptions.invoices (id, number, account_id, subscription_id, action, plan_id, period,
                period_start, period_end, currency, exponent, total_minor, credit_minor, due_minor, state, generation,
                charging, paid_at, earn_at, issued_at, trace_id)
            select $4, {NUMBER}, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
                $23 from numbered returning number
        ), lined as (
            insert into subscriptions.invoice_lines
                (invoice_id, line, kind, text, plan_id, amount_minor, service_start, service_end)
            select $4, l.* from unnest($24::smallint[], $25::text[], $26::text[], $27::text[], $28::bigint[],
                $29::timestamptz[], $30::timestamptz[]) l
        )
        select number from made
        """,
        *series(INVOICE_SERIES, test_clock_id, new.issued_at),
        new.id,
        new.account_id,
        new.subscription_id,
        new.action,
        new.plan_id,
        new.period,
        new.period_start,
        new.period_end,
        new.total.asset.code,
        new.total.asset.exponent,
        new.total.minor,
        new.credit.minor,
        new.due.minor,
        new.state,
        new.generation,
        new.charging,
        new.paid_at,
        new.earn_at,
        new.issued_at,
        new.trace_id,
        *_columns(new.lines),
    )
    return replace(new, number=row["number"])


async def begin_charge(tx: Tx, invoice: Invoice) -> Invoice:
    """Starts the next attempt with a new generation, so that late answers to earlier ones are not mistaken for its
    own."""
    return await _set(
        tx,
        invoice,
        "state = 'open', generation = generation + 1, charging = true, try_at_once = false",
        state=InvoiceState.OPEN,
        generation=invoice.generation + 1,
        charging=True,
        try_at_once=False,
    )


async def mark_paid(
    tx: Tx,
    invoice: Invoice,
    transaction_id: str | None,
    at: datetime,
    earn_at: datetime | None,
    paid_with: str | None,
    *,
    refunding: bool,
) -> Invoice:
    return await _set(
        tx,
        invoice,
        "state = 'paid', charging = false, transaction_id = $3, paid_at = $4, earn_at = $5, refunding = $6, "
        "paid_with = $7, decline_code = null, declined_hard = false, try_at_once = false",
        transaction_id,
        at,
        earn_at,
        refunding,
        paid_with,
        state=InvoiceState.PAID,
        charging=False,
        transaction_id=transaction_id,
        paid_at=at,
        earn_at=earn_at,
        refunding=refunding,
        paid_with=paid_with,
        decline_code=None,
        declined_hard=False,
        try_at_once=False,
    )


async def mark_failed(tx: Tx, invoice: Invoice, code: str | None, hard: bool, at: datetime) -> Invoice:
    return await _set(
        tx,
        invoice,
        "charging = false, failures = failures + 1, first_failed_at = coalesce(first_failed_at, $3), "
        "decline_code = $4, declined_hard = $5",
        at,
        code,
        hard,
        charging=False,
        failures=invoice.failures + 1,
        first_failed_at=invoice.first_failed_at or at,
        decline_code=code,
        declined_hard=hard,
    )


async def mark_ended(tx: Tx, invoice: Invoice, state: InvoiceState) -> Invoice:
    """Void or uncollectible: not charged or earned any further."""
    return await _set(
        tx,
        invoice,
        "state = $3, charging = false, earn_at = null, try_at_once = false",
        state,
        state=state,
        charging=False,
        earn_at=None,
        try_at_once=False,
    )


async def mark_refunded(tx: Tx, invoice: Invoice, amount: Amount) -> Invoice:
    return await _set(
        tx,
        invoice,
        "refunding = false, refunded_minor = refunded_minor + $3",
        amount.minor,
        refunding=False,
        refunded=invoice.refunded + amount,
    )


async def mark_not_refunded(tx: Tx, invoice: Invoice) -> Invoice:
    return await _set(tx, invoice, "refunding = false", refunding=False)


async def mark_for_new_card(tx: Tx, invoice: Invoice) -> Invoice:
    return await _set(tx, invoice, "try_at_once = true", try_at_once=True)


async def write_lines(
    tx: Tx, invoice: Invoice, earned: Sequence[Amount], earn_at: datetime | None, closed_at: datetime | None
) -> Invoice:
    """Stores the recognised revenue of each line and the next recognition time; `closed_at` closes all lines."""
    await tx.execute(
        """
        with counted as (
            update subscriptions.invoices set earn_at = $2, updated_at = payonce.due_now() where id = $1
        )
        update subscriptions.invoice_lines l set earned_minor = e.minor, closed_at = coalesce(l.closed_at, $5)
        from unnest($3::smallint[], $4::bigint[]) e (line, minor) where l.invoice_id = $1 and l.line = e.line
        """,
        invoice.id,
        earn_at,
        [line.line for line in invoice.lines],
        [amount.minor for amount in earned],
        closed_at,
    )
    lines = tuple(
        replace(line, earned=amount, closed_at=line.closed_at or closed_at)
        for line, amount in zip(invoice.lines, earned, strict=True)
    )
    return replace(invoice, lines=lines, earn_at=earn_at)


async def reopen_lines(tx: Tx, invoice: Invoice) -> Invoice:
    await tx.execute("update subscriptions.invoice_lines set closed_at = null where invoice_id = $1", invoice.id)
    return replace(invoice, lines=tuple(replace(line, closed_at=None) for line in invoice.lines))


async def close_lines(tx: Tx, lines: Sequence[tuple[Invoice, InvoiceLine]], at: datetime) -> None:
    """Closes the lines of the old plan, so that later changes do not credit them."""
    await tx.execute(
        """
        update subscriptions.invoice_lines l set closed_at = $3
        from unnest($1::text[], $2::smallint[]) c (invoice_id, line)
        where l.invoice_id = c.invoice_id and l.line = c.line and l.closed_at is null
        """,
        [invoice.id for invoice, _ in lines],
        [line.line for _, line in lines],
        at,
    )


WITH_LINES: Final = """
    select i.*, (
        select array_agg((l.line, l.kind, l.text, l.plan_id, l.amount_minor, l.service_start, l.service_end,
            l.earned_minor, l.closed_at) order by l.line)
        from subscriptions.invoice_lines l where l.invoice_id = i.id) as lines
    from subscriptions.invoices i"""


async def _set(tx: Tx, invoice: Invoice, setting: str, *arguments: Any, **changes: Any) -> Invoice:
    """Compare-and-set on the fields that distinguish the attempts of an invoice."""
    changed = await tx.fetchval(
        f"""
        update subscriptions.invoices set {setting}, updated_at = payonce.due_now()
        where id = $1 and generation = $2 and state = ${len(arguments) + 3} and charging = ${len(arguments) + 4}
        returning id
        """,
        invoice.id,
        invoice.generation,
        *arguments,
        invoice.state,
        invoice.charging,
    )
    if changed is None:
        raise Retry(f"invoice {invoice.id} was changed since it was read")
    return replace(invoice, **changes)


def _columns(lines: Sequence[InvoiceLine]) -> tuple[list[Any], ...]:
    return (
        [line.line for line in lines],
        [line.kind.value for line in lines],
        [line.text for line in lines],
        [line.plan_id for line in lines],
        [line.amount.minor for line in lines],
        [line.service_start for line in lines],
        [line.service_end for line in lines],
    )


def invoice_from(row: Any) -> Invoice:
    asset = Asset(row["currency"], row["exponent"])

    def amount(name: str) -> Amount:
        return Amount(row[name], asset)

    lines = tuple(
        InvoiceLine(
            line[0],
            LineKind(line[1]),
            line[2],
            line[3],
            Amount(line[4], asset),
            line[5],
            line[6],
            Amount(line[7], asset),
            line[8],
        )
        for line in row["lines"] or ()
    )
    return Invoice(
        id=row["id"],
        number=row["number"],
        account_id=row["account_id"],
        subscription_id=row["subscription_id"],
        action=Action(row["action"]),
        plan_id=row["plan_id"],
        period=row["period"],
        period_start=row["period_start"],
        period_end=row["period_end"],
        total=amount("total_minor"),
        credit=amount("credit_minor"),
        due=amount("due_minor"),
        state=InvoiceState(row["state"]),
        generation=row["generation"],
        charging=row["charging"],
        failures=row["failures"],
        first_failed_at=row["first_failed_at"],
        decline_code=row["decline_code"],
        declined_hard=row["declined_hard"],
        try_at_once=row["try_at_once"],
        transaction_id=row["transaction_id"],
        paid_at=row["paid_at"],
        paid_with=row["paid_with"],
        refunding=row["refunding"],
        refunded=amount("refunded_minor"),
        earn_at=row["earn_at"],
        issued_at=row["issued_at"],
        trace_id=row["trace_id"],
        lines=lines,
    )
