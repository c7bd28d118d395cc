"""Business figures: recurring revenue by month, new and lost subscriptions.

A subscription counts with the price of its newest invoice's plan, converted to one month; trials and unpaid first
invoices do not count. Customers on test clocks are counted separately.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.kit.money import Amount, Asset

MONTHS_MAX: Final = 36
A_MONTH: Final = """
    case p.interval_unit
        when 'month' then p.price_minor::numeric / p.interval_count
        when 'year' then p.price_minor::numeric / (12 * p.interval_count)
        when 'week' then p.price_minor::numeric * 365 / (84 * p.interval_count)
        else p.price_minor::numeric * 365 / (12 * p.interval_count) end"""
"""A plan's price for one month; a year has 365 days."""
_NUMBER: Final = """
    (extract(year from {0} at time zone 'UTC') * 12 + extract(month from {0} at time zone 'UTC'))::int"""
"""The number of the month that contains a time."""
_MOVED: Final = f"""
    select {_NUMBER.format("e.at")} as month,
        count(*) filter (where e.to_state = 'active' and e.from_state in ('incomplete', 'trialing')) as won,
        count(*) filter (where e.to_state in ('canceled', 'unpaid')
            and e.from_state in ('active', 'past_due', 'paused')) as lost
    from subscriptions.subscription_events e
    join subscriptions.subscriptions s on s.id = e.subscription_id
    join subscriptions.plans p on p.id = s.plan_id
    where e.to_state in ('active', 'canceled', 'unpaid') and e.from_state is distinct from e.to_state
      and e.at >= {{}} and p.currency = $1 and p.exponent = $2 and {{}} group by 1"""
"""New and lost subscriptions by month, from a start time, either on real time or on test clocks."""


@dataclass(frozen=True)
class Month:
    begin: datetime
    recurring: Amount
    """Monthly recurring revenue at its end, or now."""
    running: int
    """Subscriptions at its end, or now."""
    won: int
    lost: int
    """Canceled, or unpaid after dunning."""

    @property
    def churn_percent(self) -> int:
        """Lost ones as a share of those at the start of the month and those added in it."""
        there = self.running + self.lost
        return self.lost * 100 // there if there else 0


async def currencies(read: Reads) -> list[Asset]:
    """The currencies of the plans, the one with the most subscriptions first."""
    rows = await read.fetch(
        """
        select p.currency, p.exponent, count(s.id) from subscriptions.plans p
        left join subscriptions.subscriptions s on s.plan_id = p.id group by 1, 2 order by 3 desc, 1
        """
    )
    return [Asset(row["currency"], row["exponent"]) for row in rows]


async def running_month(read: Reads, asset: Asset) -> Month:
    """The last month of `count_months`, computed from current subscriptions instead of all invoices."""
    row = await read.fetchrow(
        f"""
        with first as (select date_trunc('month', payonce.due_now(), 'UTC') as begin_at),
        moved as ({_MOVED.format("(select begin_at from first)", "s.test_clock_id is null")})
        select begin_at, round(coalesce(r.minor, 0)) as minor, r.running, coalesce(m.won, 0) as won,
            coalesce(m.lost, 0) as lost
        from first cross join (
            select sum({A_MONTH}) as minor, count(*) as running
            from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
            where s.state in ('active', 'past_due') and s.test_clock_id is null
              and p.currency = $1 and p.exponent = $2) r
        left join moved m on true
        """,
        asset.code,
        asset.exponent,
    )
    return month_from(row, asset)


async def count_months(read: Reads, count: int, asset: Asset, *, on_test_clocks: bool = False) -> list[Month]:
    """Oldest first, ending with the current month; in UTC. An invoice counts for the months at whose end it was the
    newest of its subscription, with its plan and price at that time. Reads every invoice of these months."""
    wanted = min(count, MONTHS_MAX)
    rows = await read.fetch(
        f"""
        with clock as materialized (
            select now_at, {_NUMBER.format("now_at")} as this
            from (select case when $4 then coalesce((select max(now_at) from subscriptions.test_clocks),
                payonce.due_now()) else payonce.due_now() end as now_at) its),
        first as (select date_trunc('month', now_at at time zone 'UTC') - make_interval(months => $3::int - 1) as day
            from clock),
        newest as (
            select i.plan_id, i.issued_at, least(i.period_end, lead(i.issued_at) over (
                partition by i.subscription_id order by i.issued_at, i.id), s.ended_at, s.paused_at) as until
            from subscriptions.invoices i join subscriptions.subscriptions s on s.id = i.subscription_id
            where i.period_end >= (select day from first) at time zone 'UTC' and i.state in ('open', 'paid')
              and i.action <> 'trial' and i.currency = $1 and i.exponent = $2 and s.state <> 'incomplete'
              and (s.test_clock_id is not null) = $4),
        alike as (
            select n.plan_id, {_NUMBER.format("n.issued_at")} as since, {_NUMBER.format("n.until")} as until,
                n.issued_at <= c.now_at and n.until > c.now_at as runs, count(*)
            from newest n, clock c where n.until > n.issued_at group by 1, 2, 3, 4),
        recurring as (
            select m.month, round(sum(a.count * ({A_MONTH}))) as minor, sum(a.count)::bigint as running
            from alike a cross join clock c join subscriptions.plans p on p.id = a.plan_id, lateral (
                select generate_series(a.since, least(a.until, c.this) - 1) as month
                union all select c.this where a.runs) m
            group by 1),
        moved as ({_MOVED.format("(select day from first) at time zone 'UTC'", "(s.test_clock_id is not null) = $4")})
        select (f.day + make_interval(months => n)) at time zone 'UTC' as begin_at, coalesce(r.minor, 0) as minor,
            coalesce(r.running, 0) as running, coalesce(w.won, 0) as won, coalesce(w.lost, 0) as lost
        from first f cross join clock c cross join generate_series(0, $3::int - 1) as n
        left join recurring r on r.month = c.this - $3::int + 1 + n
        left join moved w on w.month = c.this - $3::int + 1 + n order by 1
        """,
        asset.code,
        asset.exponent,
        wanted,
        on_test_clocks,
    )
    return [month_from(row, asset) for row in rows]


def month_from(row: Any, asset: Asset) -> Month:
    return Month(row["begin_at"], Amount(int(row["minor"]), asset), row["running"], row["won"], row["lost"])
