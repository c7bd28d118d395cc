"""Queries for operators: filtered lists, totals, days, and the use of the wallet's limits.

The console imports only this module, `lookup`, `minimums`, `timeline` and the decisions.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset
from payonce.services.payouts.model import ETH, USDT, Payout, State, payout_from

LISTED_MAX: Final = 200
DAYS_MAX: Final = 90
DAY_S: Final = 86_400.0
WITH_PEOPLE: Final = "with_people"
"""Pseudo-state of list filters: held or in review."""


@dataclass(frozen=True)
class PayoutFilter:
    """The filter of a list; None matches any value."""

    states: tuple[State, ...] | None = None
    currency: str | None = None
    network: str | None = None
    wallet: str | None = None
    channel: str | None = None
    user_id: int | None = None
    reference: str | None = None
    """Any identifier of a payout: id, unique_id, payment id, exchange, swap, or a transaction of the wallet."""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Total:
    state: State
    count: int
    price: Amount


@dataclass(frozen=True)
class Day:
    """Payouts received on one UTC day, by their current states."""

    day: datetime
    received: int
    finished: int
    under_way: int
    """Including accumulating payouts."""
    with_people: int
    ended_otherwise: int
    volume: Amount
    """The prices paid for subscriptions, less refunds."""
    fees: Amount
    """Our fees on that volume."""


@dataclass(frozen=True)
class WalletUse:
    """The wallet's limits, and how much of them is used."""

    per_payment: Amount | None
    per_day: Amount | None
    low_balance: Amount
    """The alert level of the balance."""
    used_today: Amount
    """Signed in the last 24 hours, final or not."""
    open_count: int
    """Payments signed but not final."""
    oldest_open: datetime | None
    addresses: list[str]


@dataclass(frozen=True)
class AccumulatingClient:
    """A client with accumulating payouts: one coin, one address, one memo."""

    payout_currency: str
    payout_network: str
    wallet_address: str
    extra_id: str | None
    payouts: int
    value: Amount
    since: datetime


async def is_installed(read: Reads) -> bool:
    """Whether the database has the tables of payouts."""
    found: bool = await read.fetchval("select to_regclass('payouts.wallet_limits') is not null")
    return found


async def list_payouts(read: Reads, wanted: PayoutFilter, before: str | None, limit: int) -> list[Payout]:
    """Newest first; `before` is the last id of the previous page."""
    where, values = _where(wanted)
    if before is not None:
        values.append(before)
        where += f" and (created_at, id) < (select created_at, id from payouts.payouts where id = ${len(values)})"
    rows = await read.fetch(
        f"select * from payouts.payouts where {where} order by created_at desc, id desc limit {min(limit, LISTED_MAX)}",
        *values,
    )
    return [payout_from(row) for row in rows]


async def totals(read: Reads, wanted: PayoutFilter) -> list[Total]:
    """Totals of all states in the order of the flow, regardless of the filter's own states."""
    where, values = _where(replace(wanted, states=None))
    rows = await read.fetch(
        f"select state, count(*) as count, sum(price_minor) as minor from payouts.payouts where {where} group by state",
        *values,
    )
    found = {State(row["state"]): (row["count"], int(row["minor"])) for row in rows}
    return [Total(state, count, Amount(minor, USDT)) for state in State for count, minor in [found.get(state, (0, 0))]]


async def days(read: Reads, count: int) -> list[Day]:
    """Oldest first, including days without payouts."""
    rows = await read.fetch(
        """
        with days as (
            select generate_series(0, $1::int - 1) as ago, date_trunc('day', payonce.due_now(), 'UTC') as today)
        select d.today - make_interval(hours => 24 * d.ago) as day, count(p.id) as received,
            count(p.id) filter (where p.state = 'finished') as finished,
            count(p.id) filter (where p.state in ('held', 'review')) as with_people,
            count(p.id) filter (where p.state in ('rejected', 'refunded')) as ended_otherwise,
            coalesce(sum(p.price_minor) filter (where p.state <> 'refunded'), 0) as volume,
            coalesce(sum(p.fee_minor) filter (where p.state <> 'refunded'), 0) as fees
        from days d left join payouts.payouts p
            on p.created_at >= d.today - make_interval(hours => 24 * d.ago)
            and p.created_at < d.today - make_interval(hours => 24 * (d.ago - 1))
        group by 1 order by 1
        """,
        min(count, DAYS_MAX),
    )
    return [
        Day(
            row["day"],
            row["received"],
            row["finished"],
            row["received"] - row["finished"] - row["with_people"] - row["ended_otherwise"],
            row["with_people"],
            row["ended_otherwise"],
            Amount(int(row["volume"]), USDT),
            Amount(int(row["fees"]), USDT),
        )
        for row in rows
    ]


