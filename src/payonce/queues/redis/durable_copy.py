"""Messages that PostgreSQL keeps until they are settled: its steps precede those in Redis."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import md5
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database, is_transient
from payonce.engine.messages.job_log import EndedRun, write_runs
from payonce.engine.messages.model import Claim, Message, Settlement
from payonce.engine.outbox import EntryStatus, SettleOutcome, entry_statuses, put_out, settle_durable
from payonce.engine.outbox import State as Entry
from payonce.engine.outbox.durable_copy import STARTS_OVER, consumer, settled_before
from payonce.kit.log import get_logger

RELAY: Final = "redis"
KEPT: Final = "k"
"""Delivered from the outbox: if its row is gone, it is settled."""
MAYBE_KEPT: Final = "a"
"""A run was about to give it a row in the outbox, and may have died before."""

_encode = msgspec.json.Encoder().encode

log = get_logger(__name__)


class KeptClaim(Claim, frozen=True, gc=False):
    """A claim on a message that has, or may have, a row in the outbox."""

    kind: str = KEPT
    checked_at: datetime | None = None
    """When its row was found, by PostgreSQL's clock; None without a row."""

    @property
    def effects_since(self) -> datetime | None:
        """PostgreSQL's time: Redis' clock may be ahead. A message without a row has had no effects."""
        return self.checked_at


class DirectClaim(Claim, frozen=True, gc=False):
    """A claim on a message that only Redis has: no run of it has reached an effect yet."""

    @property
    def effects_since(self) -> datetime | None:
        return None


class CheckedClaims(msgspec.Struct, frozen=True):
    """PostgreSQL's verdict on claimed messages that it keeps."""

    run: Sequence[Claim]
    settled: Sequence[Claim]
    """Redis has an outdated copy."""
    outdated: Sequence[Claim]
    """Retried, parked or redriven meanwhile: PostgreSQL's version counts."""
    paused: bool = False
    """The queue is paused, which Redis has lost: nothing runs."""


async def check(database: Database, claims: Sequence[KeptClaim]) -> CheckedClaims:
    """Compares claims of one queue with PostgreSQL's rows."""
    known = await entry_statuses(database, RELAY, [claim.message.id for claim in claims])
    if any(standing.paused for standing in known.values()):
        return CheckedClaims((), (), (), paused=True)
    doubtful = [claim for claim in claims if claim.kind == MAYBE_KEPT and claim.message.id not in known]
    settled = await settled_before(database.engine, [claim.message for claim in doubtful])
    forged = await _forged(database, claims, known)
    run: list[Claim] = []
    gone: list[Claim] = []
    outdated: list[Claim] = []
    for claim in claims:
        standing = known.get(claim.message.id)
        if standing is None:
            (run if claim.kind == MAYBE_KEPT and claim.message.id not in settled else gone).append(claim)
        elif _same(standing, claim) and claim.message.id not in forged:
            run.append(msgspec.structs.replace(claim, checked_at=standing.asked_at))
        else:
            outdated.append(claim)
    return CheckedClaims(run, gone, outdated)


def _same(standing: EntryStatus, claim: Claim) -> bool:
    return standing.state is not Entry.PARKED and standing.attempts == claim.message.attempts


async def _forged(database: Database, claims: Sequence[Claim], known: Mapping[UUID, EntryStatus]) -> set[UUID]:
    """Bodies pushed under an existing message's id whose content differs from it."""
    suspects = {
        claim.message.id: claim.message
        for claim in claims
        if (standing := known.get(claim.message.id)) is not None
        and (
            standing.action != claim.message.action
            or standing.payload_md5 != md5(_encode(claim.message.payload), usedforsecurity=False).hexdigest()
        )
    }
    if not suspects:
        return set()
    # The same content may be encoded differently, such as 1e3 for 1000.
    rows = await database.engine.fetch(
        "select id, action, payload from payonce.outbox where relay = $1 and id = any($2)", RELAY, list(suspects)
    )
    same = {
        row["id"]
        for row in rows
        if row["action"] == suspects[row["id"]].action
        and msgspec.json.decode(row["payload"]) == suspects[row["id"]].payload
    }
    return suspects.keys() - same


class CopyStates(msgspec.Struct, frozen=True):
    """PostgreSQL's state of messages that have copies in Redis."""

    states: dict[UUID, Entry]
    """States of messages that have a row."""
    settled: set[UUID]

    def are_over(self, message_id: UUID, mark: str) -> bool:
        """Whether the message is settled: it is in the inbox, or was kept and has no row any more."""
        return message_id in self.settled or (mark == KEPT and message_id not in self.states)


