"""Durable copies: outbox entries that live until they are settled, from which messages lost by an external queue are
put back.

The consumer records here what must not be lost with that queue: settlements, retries, parkings, and which run works on
the message with effects. The entry is the fence: a run that was taken over finds another holder, other attempts, or the
message's id in the inbox, and changes nothing.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.database.connections import Connection, Database, Statements
from payonce.engine.messages.idempotency import first_ids, take_keys
from payonce.engine.messages.job_log import insert_runs
from payonce.engine.messages.model import Claim, Message, Settlement
from payonce.engine.outbox.entries import STATEMENT_MAX_ENTRIES, put_once, put_out
from payonce.engine.outbox.model import State, stored_reason, wake_name
from payonce.kit.outcomes import Invalid

OVERDUE_MAX: Final = 10_000
"""Entries per page of a refill."""

CONSUMER_PREFIX: Final = "queue "

STARTS_OVER: Final = """state = 'waiting', token = entry.token + 1, try_at = payonce.due_now(),
    ready_at = payonce.due_now(), attempts = 0, tries = 0, refusals = 0, crashes = 0, suspect = false,
    last_error = null, holder = null, held_until = null, first_attempt_at = null, delivery = entry.delivery + 1,
    worker = null, begun_at = null, run_crashes = 0, running_alone = false"""
"""Of a row `entry` of payonce.outbox that a person, or an answer, restarts."""


class OverdueEntry(msgspec.Struct, frozen=True):
    """A delivered, unsettled entry, as a refill needs it."""

    id: UUID
    queue: str
    attempts: int
    ready_at: datetime


class EntryStatus(msgspec.Struct, frozen=True):
    """The outbox's state of a message that is about to run."""

    state: State
    attempts: int
    asked_at: datetime
    """By PostgreSQL's clock."""
    action: str
    payload_md5: str
    """Of the stored text."""
    paused: bool = False
    """No message of its queue may begin to run."""


class SettleOutcome(StrEnum):
    """The result of a settlement."""

    RECORDED = "recorded"
    GONE = "gone"
    """The message was settled before."""
    STALE = "stale"
    """It belongs to another run, or was retried or parked before. Nothing was changed."""
    UNKNOWN = "unknown"
    """It has no entry: only the external queue knows it."""


async def put_durable(connection: Connection, relay: str, messages: Sequence[Message]) -> list[UUID]:
    """Puts entries that exist if and only if the caller's transaction commits; each idempotency key is accepted once.
    Returns each message's id, or the first id of its key."""
    if len(messages) <= STATEMENT_MAX_ENTRIES:
        accepted = await put_once(connection, relay, messages)
    else:
        # All keys are taken in one order: taken part by part, two such puts could deadlock.
        fresh = await take_keys(connection, messages)
        accepted = {message.id for message in messages if message.idempotency_key is None or message.id in fresh}
        await put_out(connection, relay, [message for message in messages if message.id in accepted])
    if len(accepted) == len(messages):
        return [message.id for message in messages]
    return await first_ids(connection, messages, accepted)


async def entry_statuses(database: Database, relay: str, ids: Sequence[UUID]) -> dict[UUID, EntryStatus]:
    """The status of those messages that are not settled."""
    rows = await database.engine.fetch(
        """
        select id, state, attempts, payonce.due_now() as asked_at, action, md5(payload::text) as payload_md5,
               coalesce((select paused from payonce.queues where name = outbox.queue), false) as paused
        from payonce.outbox where relay = $1 and id = any($2)
        """,
        relay,
        list(ids),
    )
    return {row["id"]: EntryStatus(State(row["state"]), *tuple(row)[2:]) for row in rows}


