"""Read models of payments: charges of a customer or an invoice, cards, notifications with their attempts, and charges
by day."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset
from payonce.services.billing.payments.model import RefundState, Transaction
from payonce.services.billing.payments.store.transactions import transaction_from

LISTED_MAX: Final = 200
ATTEMPTS_MAX: Final = 200
DAYS_MAX: Final = 90


@dataclass(frozen=True)
class CardSummary:
    """A card's recognisable details, without its token."""

    id: str
    brand: str
    last4: str
    expires: str
    is_default: bool
    removed_at: datetime | None
    created_at: datetime


@dataclass(frozen=True)
class RefundSummary:
    id: str
    amount: Amount
    reason: str
    state: RefundState
    failure: str | None
    created_at: datetime
    ended_at: datetime | None
    outside: bool = False


@dataclass(frozen=True)
class ChargeSummary(Transaction):
    """A transaction with its card and refunds."""

    card: str | None = None
    ended_at: datetime | None = None
    refunds: Sequence[RefundSummary] = ()


@dataclass(frozen=True)
class Delivery:
    """A notification with its delivery status."""

    event_id: str
    transaction_id: str | None
    refund_id: str | None
    account_id: str
    action: str
    delivered_at: datetime | None
    created_at: datetime
    attempts: int
    last_code: int | None
    last_error: str | None
    last_at: datetime | None
    trace_id: str | None
    body: bytes = b""


@dataclass(frozen=True)
class Attempt:
    way: str
    url: str
    response_code: int | None
    response_body: str | None
    error: str | None
    elapsed_ms: int
    created_at: datetime


@dataclass(frozen=True)
class ChargeDay:
    """Charges that ended on one UTC day."""

    day: datetime
    succeeded: int
    failed: int
    hard: int
    """The failed ones that no further attempt can help."""


async def is_installed(read: Reads) -> bool:
    found: bool = await read.fetchval("select to_regclass('payments.notifications') is not null")
    return found


async def is_used(read: Reads) -> bool:
    """Whether the database has cards or charges."""
    if not await is_installed(read):
        return False
    found: bool = await read.fetchval(
        "select exists (select from payments.payment_methods) or exists (select from payments.transactions)"
    )
    return found


async def cards(read: Reads, account_id: str) -> list[CardSummary]:
    rows = await read.fetch(
        """
        select * from payments.payment_methods where account_id = $1
        order by removed_at is not null, is_default desc, created_at desc limit $2
        """,
        account_id,
        LISTED_MAX,
    )
    return [
        CardSummary(
            row["id"],
            row["brand"],
            row["last4"],
            f"{row['exp_month']:02}/{row['exp_year']}",
            row["is_default"],
            row["removed_at"],
            row["created_at"],
        )
        for row in rows
    ]


async def charges_of_account(read: Reads, account_id: str, limit: int = LISTED_MAX) -> list[ChargeSummary]:
    """Newest first."""
    return await _charges(read, "t.account_id = $1", account_id, limit)


async def charges_of_subscription(read: Reads, subscription_id: str, limit: int = LISTED_MAX) -> list[ChargeSummary]:
    return await _charges(read, "t.subscription_id = $1", subscription_id, limit)


async def charges_of_invoice(read: Reads, invoice_id: str, limit: int = LISTED_MAX) -> list[ChargeSummary]:
    return await _charges(read, "t.invoice_id = $1", invoice_id, limit)


async def charge(read: Reads, transaction_id: str) -> ChargeSummary | None:
    found = await _charges(read, "t.id = $1", transaction_id, 1)
    return found[0] if found else None


async def deliveries(
    read: Reads, delivered: bool | None, reference: str | None, before: str | None, limit: int
) -> list[Delivery]:
    """Newest first; `reference` is the id of an event, a transaction, a refund or a customer, `before` the last event
    of the previous page."""
    parts, values = [], []
    if delivered is not None:
        parts.append(f"(n.delivered_at is {'not ' if delivered else ''}null)")
    if reference is not None:
        values.append(reference)
        parts.append("""n.event_id in (
            select event_id from payments.notifications where event_id = $1
            union all select event_id from payments.notifications where transaction_id = $1
            union all select event_id from payments.notifications where refund_id = $1
            union all select event_id from payments.notifications where account_id = $1)""")
    if before is not None:
        values.append(before)
        parts.append(f"""(n.created_at, n.event_id) < (
            select created_at, event_id from payments.notifications where event_id = ${len(values)})""")
    rows = await read.fetch(
        f"""
        select n.event_id, n.transaction_id, n.refund_id, n.account_id, n.action, n.delivered_at, n.created_at,
            n.trace_id, '' as body, {_TRIED} from (
            select * from payments.notifications n where {" and ".join(parts) or "true"}
            order by n.created_at desc, n.event_id desc limit {min(limit, LISTED_MAX)}) n {_ATTEMPTS}
        order by n.created_at desc, n.event_id desc
        """,
        *values,
    )
    return [_delivery(row) for row in rows]


async def delivery(read: Reads, event_id: str) -> Delivery | None:
    row = await read.fetchrow(
        f"select n.*, {_TRIED} from payments.notifications n {_ATTEMPTS} where n.event_id = $1", event_id
    )
    return None if row is None else _delivery(row)


