"""Read models of customers and subscriptions: filtered lists, one of each, and overdue subscriptions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset
from payonce.services.billing.subscriptions.model import Due, State

LISTED_MAX: Final = 200
OVERDUE: Final = (State.PAST_DUE, State.UNPAID)
LAST_LETTER: Final = "\U0010ffff"
"""Sorts after every e-mail address with the preceding prefix."""


@dataclass(frozen=True)
class CustomerFilter:
    """Filters; None does not filter."""

    state: State | None = None
    plan: str | None = None
    """A plan's code, for any version."""
    reference: str | None = None
    """A prefix of an e-mail address, a customer's external id, the id of a customer, a subscription or an invoice, or
    an invoice's number."""
    clock: str | None = None


@dataclass(frozen=True)
class SubscriptionSummary:
    """A subscription as shown in lists and on its page."""

    id: str
    account_id: str
    email: str
    plan_id: str
    plan_name: str
    price: Amount
    interval: str
    state: State
    time_zone: str
    test_clock_id: str | None
    their_now: datetime
    """The customer's current time."""
    period: int
    period_start: datetime | None
    period_end: datetime | None
    trial_ends_at: datetime | None
    next_plan: str | None
    cancel_at_period_end: bool
    paused_at: datetime | None
    ended_at: datetime | None
    due_at: datetime | None
    due_for: Due | None
    reason: str | None
    revision: int
    trace_id: str | None
    created_at: datetime


@dataclass(frozen=True)
class CustomerSummary:
    id: str
    email: str
    name: str
    role: str
    time_zone: str
    test_clock_id: str | None
    external_id: str | None
    has_password: bool
    created_at: datetime
    subscription: SubscriptionSummary | None
    """The newest subscription, or the one that matches the filter."""

    @property
    def cursor(self) -> str:
        return self.id if self.subscription is None else f"{self.id}/{self.subscription.id}"


@dataclass(frozen=True)
class OverdueSubscription:
    """An unpaid subscription with its invoice and dunning status."""

    subscription: SubscriptionSummary
    invoice_id: str
    number: str
    due: Amount
    failures: int
    first_failed_at: datetime | None
    decline_code: str | None
    charging: bool

    @property
    def next_try(self) -> datetime | None:
        return self.subscription.due_at if self.subscription.due_for is Due.DUN else None


async def is_installed(read: Reads) -> bool:
    """Whether a process with billing has migrated this database."""
    found: bool = await read.fetchval("select to_regclass('subscriptions.subscriptions') is not null")
    return found


async def is_used(read: Reads) -> bool:
    """Whether the database has accounts."""
    if not await is_installed(read):
        return False
    found: bool = await read.fetchval("select exists (select from subscriptions.accounts)")
    return found


async def customers(read: Reads, wanted: CustomerFilter, before: str | None, limit: int) -> list[CustomerSummary]:
    """Newest first, each with its newest subscription; with a filter on subscriptions, one row for each match. `before`
    is the cursor of the previous page's last row."""
    account_id, _, subscription_id = (before or "").partition("/")
    where, values = _where(wanted)
    if _of_subscriptions(wanted):
        if before is not None:
            values.append(subscription_id)
            where += f""" and (s.created_at, s.id) < (
                select created_at, id from subscriptions.subscriptions where id = ${len(values)})"""
        rows = await read.fetch(
            f"""
            select {_COLUMNS}, {_ACCOUNT} from subscriptions.subscriptions s {_JOINS}
            where {where} order by s.created_at desc, s.id desc limit {min(limit, LISTED_MAX)}
            """,
            *values,
        )
        return [_customer(row) for row in rows]
    if before is not None:
        values.append(account_id)
        where += f""" and (a.created_at, a.id) < (
            select created_at, id from subscriptions.accounts where id = ${len(values)})"""
    rows = await read.fetch(
        f"""
        select {_COLUMNS}, {_ACCOUNT} from (
            select * from subscriptions.accounts a
            where {where} order by a.created_at desc, a.id desc limit {min(limit, LISTED_MAX)}) a
        left join lateral (
            select * from subscriptions.subscriptions where account_id = a.id order by created_at desc, id desc limit 1
        ) s on true
        left join subscriptions.plans p on p.id = s.plan_id
        left join subscriptions.plans n on n.id = s.next_plan_id
        order by a.created_at desc, a.id desc
        """,
        *values,
    )
    return [_customer(row) for row in rows]


