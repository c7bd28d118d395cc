"""The steps of a relay: claim a batch, deliver it, record the results.

A process that dies in between leaves a lease; when that has ended, the entries are delivered again.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from asyncpg import Record

from payonce.engine.database.connections import Database, is_transient
from payonce.engine.messages.rows import MESSAGE_COLUMNS, UNREADABLE, message_of
from payonce.engine.monitoring.metrics import OUTBOX_DELIVERIES
from payonce.engine.outbox.model import (
    REPEAT_FOR_S,
    Claimed,
    Deferred,
    DeliveryDecision,
    Entry,
    Refusal,
    Relay,
    State,
    decide,
    decide_suspect,
    stored_reason,
)
from payonce.kit.log import get_logger
from payonce.kit.outcomes import NotSent, Retry, Unknown

REAP_BATCH: Final = 1_000
SUSPECTS_PER_STEP: Final = 10
"""Isolated entries delivered after every batch, one by one: neither delays the other for long."""
CRASHES_SUSPICIOUS: Final = 2
"""After this many crashes beside other entries, an entry is delivered isolated; after one more crash it is parked."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Progress:
    """How many entries were claimed, and how many of them the destination deferred."""

    taken: int = 0
    put_off: int = 0
    is_full: bool = False
    """Whether a full batch was claimed, so that there may be more."""
    has_suspects: bool = False
    """Whether some of them are to be delivered isolated from now on."""

    @property
    def gets_through(self) -> bool:
        """False when there was nothing to do, or the destination accepts nothing, so that another step would
        not help."""
        return self.taken > self.put_off

    @property
    def goes_on(self) -> bool:
        """Entries put meanwhile trigger a notification."""
        return self.gets_through and self.is_full


async def relay_step(database: Database, relay: Relay) -> int:
    """Delivers due entries, up to one batch. Returns the number of entries claimed; 0 when there was nothing to do.

    Any number of processes may do this at once.
    """
    return (await hand_over(database, relay)).taken


async def hand_over(database: Database, relay: Relay) -> Progress:
    """Like relay_step, but returns the progress."""
    # Both are rare, and one query for them is cheaper than two statements that find nothing.
    [odd] = await database.engine.fetch(_ODD, relay.name)
    reaped = await reap(database, relay) if odd["dead"] else 0
    batch = await _relay(database, relay, relay.config.batch, suspects=False)
    taken, put_off, alone = batch.taken, batch.put_off, Progress()
    if (odd["suspects"] or reaped or batch.has_suspects) and (batch.gets_through or not batch.taken):
        for _ in range(SUSPECTS_PER_STEP):
            alone = await _relay(database, relay, 1, suspects=True)
            taken, put_off = taken + alone.taken, put_off + alone.put_off
            if not alone.gets_through:
                break
    return Progress(taken, put_off, batch.is_full or alone.is_full or reaped == REAP_BATCH)


async def reap(database: Database, relay: Relay) -> int:
    """Takes entries from relays with an expired lease. Returns their number."""
    rows = await database.engine.fetch(_REAP, relay.name, REAP_BATCH, CRASHES_SUSPICIOUS)
    for row in rows:
        log.warning(
            "outbox_lease_ended", relay=relay.name, message_id=str(row["id"]), crashes=row["crashes"], now=row["state"]
        )
    return len(rows)


async def claim(database: Database, relay: Relay, limit: int, *, suspects: bool) -> tuple[int, list[Claimed]]:
    """The number of entries claimed, and those of them to be delivered."""
    config = relay.config
    rows = await database.engine.fetch(
        _CLAIM, relay.name, suspects, limit, config.lease_s, None if config.keeps else REPEAT_FOR_S
    )
    claims = []
    for row in rows:
        if row["state"] == State.PARKED:
            log.error("outbox_entry_parked", relay=relay.name, message_id=str(row["id"]), reason=row["last_error"])
            continue
        try:
            entry = Entry(
                message_of(row),
                row["ready_at"],
                row["tries"],
                row["due_in_s"],
                row["first_attempt_at"],
                row["delivery"],
            )
        except UNREADABLE as error:
            await _park_unreadable(database, relay, row, error)
            continue
        claims.append(Claimed(entry, row["token"], row["refusals"], row["suspect"]))
    return len(rows), claims