async def hold_durable(connection: Connection, relay: str, claim: Claim, lease_s: float) -> bool:
    """The fence of a transaction that does not end the run: False unless this claim may work on the message.

    A message known only to its queue gets its entry now, since nothing may be sent for a message that could vanish.
    """
    held = await connection.fetchval(_HOLD, relay, claim.message.id, claim.token, lease_s)
    if held is not None:
        return True
    if await connection.fetchval(
        "select exists (select from payonce.outbox where relay = $1 and id = $2)", relay, claim.message.id
    ):
        return False
    await _lock(connection, claim.message.id)
    if await settled_before(connection, [claim.message]):
        return False
    await put_out(connection, relay, [msgspec.structs.replace(claim.message, not_before=None, delay_s=0.0)])
    held = await connection.fetchval(_HOLD_NEW, relay, claim.message.id, claim.token, lease_s, claim.first_attempt_at)
    return held is not None


async def settle_durable(connection: Connection, relay: str, settlements: Sequence[Settlement]) -> list[SettleOutcome]:
    """Ends runs in the caller's transaction: a success or failure writes the id into the inbox, a retry writes the next
    time and attempt into the entry, a parking writes the reason. Returns one outcome per settlement, in order.

    Locks in the order of ids, so that two batches with messages in common cannot deadlock.
    """
    ordered = sorted(settlements, key=lambda settlement: settlement.claim.message.id)
    rows = await connection.fetch(
        _SETTLE,
        relay,
        [settlement.claim.message.id for settlement in ordered],
        [settlement.claim.token for settlement in ordered],
        [settlement.ending.value for settlement in ordered],
        [settlement.claim.message.attempts for settlement in ordered],
        [settlement.delay_s for settlement in ordered],
        [None if settlement.reason is None else stored_reason(settlement.reason) for settlement in ordered],
        [settlement.claim.first_attempt_at for settlement in ordered],
    )
    recorded = {row["id"] for row in rows}
    left = [settlement for settlement in ordered if settlement.claim.message.id not in recorded]
    fates = dict.fromkeys(recorded, SettleOutcome.RECORDED)
    if left:
        fates |= await _outcomes_of_others(connection, relay, left)
    return [fates[settlement.claim.message.id] for settlement in settlements]


async def accept_without_entry(connection: Connection, relay: str, message: Message) -> SettleOutcome:
    """Ends a run of a message without an entry: GONE when it was settled before, STALE when it has an entry by now."""
    await _lock(connection, message.id)
    if await connection.fetchval(_ACCEPT, relay, message.id, consumer(message.queue)):
        return SettleOutcome.RECORDED
    return SettleOutcome.GONE if await settled_before(connection, [message]) else SettleOutcome.STALE


async def end_durable(connection: Statements, queue: str, correlation_id: str, info: str) -> int:
    """Ends messages of a queue that were handled elsewhere, logging them as successes with this remark; messages of
    running runs are left alone. Returns the number of messages."""
    ended: int = await connection.fetchval(
        f"""
        with gone as (
            delete from payonce.outbox entry
            where entry.relay in (select name from payonce.relays where keeps)
              and entry.queue = $1 and entry.correlation_id = $2 and entry.state <> 'parked'
              and (entry.holder is null or entry.held_until <= payonce.lease_now())
            returning entry.*
        ), accepted as (
            insert into payonce.inbox (consumer, id) select '{CONSUMER_PREFIX}' || queue, id::text from gone
            on conflict do nothing
        ), logged as (
            {insert_runs("gone", "gone", status="'success'", attempts="gone.attempts + 1", info="$3")}
        )
        select count(*) from gone
        """,
        queue,
        correlation_id,
        info,
    )
    return ended


async def wake_durable(connection: Connection, message_id: UUID) -> str | None:
    """Restarts a parked entry of any relay; an entry that waits for its next attempt is delivered at once. Returns the
    name to notify after the commit; None when the message is running or due, or has no entry."""
    relay: str | None = await connection.fetchval(
        f"""
        with parked as (
            select o.relay, o.id from payonce.relays r join payonce.outbox o on o.relay = r.name and o.id = $1
            where r.keeps and o.state = 'parked' limit 1 for update of o skip locked
        )
        update payonce.outbox entry set {STARTS_OVER}
        from parked where entry.relay = parked.relay and entry.id = parked.id
        returning entry.relay
        """,
        message_id,
    )
    relay = relay or await connection.fetchval(
        """
        with early as (
            select o.relay, o.id from payonce.relays r join payonce.outbox o on o.relay = r.name and o.id = $1
            where r.keeps and o.state <> 'parked' and o.ready_at > payonce.due_now()
              and (o.holder is null or o.held_until <= payonce.lease_now())
            limit 1 for update of o skip locked
        )
        update payonce.outbox entry
        set state = 'waiting', token = entry.token + 1, lease_until = null, delivery = entry.delivery + 1, tries = 0,
            refusals = 0, suspect = false, ready_at = payonce.due_now(), try_at = payonce.due_now()
        from early where entry.relay = early.relay and entry.id = early.id
        returning entry.relay
        """,
        message_id,
    )
    return None if relay is None else wake_name(relay)