async def known_copies(source: Connection | asyncpg.Pool, queue: str, ids: Sequence[UUID]) -> CopyStates:
    rows = await source.fetch(
        """
        select requested.id,
               (select state from payonce.outbox entry where entry.relay = $1 and entry.id = requested.id),
               exists (select from payonce.inbox known
                       where known.consumer = $2 and known.id = requested.id::text) as settled
        from unnest($3::uuid[]) as requested (id)
        """,
        RELAY,
        consumer(queue),
        list(ids),
    )
    states = {row["id"]: Entry(row["state"]) for row in rows if row["state"] is not None}
    return CopyStates(states, {row["id"] for row in rows if row["settled"]})


async def bring_again(source: Connection | asyncpg.Pool, ids: Sequence[UUID]) -> set[UUID]:
    """Delivers messages again whose copy was dropped, or is parked in Redis alone. Returns their ids."""
    rows = await source.fetch(
        """
        update payonce.outbox set state = 'waiting', token = token + 1, try_at = payonce.due_now()
        where relay = $1 and id = any($2) and state = 'delivered' returning id
        """,
        RELAY,
        list(ids),
    )
    return {row["id"] for row in rows}


async def record(database: Database, batch: Sequence[tuple[Settlement, EndedRun | None]]) -> dict[UUID, SettleOutcome]:
    """Settles runs in one transaction, with their rows in the job log. A refused row does not block the others."""
    if not batch:
        return {}
    try:
        async with database.engine.acquire() as connection, settled_transaction(database, connection):
            fates = await settle_durable(connection, RELAY, [settlement for settlement, _ in batch])
            ended = [run for (_, run), fate in zip(batch, fates, strict=True) if fate is SettleOutcome.RECORDED]
            await write_runs(connection, [run for run in ended if run is not None])
        return {settlement.claim.message.id: fate for (settlement, _), fate in zip(batch, fates, strict=True)}
    except asyncpg.PostgresError as error:
        if is_transient(error):
            raise
        if len(batch) == 1:
            message = batch[0][0].claim.message
            log.error("row_refused", queue=message.queue, message_id=str(message.id), error=str(error))
            return {message.id: SettleOutcome.STALE}
    middle = len(batch) // 2
    return await record(database, batch[:middle]) | await record(database, batch[middle:])


class IsolatedCrash(msgspec.Struct, frozen=True):
    """A worker died while it ran this message isolated."""

    id: UUID
    token: int
    reason: str
    run: EndedRun | None


async def park_dead(database: Database, deaths: Sequence[IsolatedCrash]) -> set[UUID]:
    """Parks messages in PostgreSQL, with rows in the job log. Returns the ids of those that had a row."""
    parked: set[UUID] = set()
    for death in deaths:
        async with database.engine.acquire() as connection, settled_transaction(database, connection):
            if await connection.fetchval(_PARK, RELAY, death.id, death.token, death.reason):
                parked.add(death.id)
                await write_runs(connection, [] if death.run is None else [death.run])
    return parked


_PARK: Final = """
    update payonce.outbox
    set state = 'parked', token = token + 1, lease_until = null, try_at = payonce.due_now(), last_error = $4,
        refusals = 0, suspect = false, holder = null, held_until = null
    where relay = $1 and id = $2 and state <> 'parked'
      and (holder is null or holder = $3 or held_until <= payonce.lease_now())
    returning true"""


async def start_over(source: Connection | asyncpg.Pool, ids: Sequence[UUID]) -> set[UUID]:
    """Makes parked rows wait again, with attempts and age from zero; returns their ids."""
    rows = await source.fetch(
        f"""
        update payonce.outbox entry set {STARTS_OVER}
        where relay = $1 and id = any($2) and state = 'parked' returning entry.id
        """,
        RELAY,
        list(ids),
    )
    return {row["id"] for row in rows}


async def adopt(connection: Connection, messages: Sequence[Message]) -> None:
    """Gives messages that only Redis has a row, in the caller's transaction; after its commit the relay delivers
    them."""
    fresh = [msgspec.structs.replace(message, attempts=0, not_before=None, delay_s=0.0) for message in messages]
    await put_out(connection, RELAY, fresh)


async def forget(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Deletes rows, except those held by a run; returns their ids."""
    rows = await connection.fetch(
        """
        delete from payonce.outbox where relay = $1 and id = any($2)
          and (holder is null or held_until <= payonce.lease_now())
        returning id
        """,
        RELAY,
        list(ids),
    )
    return {row["id"] for row in rows}