async def attempts(read: Reads, event_id: str, limit: int = ATTEMPTS_MAX) -> list[Attempt]:
    """Newest first."""
    rows = await read.fetch(
        "select * from payments.webhook_outbound_requests where event_id = $1 order by id desc limit $2",
        event_id,
        min(limit, ATTEMPTS_MAX),
    )
    return [
        Attempt(
            row["way"],
            row["url"],
            row["response_code"],
            row["response_body"],
            row["error"],
            row["elapsed_ms"],
            row["created_at"],
        )
        for row in rows
    ]


async def undelivered(read: Reads) -> tuple[int, datetime | None]:
    """The number of undelivered notifications, and the time of the oldest."""
    row = await read.fetchrow(
        "select count(*), min(created_at) as oldest from payments.notifications where delivered_at is null"
    )
    return row["count"], row["oldest"]


async def days(read: Reads, count: int, asset: Asset) -> list[ChargeDay]:
    """Charges in one currency by day, oldest first, including days without charges."""
    rows = await read.fetch(
        f"""
        with today as (select date_trunc('day', payonce.due_now(), 'UTC') as day),
        ended as (
            select (created_at at time zone 'UTC')::date as day, count(*) filter (where state <> 'failed') as succeeded,
                count(*) filter (where state = 'failed') as failed,
                count(*) filter (where state = 'failed' and hard) as hard
            from payments.transactions
            where created_at >= {_FIRST_DAY.format("$1")} and currency = $2 and exponent = $3
              and state <> 'pending' group by 1)
        select d.day, coalesce(e.succeeded, 0) as succeeded, coalesce(e.failed, 0) as failed,
            coalesce(e.hard, 0) as hard
        from today t, lateral (
            select t.day - make_interval(hours => 24 * ago) as day from generate_series(0, $1::int - 1) as ago) d
        left join ended e on e.day = (d.day at time zone 'UTC')::date order by 1
        """,
        min(count, DAYS_MAX),
        asset.code,
        asset.exponent,
    )
    return [ChargeDay(row["day"], row["succeeded"], row["failed"], row["hard"]) for row in rows]


async def declines(read: Reads, count: int, asset: Asset) -> Mapping[str, int]:
    """The decline codes of the failed charges counted by `days`, most frequent first."""
    rows = await read.fetch(
        f"""
        select coalesce(decline_code, 'other') as code, count(*) from payments.transactions
        where state = 'failed' and created_at >= {_FIRST_DAY.format("$1")} and currency = $2 and exponent = $3
        group by 1 order by 2 desc, 1
        """,
        min(count, DAYS_MAX),
        asset.code,
        asset.exponent,
    )
    return {row["code"]: row["count"] for row in rows}


async def deliveries_of(read: Reads, charged: Sequence[ChargeSummary]) -> list[Delivery]:
    """The notifications of these charges and their refunds, oldest first."""
    rows = await read.fetch(
        f"""
        select n.*, {_TRIED} from payments.notifications n {_ATTEMPTS}
        where n.transaction_id = any($1::text[]) order by n.created_at, n.event_id limit {LISTED_MAX}
        """,
        [each.id for each in charged],
    )
    return [_delivery(row) for row in rows]


_FIRST_DAY: Final = "date_trunc('day', payonce.due_now(), 'UTC') - make_interval(hours => 24 * ({}::int - 1))"
"""The start of the first of a number of UTC days, including today."""
_TRIED: Final = "r.attempts, r.last_code, r.last_error, r.last_at"
_ATTEMPTS: Final = """
    left join lateral (
        select count(*) as attempts, (array_agg(response_code order by id desc))[1] as last_code,
            (array_agg(error order by id desc))[1] as last_error, max(created_at) as last_at
        from payments.webhook_outbound_requests where event_id = n.event_id) r on true"""


async def _charges(read: Reads, where: str, value: str, limit: int) -> list[ChargeSummary]:
    rows = await read.fetch(
        f"""
        select t.*, m.brand, m.last4 from payments.transactions t
        left join payments.payment_methods m on m.id = t.payment_method_id
        where {where} order by t.created_at desc, t.id desc limit {min(limit, LISTED_MAX)}
        """,
        value,
    )
    refunds = await read.fetch(
        "select * from payments.refunds where transaction_id = any($1::text[]) order by created_at, id",
        [row["id"] for row in rows],
    )
    return [_charged(row, [each for each in refunds if each["transaction_id"] == row["id"]]) for row in rows]


def _charged(row: Any, refunds: Sequence[Any]) -> ChargeSummary:
    asset = Asset(row["currency"], row["exponent"])
    return ChargeSummary(
        **vars(transaction_from(row)),
        card=None if row["last4"] is None else f"{row['brand']} …{row['last4']}",
        ended_at=row["ended_at"],
        refunds=[
            RefundSummary(
                each["id"],
                Amount(each["amount_minor"], asset),
                each["reason"],
                RefundState(each["state"]),
                each["failure"],
                each["created_at"],
                each["ended_at"],
                each["outside"],
            )
            for each in refunds
        ],
    )


def _delivery(row: Any) -> Delivery:
    return Delivery(
        row["event_id"],
        row["transaction_id"],
        row["refund_id"],
        row["account_id"],
        row["action"],
        row["delivered_at"],
        row["created_at"],
        row["attempts"],
        row["last_code"],
        row["last_error"],
        row["last_at"],
        row["trace_id"],
        row["body"] or b"",
    )