async def overdue_entries(
    database: Database, relay: str, *, late_s: float, limit: int, after: OverdueEntry | None = None
) -> list[OverdueEntry]:
    """Entries delivered, unsettled, not parked, and due for `late_s` or longer, which a refill looks for in the
    external queue. Ordered by due time; `after` is the last entry of the previous page."""
    if not 1 <= limit <= OVERDUE_MAX:
        raise Invalid(f"limit is {limit}; it must be between 1 and {OVERDUE_MAX:,}")
    rows = await database.engine.fetch(
        """
        select id, queue, attempts, ready_at from payonce.outbox
        where relay = $1 and state = 'delivered' and ready_at <= payonce.due_now() - make_interval(secs => $2::float8)
          and ($4::timestamptz is null or (ready_at, id) > ($4, $5::uuid))
        order by ready_at, id limit $3
        """,
        relay,
        late_s,
        limit,
        None if after is None else after.ready_at,
        None if after is None else after.id,
    )
    return [OverdueEntry(row["id"], row["queue"], row["attempts"], row["ready_at"]) for row in rows]


async def put_back(database: Database, relay: str, absent: Sequence[OverdueEntry]) -> int:
    """Delivers entries again that the external queue has lost, with unchanged attempts and due time. Entries settled,
    retried or parked since they were read stay as they are, and so does a run's hold, since the run may still be
    active. An entry whose message is in the inbox is deleted. Returns the number of entries to be delivered again."""
    rows = await database.engine.fetch(
        f"""
        with lost as (
            select entry.id, exists (select from payonce.inbox known
                where known.consumer = '{CONSUMER_PREFIX}' || entry.queue and known.id = entry.id::text) as over
            from unnest($2::uuid[], $3::integer[], $4::timestamptz[]) as lost (id, attempts, ready_at)
            cross join lateral (
                select entry.id, entry.queue from payonce.outbox entry
                where entry.relay = $1 and entry.id = lost.id and entry.state = 'delivered'
                  and entry.attempts = lost.attempts and entry.ready_at = lost.ready_at
                for update
            ) entry
        ), gone as (
            delete from payonce.outbox where relay = $1 and id = any(array(select id from lost where over))
        )
        update payonce.outbox entry
        set state = 'waiting', token = entry.token + 1, try_at = payonce.due_now(), delivery = entry.delivery + 1
        where entry.relay = $1 and entry.id = any(array(select id from lost where not over))
        returning entry.id
        """,
        relay,
        [kept.id for kept in absent],
        [kept.attempts for kept in absent],
        [kept.ready_at for kept in absent],
    )
    return len(rows)


def consumer(queue: str) -> str:
    """The consumer name of a queue's runs in the inbox."""
    return CONSUMER_PREFIX + queue


async def _outcomes_of_others(
    connection: Connection, relay: str, settlements: Sequence[Settlement]
) -> dict[UUID, SettleOutcome]:
    """Read after the settling, when the transactions that were waited for have committed."""
    messages = [settlement.claim.message for settlement in settlements]
    gone = await settled_before(connection, messages)
    rows = await connection.fetch(
        "select id from payonce.outbox where relay = $1 and id = any($2)", relay, [message.id for message in messages]
    )
    there = {row["id"] for row in rows}
    return {
        message.id: SettleOutcome.GONE
        if message.id in gone
        else SettleOutcome.STALE
        if message.id in there
        else SettleOutcome.UNKNOWN
        for message in messages
    }


