"""Operator actions on the outbox: list, pause, redrive, discard. Every change is in the audit log, with its actor."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.fingerprint import fingerprint
from payonce.engine.messages.model import Message, clean_text
from payonce.engine.messages.rows import MESSAGE_COLUMNS, message_shown
from payonce.engine.outbox.durable_copy import STARTS_OVER
from payonce.engine.outbox.entries import unknown_relay
from payonce.engine.outbox.model import State, wake_name
from payonce.kit.outcomes import Invalid, Stale

COUNT_MAX: Final = 100_000
"""Counts stop here, so that looking at a relay with a large backlog stays cheap."""
PAGE_MAX: Final = 1_000
CHANGE_BATCH: Final = 1_000
"""Rows per transaction of a redrive."""
NAMED_MAX: Final = 100
"""Entries named in one audit note."""
REDRIVE_MAX: Final = 50_000
"""Entries of a relay that are shown and redriven as one selection."""
DISCARD_MAX: Final = 100
"""Each entry is named explicitly and leaves an audit note of its own."""

GIVEN_UP: Final = "o.state = 'parked' and (not r.keeps or o.refusals > 0 or o.suspect)"
"""True for a row `o` of payonce.outbox and its relay `r` if the delivery was given up. Where entries are durable
copies, other parked entries are messages that a run parked; a delivery resets the relay's counts."""

_DELIVERED_ANEW: Final = """state = 'waiting', token = entry.token + 1, try_at = payonce.due_now(), tries = 0,
    refusals = 0, crashes = 0, suspect = false, last_error = null, delivery = entry.delivery + 1"""
"""Of a durable row `entry` that its relay gave up. Its attempts, age and due time belong to its runs, not to
the relay."""


@dataclass(frozen=True)
class Lag:
    """The state of one relay."""

    relay: str
    keeps: bool
    """Whether its entries are the messages of an external queue and live until they are settled."""
    waiting: int
    """Entries not delivered yet, including those being delivered."""
    delivered: int
    """Delivered and not settled; only for durable entries."""
    parked: int
    """Given up by the relay. Messages that runs parked are counted with their queue."""
    oldest_s: float
    """For how long the oldest undelivered entry has been due."""
    paused: bool
    paused_reason: str | None


@dataclass(frozen=True)
class StoredEntry:
    """An entry as stored, for people to look at."""

    message: Message
    state: State
    tries: int
    refusals: int
    crashes: int
    parked_at: datetime
    first_tried_at: datetime | None
    last_error: str | None


async def lag(database: Database) -> list[Lag]:
    """All relays, by name."""
    rows = await database.engine.fetch(
        f"""
        select r.name as relay, r.keeps, r.paused, r.paused_reason,
            (select count(*) from (select from payonce.outbox where relay = r.name and state in ('waiting', 'leased')
                limit {COUNT_MAX}) counted) as waiting,
            (select count(*) from (select from payonce.outbox where relay = r.name and state = 'delivered'
                limit {COUNT_MAX}) counted) as delivered,
            (select count(*) from (select from payonce.outbox o where o.relay = r.name and {GIVEN_UP}
                limit {COUNT_MAX}) counted) as parked,
            greatest(0, coalesce((select extract(epoch from payonce.due_now() - ready_at)::float8 from payonce.outbox
                where relay = r.name and state in ('waiting', 'leased') order by ready_at limit 1), 0)) as oldest_s
        from payonce.relays r order by r.name
        """
    )
    return [Lag(**dict(row)) for row in rows]