async def totals(read: Reads, wanted: CustomerFilter) -> Mapping[State, int]:
    """Subscriptions by state, in the order of the life cycle and including empty ones; the state filter is ignored."""
    where, values = _where(replace(wanted, state=None))
    rows = await read.fetch(
        f"select s.state, count(*) from subscriptions.subscriptions s {_JOINS} where {where} group by s.state"
        if values
        else "select s.state, count(*) from subscriptions.subscriptions s group by s.state",
        *values,
    )
    found = {State(row["state"]): row["count"] for row in rows}
    return {state: found.get(state, 0) for state in State}


async def customer(read: Reads, account_id: str) -> CustomerSummary | None:
    """By id or complete e-mail address; with the newest subscription."""
    row = await read.fetchrow(
        f"""
        select {_COLUMNS}, {_ACCOUNT} from (
            select * from subscriptions.accounts where id = $1
            union select * from subscriptions.accounts where email = lower($1) limit 1) a
        left join lateral (
            select * from subscriptions.subscriptions where account_id = a.id order by created_at desc, id desc limit 1
        ) s on true
        left join subscriptions.plans p on p.id = s.plan_id
        left join subscriptions.plans n on n.id = s.next_plan_id
        """,
        account_id,
    )
    return None if row is None else _customer(row)


async def credit(read: Reads, account_id: str) -> list[Amount]:
    """The customer's credit, which the next invoices use."""
    rows = await read.fetch(
        "select minor, currency, exponent from subscriptions.credits where account_id = $1 and minor > 0 order by 2",
        account_id,
    )
    return [Amount(row["minor"], Asset(row["currency"], row["exponent"])) for row in rows]


async def subscriptions_of(read: Reads, account_id: str, limit: int = LISTED_MAX) -> list[SubscriptionSummary]:
    """Newest first."""
    rows = await read.fetch(
        f"""
        select {_COLUMNS}, a.email as email from subscriptions.subscriptions s {_JOINS}
        where s.account_id = $1 order by s.created_at desc, s.id desc limit $2
        """,
        account_id,
        min(limit, LISTED_MAX),
    )
    return [_summary(row) for row in rows]


async def subscription(read: Reads, subscription_id: str) -> SubscriptionSummary | None:
    row = await read.fetchrow(
        f"select {_COLUMNS}, a.email as email from subscriptions.subscriptions s {_JOINS} where s.id = $1",
        subscription_id,
    )
    return None if row is None else _summary(row)


async def overdue_totals(read: Reads) -> Mapping[State, int]:
    """The number of subscriptions listed by `overdue`, by state."""
    rows = await read.fetch(
        f"""
        select s.state, count(*) from subscriptions.subscriptions s
        where s.state = any($1::text[]) and exists ({_OWED}) group by s.state
        """,
        list(OVERDUE),
    )
    found = {State(row["state"]): row["count"] for row in rows}
    return {state: found.get(state, 0) for state in OVERDUE}


async def overdue(read: Reads, state: State | None, after: str | None, limit: int) -> list[OverdueSubscription]:
    """Past due and unpaid subscriptions with the invoice owed, ordered by the next attempt; `after` is the previous
    page's last one."""
    states = list(OVERDUE) if state is None else [state]
    rows = await read.fetch(
        f"""
        select {_COLUMNS}, a.email as email, i.id as invoice_id, i.number, i.due_minor, i.currency as invoice_currency,
            i.exponent as invoice_exponent, i.failures, i.first_failed_at, i.decline_code, i.charging
        from (
            select * from subscriptions.subscriptions s
            where s.state = any($1::text[]) and exists ({_OWED})
              and ($2::text is null or (coalesce(s.due_at, 'infinity'), s.id) > (
                select coalesce(due_at, 'infinity'), id from subscriptions.subscriptions where id = $2))
            order by coalesce(s.due_at, 'infinity'), s.id limit $3) s {_JOINS}
        join lateral ({_OWED} order by issued_at desc, id desc limit 1) i on true
        order by coalesce(s.due_at, 'infinity'), s.id
        """,
        states,
        after,
        min(limit, LISTED_MAX),
    )
    return [
        OverdueSubscription(
            _summary(row),
            row["invoice_id"],
            row["number"],
            Amount(row["due_minor"], Asset(row["invoice_currency"], row["invoice_exponent"])),
            row["failures"],
            row["first_failed_at"],
            row["decline_code"],
            row["charging"],
        )
        for row in rows
    ]