async def settled_before(source: Connection | asyncpg.Pool, messages: Sequence[Message]) -> set[UUID]:
    """Ids of the messages that have ended, by the inbox."""
    if not messages:
        return set()
    rows = await source.fetch(
        """
        select known.id from unnest($1::text[], $2::text[]) as asked (consumer, id)
        join payonce.inbox known using (consumer, id)
        """,
        [consumer(message.queue) for message in messages],
        [str(message.id) for message in messages],
    )
    return {UUID(row["id"]) for row in rows}


async def _lock(connection: Connection, message_id: UUID) -> None:
    """Holds until the transaction ends; a message without an entry has no row to lock."""
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"payonce message {message_id}")


_MINE: Final = "(entry.holder is null or entry.holder = {claim} or entry.held_until <= payonce.lease_now())"

_HOLD: Final = f"""
    update payonce.outbox entry
    set holder = $3, held_until = payonce.lease_now() + make_interval(secs => $4::float8)
    where relay = $1 and id = $2 and state <> 'parked' and {_MINE.format(claim="$3")}
    returning true"""

_HOLD_NEW: Final = """
    update payonce.outbox entry
    set state = 'delivered', holder = $3, held_until = payonce.lease_now() + make_interval(secs => $4::float8),
        first_attempt_at = $5
    where relay = $1 and id = $2 and state = 'waiting' and holder is null
    returning true"""

# A message in the inbox was settled before: its row is deleted, and the run is told. One look-up per settlement, in the
# given order: with a plain join or another order the planner scans the whole relay and compares every entry with every
# settlement. Among 12,000 entries a batch of 500 took 4.8 s instead of 0.03 s, measured.
_SETTLE: Final = f"""
    with said as (
        select * from unnest($2::uuid[], $3::bigint[], $4::text[], $5::integer[], $6::float8[], $7::text[],
                             $8::timestamptz[]) as said (id, token, ending, attempts, delay_s, reason, first_at)
    ), mine as (
        select entry.id, entry.queue, said.ending, said.delay_s, said.reason, said.first_at
        from said cross join lateral (
            select entry.id, entry.queue from payonce.outbox entry
            where entry.relay = $1 and entry.id = said.id and entry.state <> 'parked'
              and {_MINE.format(claim="said.token")}
              and (said.ending in ('success', 'failed') or entry.attempts = said.attempts)
            for update
        ) as entry
    ), gone as (
        delete from payonce.outbox entry
        where relay = $1 and id = any(array(select id from mine where ending in ('success', 'failed')))
        returning entry.id, entry.queue
    ), accepted as (
        insert into payonce.inbox (consumer, id) select '{CONSUMER_PREFIX}' || queue, id::text from gone
        on conflict do nothing returning id
    ), moved as (
        update payonce.outbox entry
        set state = case mine.ending when 'parked' then 'parked' else entry.state end,
            lease_until = case mine.ending when 'parked' then null else entry.lease_until end,
            token = entry.token + case mine.ending when 'parked' then 1 else 0 end,
            refusals = case mine.ending when 'parked' then 0 else entry.refusals end,
            suspect = entry.suspect and mine.ending <> 'parked',
            attempts = entry.attempts + 1, last_error = mine.reason, first_attempt_at = mine.first_at,
            try_at = case mine.ending when 'parked' then payonce.due_now() else entry.try_at end,
            ready_at = payonce.due_now() + make_interval(secs => mine.delay_s), holder = null, held_until = null
        from mine where entry.relay = $1 and entry.id = mine.id
          and entry.id = any(array(select id from mine where ending in ('retry', 'parked')))
        returning entry.id
    ), freed as (
        update payonce.outbox entry set holder = null, held_until = null
        where relay = $1 and id = any(array(select id from mine where ending = 'released')) and holder is not null
    )
    select id from gone where id::text in (select id from accepted) union all select id from moved
    union all select id from mine where ending = 'released'"""

_ACCEPT: Final = """
    insert into payonce.inbox (consumer, id)
    select $3, $2::uuid::text where not exists (select from payonce.outbox where relay = $1 and id = $2)
    on conflict do nothing returning true"""
