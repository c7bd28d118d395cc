"""Accounts with a subscription, as they stand between two renewals; and what their counters say."""

from datetime import UTC, datetime
from typing import Any, Final

from payonce.services.billing.subscriptions.handlers.usage_sync import USAGE_INVARIANTS
from payonce.testing import Stage

FIRST: Final = datetime(2026, 1, 31, tzinfo=UTC)
SECOND: Final = datetime(2026, 2, 28, tzinfo=UTC)
THIRD: Final = datetime(2026, 3, 31, tzinfo=UTC)
CLOCK: Final = "a-clock"
CALLS, PROJECTS = "api_calls", "projects"


async def subscribe(s: Stage, account: str = "anna", plan: str = "basic-v1", state: str = "active") -> None:
    """On a test clock that stands at the beginning of the first period."""
    await s.owner.execute(
        """
        insert into subscriptions.test_clocks (id, name, now_at, target_at, made_by) values ($1, $1, $2, $2, 'a test')
        on conflict do nothing
        """,
        CLOCK,
        FIRST,
    )
    await s.owner.execute(
        """
        insert into subscriptions.accounts (id, email, password_hash, test_clock_id)
        values ($1, $1 || '@x.test', '', $2)
        """,
        account,
        CLOCK,
    )
    await s.owner.execute(
        """
        insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, test_clock_id, anchor_at,
            period_start, period_end, due_at, due_for)
        values ('of-' || $1, $1, $2, 'active', 'UTC', $3, $4, $4, $5, $5, 'renew')
        """,
        account,
        plan,
        CLOCK,
        FIRST,
        SECOND,
    )
    await move(s, state, account)


async def move(s: Stage, state: str, account: str = "anna") -> None:
    await s.owner.execute(
        """
        update subscriptions.subscriptions set state = $2,
            due_at = case when $2 in ('active', 'trialing', 'incomplete', 'past_due') then period_end end,
            due_for = case when $2 in ('active', 'trialing', 'incomplete', 'past_due') then 'renew' end,
            paused_at = case when $2 = 'paused' then period_start end,
            ended_at = case when $2 in ('canceled', 'incomplete_expired') then period_start end
        where account_id = $1
        """,
        account,
        state,
    )


async def renew(s: Stage, start: datetime = SECOND, end: datetime = THIRD, account: str = "anna") -> None:
    await s.owner.execute(
        """
        update subscriptions.subscriptions set period = period + 1, period_start = $2, period_end = $3, due_at = $3
        where account_id = $1
        """,
        account,
        start,
        end,
    )


async def counter(s: Stage, feature: str = CALLS, account: str = "anna") -> int | None:
    """As it is written, whatever period it counts."""
    used: int | None = await s.read.fetchval(
        "select used from subscriptions.usage_counters where subscription_id = 'of-' || $1 and feature = $2",
        account,
        feature,
    )
    return used


async def events(s: Stage) -> int:
    count: int = await s.read.fetchval("select count(*) from subscriptions.usage_events")
    return count


async def broken(s: Stage) -> dict[str, list[Any]]:
    found = {name: await s.read.fetch(query) for name, query in USAGE_INVARIANTS.items()}
    return {name: rows for name, rows in found.items() if rows}
