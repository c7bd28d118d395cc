"""What operators do to the outbox: look, pause, redrive, discard. Every change is in the audit log, with its actor."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from payonce.engine.audit import Severity, note
from payonce.engine.bell import Bell
from payonce.engine.database import Connection, Database, settled_transaction
from payonce.engine.model import Message, clean_text
from payonce.engine.outbox.entries import unknown_relay
from payonce.engine.outbox.kept import CONSUMER_PREFIX, STARTS_OVER
from payonce.engine.outbox.model import State, wake_name
from payonce.engine.rows import MESSAGE_COLUMNS, message_shown
from payonce.kit.outcomes import Invalid

COUNT_MAX: Final = 100_000
"""Counts stop here, so that looking at a relay that is far behind stays cheap."""
PAGE_MAX: Final = 1_000
CHANGE_BATCH: Final = 1_000
"""A redrive works in transactions of this many rows."""
DISCARD_MAX: Final = 100
"""Each is named by hand and leaves a line of its own."""


@dataclass(frozen=True)
class Lag:
    """How one relay stands."""

    relay: str
    waiting: int
    """Not delivered yet, those that are being delivered included."""
    delivered: int
    """With the other side and not settled; only where entries are kept."""
    parked: int
    oldest_s: float
    """For how long the oldest undelivered entry has been due."""
    paused: bool
    paused_reason: str | None


@dataclass(frozen=True)
class Stored:
    """An entry as it lies in the store, for people to look at."""

    message: Message
    state: State
    tries: int
    refusals: int
    crashes: int
    parked_at: datetime
    first_tried_at: datetime | None
    last_error: str | None


async def lag(database: Database) -> list[Lag]:
    """Every relay, by name."""
    rows = await database.engine.fetch(
        f"""
        select r.name as relay, r.paused, r.paused_reason,
            (select count(*) from (select from payonce.outbox where relay = r.name and state in ('waiting', 'leased')
                limit {COUNT_MAX}) counted) as waiting,
            (select count(*) from (select from payonce.outbox where relay = r.name and state = 'delivered'
                limit {COUNT_MAX}) counted) as delivered,
            (select count(*) from (select from payonce.outbox where relay = r.name and state = 'parked'
                limit {COUNT_MAX}) counted) as parked,
            greatest(0, coalesce((select extract(epoch from payonce.due_now() - ready_at)::float8 from payonce.outbox
                where relay = r.name and state in ('waiting', 'leased') order by ready_at limit 1), 0)) as oldest_s
        from payonce.relays r order by r.name
        """
    )
    return [Lag(**dict(row)) for row in rows]


async def parked_entries(
    database: Database, relay: str, limit: int = PAGE_MAX, after: UUID | None = None
) -> list[Stored]:
    """In the order they were parked; `after` the given one, for the next page."""
    if not 1 <= limit <= PAGE_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {PAGE_MAX:,}")
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        rows = await connection.fetch(
            f"""
            select {MESSAGE_COLUMNS}, state, tries, refusals, crashes, try_at, first_tried_at, last_error
            from payonce.outbox
            where relay = $1 and state = 'parked' and ($3::uuid is null or (try_at, id) > (
                select try_at, id from payonce.outbox where relay = $1 and id = $3))
            order by try_at, id limit $2
            """,
            relay, limit, after,
        )  # fmt: skip
    return [
        Stored(message_shown(row), State(row["state"]), row["tries"], row["refusals"], row["crashes"], row["try_at"],
               row["first_tried_at"], row["last_error"])
        for row in rows
    ]  # fmt: skip


async def redrive_entries(
    database: Database, bell: Bell, relay: str, *, by: str, ids: Sequence[UUID] = (), as_new: bool = False
) -> int:
    """Parked entries start over, those of `ids` or all. One that is parked again meanwhile stays.

    `as_new` also sends those again that were first tried too long ago: whoever says so has made sure that no receiver
    has taken them.
    """
    count = 0
    async with database.engine.acquire() as connection:
        await _known(connection, relay)
        begun_at = await connection.fetchval("select payonce.due_now()")
        while moved := await _redrive_batch(database, connection, relay, list(ids) or None, begun_at, by, as_new):
            count += moved
    if count:
        bell.ring({wake_name(relay)})
    return count


async def discard_entries(database: Database, relay: str, ids: Sequence[UUID], *, by: str, why: str) -> int:
    """Deletes parked entries that are never to be delivered. Each leaves a line in the audit log. A copy that the other
    side still has of a kept one finds its id in the inbox, as if it had been settled."""
    if not 1 <= len(ids) <= DISCARD_MAX:
        raise Invalid(f"{len(ids)} entries to discard; name 1 to {DISCARD_MAX} of them")
    if not why.strip():
        raise Invalid("a discarded entry is gone for good; say why")
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        await _known(connection, relay)
        rows = await connection.fetch(
            f"""
            with gone as (
                delete from payonce.outbox where relay = $1 and id = any($2) and state = 'parked'
                returning id, queue, action, last_error
            ), ended as (
                insert into payonce.inbox (consumer, id)
                select '{CONSUMER_PREFIX}' || queue, id::text from gone join payonce.relays on name = $1 and keeps
                on conflict do nothing
            )
            select * from gone
            """,
            relay, list(ids),
        )  # fmt: skip
        for row in rows:
            text = f"{row['queue']} {row['action']} to {relay} was parked ({row['last_error']}); discarded: {why}"
            await note(connection, "outbox.discard", str(row["id"]), text, actor=by, severity=Severity.WARNING)
    return len(rows)


async def pause_relay(database: Database, relay: str, *, by: str, reason: str) -> None:
    """No more claims, in any process, at once. What is being delivered ends; nothing is lost."""
    await _set_paused(database, relay, by, reason)


async def resume_relay(database: Database, bell: Bell, relay: str, *, by: str) -> None:
    await _set_paused(database, relay, by, None)
    bell.ring({wake_name(relay)})


async def _redrive_batch(
    database: Database, connection: Connection, relay: str, ids: list[UUID] | None, begun_at: datetime, by: str,
    as_new: bool,
) -> int:  # fmt: skip
    async with settled_transaction(database, connection):
        rows = await connection.fetch(
            f"""
            with chosen as (
                select id from payonce.outbox
                where relay = $1 and state = 'parked' and ($2::uuid[] is null or id = any($2)) and try_at <= $3
                order by try_at, id limit {CHANGE_BATCH} for update skip locked
            )
            update payonce.outbox entry
            set {STARTS_OVER}, first_tried_at = case when $4 then null else entry.first_tried_at end
            from chosen where entry.relay = $1 and entry.id = chosen.id
            returning entry.id
            """,
            relay, ids, begun_at, as_new,
        )  # fmt: skip
        if rows:
            named = f": {', '.join(str(row['id']) for row in rows)}" if ids is not None else ""
            text = f"{len(rows)} parked entries redriven{' as new' if as_new else ''}{named}"
            await note(connection, "outbox.redrive", relay, text, actor=by)
    return len(rows)


async def _set_paused(database: Database, relay: str, by: str, reason: str | None) -> None:
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        await _known(connection, relay)
        await connection.execute(
            "update payonce.relays set paused = $2, paused_reason = $3 where name = $1",
            relay, reason is not None, None if reason is None else clean_text(reason),
        )  # fmt: skip
        what, text = ("resume", "resumed") if reason is None else ("pause", f"paused: {reason}")
        await note(connection, f"outbox.{what}", relay, text, actor=by)


async def _known(connection: Connection, relay: str) -> None:
    if not await connection.fetchval("select exists (select from payonce.relays where name = $1)", relay):
        raise await unknown_relay(connection, relay)
