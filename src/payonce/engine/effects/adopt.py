"""Records what a vendor's statement shows about effects, both known and forgotten ones."""

from datetime import datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.database.connections import Connection
from payonce.engine.effects import store
from payonce.engine.effects.model import OPEN, Cause, EffectRecord, Event, Result, State, state_after
from payonce.engine.effects.wakeup import wake_message
from payonce.kit.ids import new_id
from payonce.kit.money import Amount

ON_STATEMENT: Final = "on the vendor's statement"


async def adopt(
    connection: Connection,
    *,
    kind: str,
    key: str,
    generation: int,
    amount: Amount,
    at: datetime,
    vendor_ref: str,
    outcome: str | None,
    run_id: UUID,
) -> EffectRecord | None:
    """Records an effect that happened and is not on record. A handler that needs it later gets the outcome from here
    instead of sending. Without an outcome, a person is asked for it first. None when another transaction recorded it
    first.

    The request is not known, so the effect counts as blind and is never sent again. Its intent was lost with it, unless
    an earlier generation is on record whose intent has run.
    """
    state, cause = (State.PERFORMED, None) if outcome is not None else (State.REVIEW, Cause.ON_STATEMENT)
    row = await connection.fetchrow(
        """
        insert into payonce.effects (
            id, kind, key, generation, version, safety, state, request, outcome, vendor_ref, review_cause,
            first_attempt_at, sent_until, message_id, trace_id, created_at, asset, exponent, amount_minor,
            intent_due)
        values ($1, $2, $3, $4, 1, 'blind', $5, 'null', $6::text::json, $7, $8, $9, $9, $10, $11, $9,
            $12, $13, $14,
            coalesce((select e.intent_due from payonce.effects e
                where e.kind = $2 and e.key = $3 and e.generation < $4 order by e.generation desc limit 1), true))
        on conflict do nothing
        returning *, payonce.due_now() as now
        """,
        new_id(),
        kind,
        key,
        generation,
        state,
        outcome,
        vendor_ref,
        cause,
        at,
        run_id,
        str(run_id),
        amount.asset.code,
        amount.asset.exponent,
        abs(amount.minor),
    )
    if row is None:
        return None
    adopted = store.as_stored(row)
    for result in (
        Result(Event.STARTED, "by a run that this database has lost"),
        Result(Event.FOUND, ON_STATEMENT, outcome, vendor_ref),
    ):
        await store.append(connection, adopted.id, adopted.attempt, result)
    await _abandon_earlier(connection, adopted)
    return adopted


async def find_on_statement(
    connection: Connection, stored: EffectRecord, vendor_ref: str, outcome: str | None, *, news: bool
) -> EffectRecord:
    """Records that the vendor shows the effect, if that adds anything; `news` marks a line not seen before."""
    known_outcome = outcome if outcome is not None else stored.outcome
    if known_outcome is None and stored.state in (State.INTENDED, State.UNKNOWN):
        result = Result(Event.FOUND, f"{ON_STATEMENT}, which does not contain the outcome")
        await store.move(connection, stored, State.REVIEW, result, cause=Cause.ON_STATEMENT)
        return await _again(connection, stored.id)
    if known_outcome is None:
        return await contradict(connection, stored, ON_STATEMENT, Cause.CONTRADICTION) if news else stored
    result = Result(Event.FOUND, ON_STATEMENT, known_outcome, vendor_ref)
    if not news and state_after(stored, stored.attempt, result) is stored.state:
        return stored
    return await store.record(connection, stored.id, stored.attempt, result)


async def contradict(connection: Connection, stored: EffectRecord, why: str, cause: Cause) -> EffectRecord:
    """Opens a review because the statement does not agree with the effect."""
    if stored.state in (State.PERFORMED, State.REFUSED, State.ABANDONED):
        event = Event.DID_NOT if cause is Cause.NOT_ON_STATEMENT else Event.FOUND
        await store.move(connection, stored, State.REVIEW, Result(event, why), cause=cause)
        return await _again(connection, stored.id)
    return stored


async def _abandon_earlier(connection: Connection, adopted: EffectRecord) -> None:
    """A generation begins only after the one before it has ended, so only the record of that end was lost."""
    rows = await connection.fetch(
        """
        select *, payonce.due_now() as now from payonce.effects
        where kind = $1 and key = $2 and generation < $3 for update
        """,
        adopted.kind,
        adopted.key,
        adopted.generation,
    )
    reason = f"generation {adopted.generation} is {ON_STATEMENT}"
    for stored in map(store.as_stored, rows):
        if stored.state in OPEN:
            await store.move(connection, stored, State.ABANDONED, Result(Event.ABANDONED, reason), reason=reason)
            if stored.state is State.REVIEW:
                await wake_message(connection, stored.message_id)


async def _again(connection: Connection, effect_id: UUID) -> EffectRecord:
    row: Any = await connection.fetchrow(
        "select *, payonce.due_now() as now from payonce.effects where id = $1", effect_id
    )
    return store.as_stored(row)
