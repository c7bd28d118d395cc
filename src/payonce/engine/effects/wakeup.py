"""Wakes a message when one of its effects leaves the review, in whatever state the message is.

A parked message starts over. A message that waits for its next attempt becomes due at once. A running message is left
to its run: a run that ends with a retry checks its effects once more under their locks (`answered_since`), so an answer
is either seen there or finds the message waiting.

The time of an answer does not show whether the run knew it: a transaction that began before the claim may commit after
the run has read the effect. An answer is therefore also news if it changed the revision that the run has read.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.messages.rows import MESSAGE_STARTS_OVER
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.outbox.durable_copy import wake_durable

_ANSWERED: Final = """
    exists (select from payonce.effect_attempts a
            where a.effect_id = e.id and a.event = 'answered'
              and (a.created_at >= coalesce($2::timestamptz, '-infinity')
                   or (exists (select from unnest($3::uuid[], $4::bigint[]) as seen (id, revision)
                               where seen.id = e.id and seen.revision < e.revision)
                       and not exists (select from payonce.effect_attempts later
                                       where later.effect_id = e.id and later.id > a.id))))"""


async def wake_message(connection: Connection, message_id: UUID) -> str | None:
    """To be called in the commit in which the effect leaves the review. Returns the name to notify after the commit;
    None when the message is running, already due, or gone. Skips locked messages, whose owners may be waiting for the
    effect."""
    queue: str | None = await connection.fetchval(
        f"""
        with parked as (
            select id from payonce.messages where id = $1 and state = 'parked' for update skip locked
        )
        update payonce.messages m set {MESSAGE_STARTS_OVER} from parked where m.id = parked.id
        returning m.queue
        """,
        message_id,
    )
    queue = queue or await connection.fetchval(
        """
        with waiting as (
            select id from payonce.messages
            where id = $1 and state in ('ready', 'alone') and ready_at > payonce.due_now() for update skip locked
        )
        update payonce.messages m set ready_at = payonce.due_now() from waiting where m.id = waiting.id
        returning m.queue
        """,
        message_id,
    )
    return queue or await wake_durable(connection, message_id)


async def may_be_answered(read: Reader, message_id: UUID, since: datetime | None, seen: Mapping[UUID, int]) -> bool:
    """Whether an effect of the message is in review, or was until an answer that is news: see answered_since."""
    found: bool = await read.fetchval(
        f"""
        select exists (select from payonce.effects e where e.message_id = $1 and (e.state = 'review' or {_ANSWERED}))
        """,
        message_id,
        since,
        list(seen),
        list(seen.values()),
    )
    return found


async def answered_since(tx: Tx, message_id: UUID, since: datetime | None, seen: Mapping[UUID, int]) -> bool:
    """Whether an effect of the message was answered after `since`, or after the run read it; `seen` has the revision
    that the run read of each effect. Locks the effects until the caller commits: an answer given meanwhile waits, and
    then finds the message as this transaction leaves it."""
    await tx.fetch("select from payonce.effects where message_id = $1 order by id for update", message_id)
    found: bool = await tx.fetchval(
        f"select exists (select from payonce.effects e where e.message_id = $1 and {_ANSWERED})",
        message_id,
        since,
        list(seen),
        list(seen.values()),
    )
    return found
