"""Retention of events: old events are deleted with their deliveries and attempts, unless a delivery is still
pending."""

from functools import partial
from typing import Final

from payonce.engine.database.batches import in_batches
from payonce.engine.database.connections import Database

FORGET_EVENTS: Final = 500
FORGET_BATCHES_MAX: Final = 20


async def forget_events(database: Database, keep_days: int) -> int:
    """Returns the number of events deleted."""
    return await in_batches(partial(_forget_batch, database, keep_days), FORGET_EVENTS, FORGET_BATCHES_MAX)


async def _forget_batch(database: Database, keep_days: int) -> int:
    count: int = await database.engine.fetchval(
        """
        with over as (
            select id from payonce.webhook_events v
            where created_at < payonce.due_now() - make_interval(days => $1)
              and not exists (
                  select from payonce.webhook_deliveries d where d.event_id = v.id
                    and (d.state = 'pending' or d.created_at >= payonce.due_now() - make_interval(days => $1))
              )
            order by created_at limit $2
        ), forgotten as (
            delete from payonce.webhook_events v using over where v.id = over.id returning true
        )
        select count(*) from forgotten
        """,
        keep_days,
        FORGET_EVENTS,
    )
    return count
