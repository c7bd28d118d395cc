"""What a run leaves behind: open effects of its message, and outcomes or answers that it has not seen."""

from collections.abc import Collection
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.effects import store
from payonce.engine.effects.model import OPEN, EffectRecord
from payonce.engine.effects.orphans import ANSWER_GRACE_S
from payonce.engine.messages.transaction import Reader, Tx

UNHEEDED: Final = f"""
    exists (
        select from (
            select event, created_at from payonce.effect_attempts where effect_id = e.id order by id desc limit 1
        ) newest
        where newest.event = 'answered'
          and newest.created_at > payonce.due_now() - make_interval(secs => {ANSWER_GRACE_S}))"""
"""True for a row `e` of payonce.effects that a person has just answered and no run has acted on since."""


async def left_open(read: Reader | Tx, message_id: UUID) -> EffectRecord | None:
    """One open effect of a message, or None."""
    row = await read.fetchrow(
        """
        select *, payonce.due_now() as now from payonce.effects
        where message_id = $1 and state in ('intended', 'unknown', 'review') order by id limit 1
        """,
        message_id,
    )
    return None if row is None else store.as_stored(row)


async def has_loose_ends(read: Reader, message_id: UUID, since: datetime | None) -> bool:
    """Whether an effect of the message is open, or ended after `since` or by a recent answer, so that the run may not
    know it. Without `since`, any ended effect counts."""
    return bool(
        await read.fetchval(
            f"""
            select exists (
                select from payonce.effects e
                where e.message_id = $1
                  and (e.state in ('intended', 'unknown', 'review')
                       or e.updated_at >= coalesce($2::timestamptz, '-infinity') or {UNHEEDED}))
            """,
            message_id,
            since,
        )
    )


async def hold_effects(
    tx: Tx, message_id: UUID, since: datetime | None, known: Collection[tuple[str, str]]
) -> tuple[EffectRecord | None, bool]:
    """Locks the effects of a message that is about to be given up. Returns an open one, and whether there is news that
    the run does not know. `known` has the effects, by kind and key, whose end it knows. An answer given meanwhile waits
    for the lock and then finds the message parked; an earlier one is seen here. Answers of the last ANSWER_GRACE_S
    always count: one that began before `since` may have been committed after the run read the effect."""
    rows = await tx.fetch(
        f"""
        select e.*, payonce.due_now() as now, {UNHEEDED} as unheeded, exists (
                select from payonce.effects later
                where later.kind = e.kind and later.key = e.key and later.generation > e.generation
            ) as regenerated
        from payonce.effects e
        where e.message_id = $1
          and (e.state in ('intended', 'unknown', 'review')
               or e.updated_at >= coalesce($2::timestamptz, '-infinity') or {UNHEEDED})
        order by e.id for update of e
        """,
        message_id,
        since,
    )
    still_open: EffectRecord | None = None
    news = False
    for row, stored in ((row, store.as_stored(row)) for row in rows):
        if stored.state in OPEN:
            still_open = still_open or stored
            news = news or row["unheeded"]
        elif not row["regenerated"]:
            news = news or (stored.kind, stored.key) not in known
    return still_open, news
