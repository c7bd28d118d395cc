"""Rolls usage events up into the totals of their allowance windows, and deletes old ones."""

from typing import Final

from payonce.engine.janitors import Every, Schedule
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.log import get_logger
from payonce.services.billing.policies import USAGE_SYNC

SYNC_EVERY_S: Final = 900
ROLLED_MAX: Final = 10_000
"""Per commit; the rest has a message of its own."""
KEPT_DAYS: Final = 400
"""How long repeated events are recognised."""
PRUNED_MAX: Final = 10_000

USAGE_SCHEDULES: Final = (Schedule("billing-usage-sync", USAGE_SYNC, every=Every(SYNC_EVERY_S)),)

log = get_logger(__name__)


@handles(USAGE_SYNC)
async def process_usage_sync(work: Work) -> None:
    """Rolls up one batch in the commit that completes the message: a second run finds nothing to do."""
    async with work.commit() as tx:
        rolled = await roll(tx, ROLLED_MAX)
        pruned = await prune(tx, PRUNED_MAX)
        if rolled == ROLLED_MAX or pruned == PRUNED_MAX:
            await tx.send(USAGE_SYNC, {}, key=f"after:{work.message.id}")
    if rolled or pruned:
        log.info("usage_synced", rolled=rolled, pruned=pruned)


async def roll(tx: Tx, limit: int) -> int:
    """Returns the number of events. One statement marks and adds them, so an event is marked exactly if its total
    includes it."""
    rolled: int = await tx.fetchval(
        """
        with taken as (
            select account_id, event_id from subscriptions.usage_events where not rolled
            order by subscription_id, feature, period_start limit $1 for update skip locked),
        marked as (
            update subscriptions.usage_events e set rolled = true from taken
            where e.account_id = taken.account_id and e.event_id = taken.event_id
            returning e.subscription_id, e.feature, e.period_start, e.counted),
        added as (
            insert into subscriptions.usage_totals as t (subscription_id, feature, period_start, total, events)
            select subscription_id, feature, period_start, sum(counted), count(*) from marked
            group by 1, 2, 3 order by 1, 2, 3
            on conflict (subscription_id, feature, period_start) do update set
                total = t.total + excluded.total, events = t.events + excluded.events, updated_at = payonce.due_now())
        select count(*) from marked
        """,
        limit,
    )
    return rolled


async def prune(tx: Tx, limit: int) -> int:
    """Deletes only events included in totals, by real time: a test clock may advance by years within an hour."""
    pruned: int = await tx.fetchval(
        """
        with old as (
            select account_id, event_id from subscriptions.usage_events
            where rolled and created_at < payonce.due_now() - make_interval(days => $1)
            limit $2 for update skip locked),
        gone as (
            delete from subscriptions.usage_events e using old
            where e.account_id = old.account_id and e.event_id = old.event_id returning 1)
        select count(*) from gone
        """,
        KEPT_DAYS,
        limit,
    )
    return pruned


USAGE_INVARIANTS: Final = {
    "every counter matches the events counted in its period": """
        select c.subscription_id, c.feature, c.used, c.forgiven from subscriptions.usage_counters c
        where c.used + c.forgiven <> coalesce((
                select t.total from subscriptions.usage_totals t
                where t.subscription_id = c.subscription_id and t.feature = c.feature
                  and t.period_start = c.period_start), 0)
            + coalesce((
                select sum(e.counted) from subscriptions.usage_events e
                where e.subscription_id = c.subscription_id and e.feature = c.feature
                  and e.period_start = c.period_start and not e.rolled), 0)
    """,
    "no counter is ahead of its subscription": """
        select c.subscription_id, c.feature, c.period_start from subscriptions.usage_counters c
        join subscriptions.subscriptions s on s.id = c.subscription_id
        where s.period_start is null
           or (c.period_start > s.period_start and c.period_start <> all(coalesce(s.allowance_starts, '{}')))
    """,
}