async def parked_entries(
    database: Database, relay: str, limit: int = PAGE_MAX, after: UUID | None = None
) -> list[StoredEntry]:
    """Entries given up by the relay, in that order; `after` is the last id of the previous page."""
    if not 1 <= limit <= PAGE_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {PAGE_MAX:,}")
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        rows = await connection.fetch(
            f"""
            select {MESSAGE_COLUMNS}, state, tries, refusals, crashes, try_at, first_tried_at, last_error
            from payonce.relays r join payonce.outbox o on o.relay = r.name
            where r.name = $1 and {GIVEN_UP} and ($3::uuid is null or (o.try_at, o.id) > (
                select try_at, id from payonce.outbox where relay = $1 and id = $3))
            order by o.try_at, o.id limit $2
            """,
            relay,
            limit,
            after,
        )
    return [
        StoredEntry(
            message_shown(row),
            State(row["state"]),
            row["tries"],
            row["refusals"],
            row["crashes"],
            row["try_at"],
            row["first_tried_at"],
            row["last_error"],
        )
        for row in rows
    ]


class ParkedSelection(msgspec.Struct, frozen=True):
    """All parked entries of a relay when they were shown: their count and fingerprint. Entries parked later are not
    included."""

    count: int
    fingerprint: str
    parked_before: datetime


async def all_parked(database: Database, relay: str) -> ParkedSelection:
    """A redrive of all currently parked entries, to be shown and then confirmed."""
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        end = await connection.fetchval("select payonce.due_now()") + timedelta(microseconds=1)
        ids = await _parked_ids(connection, relay, end)
    return ParkedSelection(len(ids), fingerprint(ids), end)


async def redrive_all(database: Database, notifier: Notifier, relay: str, shown: ParkedSelection, *, by: str) -> int:
    """Redrives exactly the entries that were shown; raises Stale, and redrives none, if they have changed."""
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        ids = await _parked_ids(connection, relay, shown.parked_before)
        if fingerprint(ids) != shown.fingerprint:
            raise Stale(f"the parked entries of {relay} are no longer the {shown.count:,} that were shown; look again")
        begun_at = await connection.fetchval("select payonce.due_now()")
        count = 0
        for begin in range(0, len(ids), CHANGE_BATCH):
            part = ids[begin : begin + CHANGE_BATCH]
            count += await _redrive_batch(database, connection, relay, part, begun_at, by, False)
    if count:
        notifier.notify({wake_name(relay)})
    return count


async def redrive_entries(
    database: Database, notifier: Notifier, relay: str, *, by: str, ids: Sequence[UUID] = (), as_new: bool = False
) -> int:
    """Restarts entries that the relay gave up: those of `ids`, or all. An entry that is parked again meanwhile stays
    parked. Messages that a run parked are refused: the redrive of their queue assesses the amounts and may need a
    second person.

    `as_new` also sends entries again whose first attempt was too long ago: the caller has made sure that no receiver
    has accepted them.
    """
    count = 0
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        if ids:
            await _refuse_messages(connection, relay, ids)
        begun_at = await connection.fetchval("select payonce.due_now()")
        while moved := await _redrive_batch(database, connection, relay, list(ids) or None, begun_at, by, as_new):
            count += moved
        if not count:
            await _refuse_messages(connection, relay, None)
    if count:
        notifier.notify({wake_name(relay)})
    return count


async def discard_entries(database: Database, relay: str, ids: Sequence[UUID], *, by: str, why: str) -> int:
    """Deletes parked entries that are never to be delivered, with an audit note for each. Messages of a queue are
    refused: its purge keeps those with open effects."""
    if not 1 <= len(ids) <= DISCARD_MAX:
        raise Invalid(f"{len(ids)} entries to discard; name 1 to {DISCARD_MAX} of them")
    if not why.strip():
        raise Invalid("a discarded entry is gone for good; give a reason")
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        if await _known(connection, relay):
            raise _messages_of(relay, "QUEUE")
        rows = await connection.fetch(
            """
            delete from payonce.outbox where relay = $1 and id = any($2) and state = 'parked'
            returning id, queue, action, last_error
            """,
            relay,
            list(ids),
        )
        for row in rows:
            text = f"{row['queue']} {row['action']} to {relay} was parked ({row['last_error']}); discarded: {why}"
            await note(connection, "outbox.discard", str(row["id"]), text, actor=by, severity=Severity.WARNING)
    return len(rows)


