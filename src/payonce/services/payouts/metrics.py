"""What gauges tell of payouts, so that one that waits for a person, or does not move, is an alert."""

from payonce.engine.database.connections import Database
from payonce.engine.monitoring.metrics import PAYOUTS_OLDEST_SECONDS, PAYOUTS_OPEN
from payonce.services.payouts.model import ENDED, State


async def observe_payouts(database: Database) -> None:
    """Those that have not ended, in one pass over their own index."""
    rows = await database.engine.fetch(
        """
        select state, count(*) as count,
            greatest(0, extract(epoch from payonce.due_now() - min(updated_at)))::float8 as oldest_s
        from payouts.payouts where state not in ('finished', 'rejected', 'refunded') group by state
        """
    )
    found = {row["state"]: (row["count"], row["oldest_s"]) for row in rows}
    for state in frozenset(State) - ENDED:
        count, oldest_s = found.get(state, (0, 0.0))
        PAYOUTS_OPEN.labels(state).set(count)
        PAYOUTS_OLDEST_SECONDS.labels(state).set(oldest_s)
