"""Orphaned effects: open effects whose message is parked or gone, so that no run would look at them again."""

from typing import Final
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.effects import store
from payonce.engine.effects.model import Cause, Event, Result, State

ANSWER_GRACE_S: Final = 600.0
"""For this long after an answer no review is opened: the message that it woke may be on its way in an external queue.
"""

ORPHANED: Final = f"""
    e.state in ('intended', 'unknown')
    and (e.busy_until is null or e.busy_until <= payonce.due_now())
    and not exists (select from payonce.live_messages m where m.id = e.message_id and m.state <> 'parked')
    and not exists (
        select from payonce.effect_attempts a
        where a.effect_id = e.id and a.event = 'answered'
          and a.created_at > payonce.due_now() - make_interval(secs => {ANSWER_GRACE_S}))"""
"""True for an orphaned row `e` of payonce.effects. A message in an external queue has an outbox entry until it is
settled."""


async def find_orphans(database: Database, state: State, after: UUID, limit: int) -> list[UUID]:
    """Ids of the orphans in one state, in order, after `after`. By state, so that the index of open effects serves,
    however many have ended."""
    rows = await database.engine.fetch(
        f"""
        select e.id from payonce.effects e
        where {ORPHANED} and e.state = $1 and e.id > $2 order by e.id limit $3
        """,
        state,
        after,
        limit,
    )
    return [row["id"] for row in rows]


async def review_orphan(database: Database, effect_id: UUID) -> bool:
    """Opens a review if the effect is still an orphan. A locked effect belongs to a run or another process and is
    skipped.

    Checks again with the row locked: a redriven message may have begun the next attempt, which is left alone. An
    attempt that begins after this sees the review by its revision.
    """
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        row = await connection.fetchrow(
            f"""
            select e.*, payonce.due_now() as now from payonce.effects e
            where e.id = $1 and {ORPHANED} for update of e skip locked
            """,
            effect_id,
        )
        if row is None:
            return False
        stored = store.as_stored(row)
        why = await _why(connection, stored.message_id)
        moved = await store.move(
            connection,
            stored,
            State.REVIEW,
            Result(Event.GAVE_UP, why),
            reason=store.redacted(why),
            cause=Cause.GAVE_UP,
        )
        if moved:
            text = f"{stored.label} was {stored.state} and is now in review: {why}"
            await note(connection, "effects.orphans", str(stored.id), text, actor="payonce", severity=Severity.WARNING)
    return moved


async def _why(connection: Connection, message_id: UUID) -> str:
    parked = await connection.fetchrow("select last_error from payonce.live_messages where id = $1 limit 1", message_id)
    if parked is None:
        return f"message {message_id} is gone"
    return f"message {message_id} is parked: {parked['last_error'] or 'no reason given'}"