async def record(
    database: Database, relay: Relay, claims: Sequence[Claimed], verdicts: Sequence[DeliveryDecision]
) -> set[UUID]:
    """Records the results of claimed entries. Returns the ids of those whose claim was still valid."""
    # All writers lock in this order, so that two batches with entries in common cannot deadlock.
    decided = sorted(zip(claims, verdicts, strict=True), key=lambda pair: pair[0].entry.message.id)
    moved = [
        (
            relay.name,
            claimed.entry.message.id,
            claimed.token,
            each.to,
            each.reason,
            each.delay_s,
            each.tries,
            each.refusals,
            each.suspect,
            each.name,
        )
        for claimed, each in decided
        if each.to is not None
    ]
    removed = [(relay.name, claimed.entry.message.id, claimed.token) for claimed, each in decided if each.to is None]
    rows = []
    for statement, entries in ((_MOVE, moved), (_REMOVE, removed)):
        if entries:
            rows += await database.engine.fetchmany(statement, entries)
    return {row["id"] for row in rows}


async def _relay(database: Database, relay: Relay, limit: int, *, suspects: bool) -> Progress:
    sent_at = time.monotonic()
    taken, claims = await claim(database, relay, limit, suspects=suspects)
    if not claims:
        return Progress(taken, is_full=taken == limit)
    if time.monotonic() > sent_at + relay.config.lease_s - relay.config.timeout_s:
        # The process was stopped or starved: another process may claim these entries before a delivery would end.
        late = Deferred("the lease was nearly over before the delivery began", 0.0)
        verdicts = [decide(relay.config, claimed, late) for claimed in claims]
    else:
        verdicts = await _deliver(relay, claims)
    recorded = await record(database, relay, claims, verdicts)
    for claimed, each in zip(claims, verdicts, strict=True):
        _record_outcome(relay, claimed, each, claimed.entry.message.id in recorded)
    put_off = sum(each.outcome == "not_now" for each in verdicts)
    return Progress(taken, put_off, taken == limit, any(each.suspect for each in verdicts))


async def _deliver(relay: Relay, claims: Sequence[Claimed]) -> list[DeliveryDecision]:
    config = relay.config
    try:
        async with asyncio.timeout(config.timeout_s):
            answers = await relay.deliver([claimed.entry for claimed in claims])
        if len(answers) != len(claims):
            raise ValueError(f"{len(answers)} answers to {len(claims)} entries")
        return [decide(config, *pair) for pair in zip(claims, answers, strict=True)]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if is_transient(error) or isinstance(error, (NotSent, Retry, Unknown)):
            log.warning("outbox_not_delivered", relay=relay.name, entries=len(claims), error=stored_reason(reason))
            return [decide(config, claimed, Deferred(reason)) for claimed in claims]
        log.error("outbox_delivery_failed", relay=relay.name, entries=len(claims), error=stored_reason(reason))
        if len(claims) > 1:
            return [decide_suspect(config, claimed, reason) for claimed in claims]
        return [decide(config, claims[0], Refusal(reason))]


async def _park_unreadable(database: Database, relay: Relay, row: Record, error: Exception) -> None:
    """Parks an unreadable entry, so that it does not block the others."""
    reason = stored_reason(f"this entry cannot be read: {error}")
    log.error("outbox_entry_parked", relay=relay.name, message_id=str(row["id"]), reason=reason)
    await database.engine.fetch(
        _MOVE, relay.name, row["id"], row["token"], State.PARKED, reason, 0.0, row["tries"], row["refusals"], True, None
    )


def _record_outcome(relay: Relay, claimed: Claimed, decided: DeliveryDecision, in_time: bool) -> None:
    OUTBOX_DELIVERIES.labels(relay.name, decided.outcome if in_time else "stale").inc()
    if decided.outcome == "parked" and in_time:
        log.error(
            "outbox_entry_parked", relay=relay.name, message_id=str(claimed.entry.message.id), reason=decided.reason
        )


_CLAIMED_COLUMNS: Final = f"""{MESSAGE_COLUMNS}, state, ready_at, tries, first_attempt_at, refusals, suspect, token,
    last_error, delivery, extract(epoch from ready_at - payonce.due_now())::float8 as due_in_s"""

