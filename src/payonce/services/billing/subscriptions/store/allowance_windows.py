"""Repairs the allowance windows of current periods that a process of an earlier version left missing or outdated."""

from typing import Final

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.subscriptions.domain.allowance import window_starts
from payonce.services.billing.subscriptions.store import plans, subscriptions

OUTDATED: Final = """
    from subscriptions.subscriptions s join subscriptions.plans p on p.id = s.plan_id
    cross join lateral (
        select p.allowance_unit is not null and (p.allowance_unit, p.allowance_count) is distinct from (
            case when p.trial_days is null then p.interval_unit else 'day' end,
            coalesce(p.trial_days, p.interval_count)) as parted) limits
    where s.state not in ('incomplete_expired', 'canceled') and s.period_end is not null
      and s.anchor_at <= s.period_start
      and case when limits.parted
            then coalesce(s.allowance_starts[1] <> s.period_start
                or s.allowance_starts[array_length(s.allowance_starts, 1)] >= s.period_end, true)
            else s.allowance_starts is not null end"""
"""Subscriptions whose windows do not match their period and plan. Earlier versions leave the column unchanged when they
renew a subscription or change its plan. An anchor after the period's start belongs to the next period, which is about
to begin."""


async def put_right(tx: Tx, limit: int) -> list[str]:
    """Recomputes the windows, and returns the ids of the subscriptions. From then on usage is counted in the right
    windows."""
    rows = await tx.fetch(f"select s.* {OUTDATED} order by s.id limit $1 for no key update of s skip locked", limit)
    for subscription in map(subscriptions.subscription_from, rows):
        assert subscription.anchor_at is not None
        assert subscription.period_start is not None and subscription.period_end is not None
        allowance = plans.allowance_of(await plans.plan(tx, subscription.plan_id))
        starts = window_starts(
            subscription.anchor_at,
            subscription.time_zone,
            allowance,
            subscription.period_start,
            subscription.period_end,
        )
        await tx.execute(
            """
            update subscriptions.subscriptions
            set allowance_starts = $2, revision = revision + 1, updated_at = payonce.due_now() where id = $1
            """,
            subscription.id,
            starts,
        )
    return [row["id"] for row in rows]