async def pause_relay(database: Database, relay: str, *, by: str, reason: str) -> None:
    """Stops claims in all processes at once. Deliveries in progress finish; nothing is lost."""
    await _set_paused(database, relay, by, reason)


async def resume_relay(database: Database, notifier: Notifier, relay: str, *, by: str) -> None:
    await _set_paused(database, relay, by, None)
    notifier.notify({wake_name(relay)})


async def _parked_ids(connection: Connection, relay: str, before: datetime) -> list[UUID]:
    rows = await connection.fetch(
        """
        select id from payonce.outbox where relay = $1 and state = 'parked' and try_at < $2
        order by try_at, id limit $3
        """,
        relay,
        before,
        REDRIVE_MAX + 1,
    )
    if len(rows) > REDRIVE_MAX:
        raise Invalid(f"more than {REDRIVE_MAX:,} entries of {relay} are parked; use: payonce outbox redrive {relay}")
    return [row["id"] for row in rows]


async def _redrive_batch(
    database: Database,
    connection: Connection,
    relay: str,
    ids: list[UUID] | None,
    begun_at: datetime,
    by: str,
    as_new: bool,
) -> int:
    async with settled_transaction(database, connection):
        anew = _DELIVERED_ANEW if await _known(connection, relay) else STARTS_OVER
        rows = await connection.fetch(
            f"""
            with chosen as (
                select o.id from payonce.relays r join payonce.outbox o on o.relay = r.name
                where r.name = $1 and {GIVEN_UP} and ($2::uuid[] is null or o.id = any($2)) and o.try_at <= $3
                order by o.try_at, o.id limit {CHANGE_BATCH} for update of o skip locked
            )
            update payonce.outbox entry
            set {anew}, first_tried_at = case when $4 then null else entry.first_tried_at end
            from chosen where entry.relay = $1 and entry.id = chosen.id
            returning entry.id
            """,
            relay,
            ids,
            begun_at,
            as_new,
        )
        if rows:
            named = (
                f": {', '.join(str(row['id']) for row in rows)}" if ids is not None and len(ids) <= NAMED_MAX else ""
            )
            text = f"{len(rows)} parked entries redriven{' as new' if as_new else ''}{named}"
            await note(connection, "outbox.redrive", relay, text, actor=by)
    return len(rows)


async def _set_paused(database: Database, relay: str, by: str, reason: str | None) -> None:
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        await _known(connection, relay)
        await connection.execute(
            "update payonce.relays set paused = $2, paused_reason = $3 where name = $1",
            relay,
            reason is not None,
            None if reason is None else clean_text(reason),
        )
        what, text = ("resume", "resumed") if reason is None else ("pause", f"paused: {reason}")
        await note(connection, f"outbox.{what}", relay, text, actor=by)


async def _known(connection: Connection, relay: str) -> bool:
    """Whether its entries live until they are settled. Raises Invalid for an unknown relay."""
    keeps = await connection.fetchval("select keeps from payonce.relays where name = $1", relay)
    if keeps is None:
        raise await unknown_relay(connection, relay)
    return bool(keeps)


async def _refuse_messages(connection: Connection, relay: str, ids: Sequence[UUID] | None) -> None:
    queue = await connection.fetchval(
        f"""
        select o.queue from payonce.relays r join payonce.outbox o on o.relay = r.name
        where r.name = $1 and o.state = 'parked' and not ({GIVEN_UP}) and ($2::uuid[] is null or o.id = any($2))
        order by o.queue limit 1
        """,
        relay,
        None if ids is None else list(ids),
    )
    if queue is not None:
        raise _messages_of(relay, queue)


def _messages_of(relay: str, queue: str) -> Invalid:
    return Invalid(
        f"the parked entries of {relay} are messages of a queue; see: payonce queues peek {queue} --state parked, "
        f"then payonce queues redrive {queue} or payonce queues purge {queue}"
    )
