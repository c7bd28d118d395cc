"""Entries that live until they are settled: what a queue elsewhere loses is put back from here.

The consumer writes here what it must not lose with that queue: that a message is settled, retried or parked. Retries
and parkings compare the attempts that the consumer was given, so that a run which was taken over changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.database import Connection, Database
from payonce.engine.model import DELAY_MAX_S
from payonce.engine.outbox.model import told
from payonce.kit.outcomes import Invalid

OVERDUE_MAX: Final = 10_000
"""Entries looked at by one page of a refill."""


class Kept(msgspec.Struct, frozen=True):
    """A delivered entry that is not settled, as far as a refill needs it."""

    id: UUID
    queue: str
    attempts: int
    ready_at: datetime


async def settle_kept(connection: Connection, relay: str, message_id: UUID) -> bool:
    """Ends an entry in the consumer's transaction, wherever it is on its way. False when it ended before."""
    gone = await connection.fetchval(
        "delete from payonce.outbox where relay = $1 and id = $2 returning true", relay, message_id
    )
    return gone is not None


async def postpone_kept(
    connection: Connection, relay: str, message_id: UUID, *, attempts: int, delay_s: float, reason: str
) -> bool:
    """A run ended in a retry: from now on the entry is put back with one attempt more, and not before its time."""
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise Invalid(f"delay_s is {delay_s}; it must be between 0 and {DELAY_MAX_S} seconds")
    moved = await connection.fetchval(
        """
        update payonce.outbox
        set attempts = attempts + 1, ready_at = payonce.due_now() + make_interval(secs => $4::float8), last_error = $5
        where relay = $1 and id = $2 and attempts = $3 and state <> 'parked'
        returning true
        """,
        relay, message_id, attempts, delay_s, told(reason),
    )  # fmt: skip
    return moved is not None


async def park_kept(connection: Connection, relay: str, message_id: UUID, *, attempts: int, reason: str) -> bool:
    """A run ended for good without success: the entry stays, with its reason, and nothing puts it back but a person."""
    parked = await connection.fetchval(
        """
        update payonce.outbox
        set state = 'parked', attempts = attempts + 1, token = token + 1, lease_until = null,
            try_at = payonce.due_now(), last_error = $4
        where relay = $1 and id = $2 and attempts = $3 and state <> 'parked'
        returning true
        """,
        relay, message_id, attempts, told(reason),
    )  # fmt: skip
    return parked is not None


async def overdue_kept(
    database: Database, relay: str, *, late_s: float, limit: int, after: Kept | None = None
) -> list[Kept]:
    """Delivered, unsettled, unparked, and due since `late_s` or longer: what a refill looks for on the other side.
    In the order they fell due; `after` the given one, for the next page."""
    if not 1 <= limit <= OVERDUE_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {OVERDUE_MAX:,}")
    rows = await database.engine.fetch(
        """
        select id, queue, attempts, ready_at from payonce.outbox
        where relay = $1 and state = 'delivered' and ready_at <= payonce.due_now() - make_interval(secs => $2::float8)
          and ($4::timestamptz is null or (ready_at, id) > ($4, $5::uuid))
        order by ready_at, id limit $3
        """,
        relay, late_s, limit, None if after is None else after.ready_at, None if after is None else after.id,
    )  # fmt: skip
    return [Kept(row["id"], row["queue"], row["attempts"], row["ready_at"]) for row in rows]


async def put_back(database: Database, relay: str, absent: Sequence[Kept]) -> int:
    """Lets entries that the other side has lost be delivered again, with attempts and due time as they are.
    What was settled, retried or parked since it was looked at stays as it is. Answers how many."""
    rows = await database.engine.fetch(
        """
        update payonce.outbox entry set state = 'waiting', token = entry.token + 1, try_at = payonce.due_now()
        from unnest($2::uuid[], $3::integer[], $4::timestamptz[]) as lost (id, attempts, ready_at)
        where entry.relay = $1 and entry.id = lost.id and entry.state = 'delivered'
          and entry.attempts = lost.attempts and entry.ready_at = lost.ready_at
        returning entry.id
        """,
        relay,
        [kept.id for kept in absent],
        [kept.attempts for kept in absent],
        [kept.ready_at for kept in absent],
    )
    return len(rows)