async def accumulated(read: Reads, limit: int | None = None) -> list[AccumulatingClient]:
    """Clients with accumulating payouts, longest waiting first."""
    rows = await read.fetch(
        """
        select payout_currency, payout_network, min(wallet_address) as wallet_address, extra_id, count(*) as payouts,
            sum(value_minor) as minor, min(created_at) as since
        from payouts.payouts where state = 'accumulating'
        group by payout_currency, payout_network, payouts.address_key(wallet_address), extra_id
        order by since, 1, 2, 3, 4 limit $1
        """,
        limit,
    )
    return [
        AccumulatingClient(
            row["payout_currency"],
            row["payout_network"],
            row["wallet_address"],
            row["extra_id"],
            row["payouts"],
            Amount(int(row["minor"]), ETH),
            row["since"],
        )
        for row in rows
    ]


async def wallet_use(read: Reads, asset: Asset = ETH) -> WalletUse | None:
    """None if the wallet does not pay this asset."""
    row = await read.fetchrow(
        """
        select l.per_payment_minor, l.per_day_minor, l.low_balance_minor, p.used, p.open, p.oldest, w.addresses
        from payouts.wallet_limits l
        cross join (
            select coalesce(sum(amount_minor) filter (where state in ('signed', 'final')
                    and created_at > payonce.due_now() - make_interval(secs => $3)), 0) as used,
                count(*) filter (where state = 'signed') as open,
                min(created_at) filter (where state = 'signed') as oldest
            from payouts.wallet_payments
            where asset = $1 and exponent = $2
              and (state = 'signed' or created_at > payonce.due_now() - make_interval(secs => $3))) p
        cross join (select coalesce(array_agg(address order by address), '{}') as addresses from payouts.wallets) w
        where l.asset = $1 and l.exponent = $2
        """,
        asset.code,
        asset.exponent,
        DAY_S,
    )
    if row is None:
        return None
    bounds = [
        None if row[name] is None else Amount(int(row[name]), asset) for name in ("per_payment_minor", "per_day_minor")
    ]
    low, used = (Amount(int(row[name]), asset) for name in ("low_balance_minor", "used"))
    return WalletUse(bounds[0], bounds[1], low, used, row["open"], row["oldest"], list(row["addresses"]))


def _where(wanted: PayoutFilter) -> tuple[str, list[Any]]:
    """The conditions of the given filters only, so that the planner can use an index."""
    asked = (
        ("state = any({}::text[])", wanted.states),
        ("payout_currency = {}", wanted.currency),
        ("payout_network = {}", wanted.network),
        ("payouts.address_key(wallet_address) = payouts.address_key({})", wanted.wallet),
        ("closed_channel_id = {}", wanted.channel),
        ("user_id = {}", wanted.user_id),
        (_NAMED, wanted.reference),
        ("created_at >= {}", wanted.since),
        ("created_at < {}", wanted.until),
    )
    given = [(condition, value) for condition, value in asked if value is not None]
    parts = [condition.replace("{}", f"${number}") for number, (condition, _) in enumerate(given, start=1)]
    return " and ".join(parts) or "true", [value for _, value in given]


_NAMED: Final = """id in (
    select id from payouts.payouts where id = {}
    union all select id from payouts.payouts where payment_id = {}
    union all select id from payouts.payouts where unique_id = upper({})
    union all select payout_id from payouts.shares where swap_id = {}
    union all select h.payout_id from payouts.shares h join payouts.swaps s on s.id = h.swap_id where s.cn_api_id = {}
    union all select h.payout_id from payouts.wallet_attempts a join payouts.wallet_payments w using (wallet, nonce)
        join payouts.shares h on h.swap_id = w.swap_id where a.hash = {})"""