_FORGOTTEN: Final = "coalesce(entry.first_tried_at <= payonce.due_now() - make_interval(secs => $5::float8), false)"

# Claims up to $3 entries of relay $1 for $4 seconds. Entries first tried more than $5 seconds ago are not repeated: the
# receiver may have accepted them and forgotten it by now. Here and below, rows are changed by an array of their ids: a
# join planned while the table was empty scans the whole relay for each of them.
_CLAIM: Final = f"""
    with due as (
        select id from payonce.outbox
        where relay = $1 and state = 'waiting' and suspect = $2 and try_at <= payonce.due_now()
          and not exists (select from payonce.relays where name = $1 and paused)
        order by try_at, id limit $3 for update skip locked
    ), claimed as (
        update payonce.outbox entry
        set state = case when {_FORGOTTEN} then 'parked' else 'leased' end, token = entry.token + 1,
            lease_until = case when not {_FORGOTTEN}
                then payonce.lease_now() + make_interval(secs => $4::float8) end,
            try_at = case when {_FORGOTTEN} then payonce.due_now() else entry.try_at end,
            first_tried_at = coalesce(entry.first_tried_at, payonce.due_now()),
            last_error = case when {_FORGOTTEN} then 'first tried at ' || entry.first_tried_at || ', too long ago to '
                || 'repeat: a receiver that took it may have forgotten; ask there, then redrive as new'
                || coalesce('. Before that: ' || entry.last_error, '') else entry.last_error end
        where entry.relay = $1 and entry.id = any(array(select id from due))
        returning entry.*
    )
    select {_CLAIMED_COLUMNS} from claimed"""

# The error of a run stays until the next run ends, since a new delivery does not resolve it. Errors of earlier
# deliveries are cleared. The token is the fence: an entry taken over meanwhile belongs to another relay. The condition
# is on lease_until rather than on the state: with the state the planner would use an index of all waiting entries and
# scan it for each entry.
_MOVE: Final = """
    update payonce.outbox entry
    set state = $4, lease_until = null, tries = $7,
        last_error = case when $4 = 'delivered' and entry.tries = 0 and entry.crashes = 0
            then entry.last_error else $5 end,
        refusals = $8, suspect = $9, crashes = 0, delivered_as = coalesce($10, entry.delivered_as),
        try_at = payonce.due_now() + make_interval(secs => $6::float8)
    where entry.relay = $1 and entry.id = $2 and entry.token = $3 and entry.lease_until is not null
    returning entry.id"""

_REMOVE: Final = """
    delete from payonce.outbox entry
    where entry.relay = $1 and entry.id = $2 and entry.token = $3 and entry.lease_until is not null
    returning entry.id"""

# Ordered by the intended index: without the order, a plan made on an empty table uses any index that begins with the
# relay.
_ODD: Final = """
    select
        (select true from payonce.outbox
         where relay = $1 and state = 'leased' and lease_until <= payonce.lease_now()
         order by lease_until limit 1) is not null as dead,
        (select true from payonce.outbox
         where relay = $1 and state = 'waiting' and suspect and try_at <= payonce.due_now()
         order by try_at limit 1) is not null as suspects"""

# The token grows, so that a late relay finds its claim stale. A crash beside others raises suspicion; a crash of an
# isolated delivery parks.
_REAP: Final = """
    with dead as (
        select id from payonce.outbox
        where relay = $1 and state = 'leased' and lease_until <= payonce.lease_now()
        order by lease_until limit $2 for update skip locked
    )
    update payonce.outbox entry
    set state = case when entry.suspect and entry.crashes >= $3 then 'parked' else 'waiting' end,
        token = entry.token + 1, crashes = entry.crashes + 1, lease_until = null, try_at = payonce.due_now(),
        suspect = entry.suspect or entry.crashes + 1 >= $3,
        last_error = 'the relay died or stopped while it delivered this: its lease ended'
            || case when entry.suspect then ', with nothing beside it' else '' end
    where entry.relay = $1 and entry.id = any(array(select id from dead))
    returning entry.id, entry.state, entry.crashes"""
