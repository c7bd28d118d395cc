"""The inbox: messages from elsewhere are accepted once, by writing their ids in the consumer's own transaction.

A sender repeats whatever may not have been delivered. The second time, the id exists and nothing is left to do.
"""

from functools import partial
from typing import Final
from uuid import UUID

from payonce.engine.database.batches import in_batches
from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.model import NAME_MAX_LENGTH
from payonce.engine.messages.transaction import Tx
from payonce.engine.outbox.model import ON_ITS_WAY_MAX_S, REPEAT_FOR_S
from payonce.kit.outcomes import Invalid

KEEP_S: Final = REPEAT_FOR_S + ON_ITS_WAY_MAX_S
"""The minimum time for which an id is remembered: the time in which a sender repeats, plus the time a message may be on
its way."""
FORGET_IDS: Final = 5_000
FORGET_BATCHES_MAX: Final = 40


async def accept(tx: Tx | Connection, consumer: str, id: UUID | str) -> bool:  # noqa: A002 - what senders call it
    """True the first time; False when this consumer has accepted it before, so that nothing must be changed.

    Waits for a transaction that is accepting the same id, and returns by its outcome.
    """
    text = str(id)
    for what, name in (("consumer", consumer), ("id", text)):
        if not 1 <= len(name) <= NAME_MAX_LENGTH or "\x00" in name:
            raise Invalid(f"inbox {what} {name[:40]!r} must have 1 to {NAME_MAX_LENGTH} characters and no NUL")
    taken = await tx.fetchval(
        "insert into payonce.inbox (consumer, id) values ($1, $2) on conflict do nothing returning true", consumer, text
    )
    return taken is not None


async def forget_accepted(database: Database, keep_s: float = KEEP_S) -> int:
    """Deletes ids that no sender repeats any more. Returns their number."""
    if keep_s < KEEP_S:
        raise Invalid(
            f"keep_s is {keep_s:g}; senders repeat for {REPEAT_FOR_S:g} s, so keep ids for {KEEP_S:g} s or longer"
        )
    return await in_batches(partial(_forget_batch, database, keep_s), FORGET_IDS, FORGET_BATCHES_MAX)


async def _forget_batch(database: Database, keep_s: float) -> int:
    count = await database.engine.fetchval(
        """
        with over as (
            select consumer, id from payonce.inbox
            where accepted_at <= payonce.due_now() - make_interval(secs => $1::float8)
            order by accepted_at limit $2
        ), forgotten as (
            delete from payonce.inbox known using over
            where known.consumer = over.consumer and known.id = over.id
            returning true
        )
        select count(*) from forgotten
        """,
        keep_s,
        FORGET_IDS,
    )
    return int(count)