async def overdue_declines(read: Reads, state: State | None) -> Mapping[str, int]:
    """The decline codes of the subscriptions listed by `overdue`, most frequent first; they add up to its total."""
    rows = await read.fetch(
        f"""
        select coalesce(i.decline_code, 'not declined') as code, count(*)
        from subscriptions.subscriptions s
        join lateral ({_OWED} order by issued_at desc, id desc limit 1) i on true
        where s.state = any($1::text[]) group by 1 order by 2 desc, 1
        """,
        list(OVERDUE) if state is None else [state],
    )
    return {row["code"]: row["count"] for row in rows}


async def plan_codes(read: Reads) -> list[str]:
    rows = await read.fetch(f"select distinct code from subscriptions.plans order by 1 limit {LISTED_MAX}")
    return [row["code"] for row in rows]


_OWED: Final = """
    select * from subscriptions.invoices where subscription_id = s.id and state in ('open', 'uncollectible')"""
"""The unpaid invoices of subscription s."""
_JOINS: Final = """
    join subscriptions.accounts a on a.id = s.account_id
    join subscriptions.plans p on p.id = s.plan_id
    left join subscriptions.plans n on n.id = s.next_plan_id"""
_COLUMNS: Final = """
    s.id as subscription_id, s.account_id, s.plan_id, p.name as plan_name, p.price_minor, p.currency, p.exponent,
    p.interval_unit, p.interval_count, s.state, s.time_zone, s.test_clock_id,
    subscriptions.time_of(s.test_clock_id) as their_now, s.period, s.period_start, s.period_end, s.trial_ends_at,
    case when n.name = p.name then n.id else n.name end as next_plan,
    s.cancel_at_period_end, s.paused_at, s.ended_at, s.due_at, s.due_for, s.reason, s.revision,
    s.trace_id, s.created_at"""
_ACCOUNT: Final = """
    a.id as customer_id, a.email, a.name, a.role, a.time_zone as customer_zone, a.test_clock_id as customer_clock,
    a.external_id, a.password_hash is not null as has_password, a.created_at as customer_since"""
_NAMED: Final = f"""a.id in (
    select id from subscriptions.accounts where id = {{}}
    union all select id from subscriptions.accounts
        where email >= lower({{}}) and email < lower({{}}) || '{LAST_LETTER}'
    union all select id from subscriptions.accounts where external_id = {{}}
    union all select account_id from subscriptions.subscriptions where id = {{}}
    union all select account_id from subscriptions.invoices where id = {{}}
    union all select account_id from subscriptions.invoices where number = upper({{}}))"""


def _of_subscriptions(wanted: CustomerFilter) -> bool:
    return wanted.state is not None or wanted.plan is not None


def _where(wanted: CustomerFilter) -> tuple[str, list[Any]]:
    """Contains only the given filters, so that the statement can use an index."""
    asked = (
        ("s.state = {}", wanted.state),
        ("p.code = {}", wanted.plan),
        (_NAMED, wanted.reference),
        ("a.test_clock_id = {}", wanted.clock),
    )
    given = [(condition, value) for condition, value in asked if value is not None]
    parts = [condition.replace("{}", f"${number}") for number, (condition, _) in enumerate(given, start=1)]
    return " and ".join(parts) or "true", [value for _, value in given]


def _customer(row: Any) -> CustomerSummary:
    return CustomerSummary(
        row["customer_id"],
        row["email"],
        row["name"],
        row["role"],
        row["customer_zone"],
        row["customer_clock"],
        row["external_id"],
        row["has_password"],
        row["customer_since"],
        None if row["subscription_id"] is None else _summary(row),
    )


def _summary(row: Any) -> SubscriptionSummary:
    count, unit = row["interval_count"], row["interval_unit"]
    return SubscriptionSummary(
        row["subscription_id"],
        row["account_id"],
        row["email"],
        row["plan_id"],
        row["plan_name"],
        Amount(row["price_minor"], Asset(row["currency"], row["exponent"])),
        unit if count == 1 else f"{count} {unit}s",
        State(row["state"]),
        row["time_zone"],
        row["test_clock_id"],
        row["their_now"],
        row["period"],
        row["period_start"],
        row["period_end"],
        row["trial_ends_at"],
        row["next_plan"],
        row["cancel_at_period_end"],
        row["paused_at"],
        row["ended_at"],
        row["due_at"],
        None if row["due_for"] is None else Due(row["due_for"]),
        row["reason"],
        row["revision"],
        row["trace_id"],
        row["created_at"],
    )
