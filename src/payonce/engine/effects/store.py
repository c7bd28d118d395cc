"""Effects on record: beginning attempts and recording their results."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import asyncpg

from payonce.engine.database.connections import Connection, is_transient
from payonce.engine.effects import writes
from payonce.engine.effects.declaration import Effect, Findable, Keyed, Safety
from payonce.engine.effects.model import (
    OPEN,
    TRANSITIONS,
    UNDONE,
    Cause,
    EffectRecord,
    Event,
    Result,
    State,
    state_after,
    stored_reference,
)
from payonce.engine.effects.wakeup import wake_message
from payonce.engine.messages.model import Claim, clean_text
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.money import Amount
from payonce.kit.outcomes import Retry
from payonce.kit.redact import redact

_ENDS_A_TRY: Final = frozenset({Event.PERFORMED, Event.REFUSED, Event.NOT_SENT, Event.UNKNOWN})


async def generations(read: Reader | Tx, kind: str, key: str) -> list[EffectRecord]:
    """The newest generation under a key, after the earlier ones that happened, or may have happened, after all."""
    rows = await read.fetch(
        """
        select *, payonce.due_now() as now from payonce.effects
        where kind = $1 and key = $2
          and (state not in ('refused', 'abandoned') and safety <> 'harmless'
               or generation = (select max(generation) from payonce.effects where kind = $1 and key = $2))
        order by generation
        """,
        kind,
        key,
    )
    return [as_stored(row) for row in rows]


async def check_earlier(connection: Connection, kind: str, key: str, below: int) -> None:
    """Raises Retry unless every earlier generation ended without happening. Locks them until the commit: whatever
    reopens one later comes after the send was recorded."""
    if below == 1:
        return
    rows = await connection.fetch(
        """
        select generation, state from payonce.effects
        where kind = $1 and key = $2 and generation < $3 and safety <> 'harmless' order by generation for update
        """,
        kind,
        key,
        below,
    )
    for row in rows:
        if State(row["state"]) not in UNDONE:
            raise Retry(f"{kind} {key}:{row['generation']} is {row['state']}; no later generation is sent")


async def take_intent(connection: Connection, kind: str, key: str) -> bool:
    """Whether the handler's intent is still to run under this key. The caller runs it in this transaction."""
    taken = await connection.fetch(
        """
        update payonce.effects set intent_due = false, revision = revision + 1, updated_at = payonce.due_now()
        where kind = $1 and key = $2 and intent_due returning id
        """,
        kind,
        key,
    )
    return bool(taken)


async def insert(
    connection: Connection,
    claim: Claim,
    effect: Effect[Any, Any],
    *,
    key: str,
    generation: int,
    request: str,
    identity: str,
    scope: str | None,
    amount: Amount | None,
    service: str,
) -> EffectRecord | None:
    """A new effect with its first attempt. None when another run was faster; raises Retry while its scope is taken."""
    safety = effect.safety
    new = writes.NewEffect(
        new_id(),
        effect.kind,
        key,
        generation,
        effect.version,
        type(safety).__name__.lower(),
        scope,
        request,
        claim.message.id,
        claim.message.trace,
        effect.timeout_s,
        safety.valid_for_s if isinstance(safety, Keyed) else None,
        service,
        claim.message.lane,
        None if amount is None else amount.asset.code,
        None if amount is None else amount.asset.exponent,
        None if amount is None else amount.minor,
        safety.horizon_s if isinstance(safety, Findable) else None,
        claim.token,
        identity,
    )
    try:
        row = await writes.insert(connection, new)
    except asyncpg.UniqueViolationError as error:
        raise Retry(f"another effect of {scope} is open") from error
    if row is None and scope is not None:
        await _check_scope(connection, scope)
    return None if row is None else as_stored(row)


async def begin_again(
    connection: Connection, claim: Claim, stored: EffectRecord, to: State, safety: Safety, timeout_s: float
) -> EffectRecord | None:
    """One more attempt with the stored request. None when the effect has changed since it was read."""
    row = await connection.fetchrow(
        """
        update payonce.effects
        set state = $3, attempt = attempt + 1, revision = revision + 1, message_id = $4, reason = null,
            ruled_out = false, horizon_s = $7,
            first_attempt_at = case when $3 = 'intended' then payonce.due_now() else first_attempt_at end,
            key_valid_until = case when $3 = 'intended'
                then payonce.due_now() + make_interval(secs => $6::float8) else key_valid_until end,
            sent_until = payonce.due_now() + make_interval(secs => $5::float8),
            busy_until = payonce.due_now() + make_interval(secs => $5::float8), updated_at = payonce.due_now()
        where id = $1 and revision = $2
        returning *, payonce.due_now() as now
        """,
        stored.id,
        stored.revision,
        checked_transition(stored.state, to),
        claim.message.id,
        timeout_s,
        safety.valid_for_s if isinstance(safety, Keyed) else None,
        safety.horizon_s if isinstance(safety, Findable) else None,
    )
    if row is None:
        return None
    await append(connection, stored.id, row["attempt"], Result(Event.STARTED), claim)
    return as_stored(row)


async def hold_for_fencing(connection: Connection, stored: EffectRecord, timeout_s: float) -> EffectRecord | None:
    """Keeps other runs away while the vendor is fenced."""
    row = await connection.fetchrow(
        """
        update payonce.effects
        set revision = revision + 1, busy_until = payonce.due_now() + make_interval(secs => $3::float8),
            updated_at = payonce.due_now()
        where id = $1 and revision = $2 and state in ('intended', 'unknown')
        returning *, payonce.due_now() as now
        """,
        stored.id,
        stored.revision,
        timeout_s,
    )
    return None if row is None else as_stored(row)


async def move(
    connection: Connection,
    stored: EffectRecord,
    to: State,
    result: Result,
    *,
    claim: Claim | None = None,
    reason: str | None = None,
    cause: Cause | None = None,
    ruled_out: bool = False,
    burnt: bool = False,
) -> bool:
    """Changes the state and records the reason as an attempt, unless the effect has changed since it was read.

    What a person ruled out holds until the next move or send; a burnt reference stays burnt.
    """
    result = replace(result, vendor_ref=stored_reference(result.vendor_ref))
    moved = await connection.fetchval(
        """
        update payonce.effects
        set state = $3, revision = revision + 1, reason = $4, review_cause = $5,
            outcome = coalesce($6::text::json, outcome), vendor_ref = coalesce($7, vendor_ref), busy_until = null,
            ruled_out = $8, burnt = burnt or $9, updated_at = payonce.due_now()
        where id = $1 and revision = $2
        returning true
        """,
        stored.id,
        stored.revision,
        checked_transition(stored.state, to),
        reason,
        cause,
        result.outcome,
        result.vendor_ref,
        ruled_out,
        burnt,
    )
    if moved is None:
        return False
    await append(connection, stored.id, stored.attempt, result, claim)
    return True


class ForgottenError(Retry):
    """The effect is no longer on record: the server on which its intent was committed was replaced by one that never
    had it."""


async def record(
    connection: Connection, effect_id: UUID, attempt: int, result: Result, claim: Claim | None = None
) -> EffectRecord:
    """Records the result of an attempt, whichever run has the effect by now. Never fenced: a late answer is a fact too.
    Raises ForgottenError when the effect is gone."""
    found = await connection.fetchrow(
        "select *, payonce.due_now() as now from payonce.effects where id = $1 for update", effect_id
    )
    if found is None:
        raise ForgottenError(f"effect {effect_id} is no longer on record after a failover that lost commits")
    stored = as_stored(found)
    if result.event is Event.PERFORMED and await _is_known(connection, effect_id, attempt, claim):
        # Only the answer of `record_performed` was lost, not its write.
        return stored
    result = replace(result, vendor_ref=stored_reference(result.vendor_ref))
    try:
        async with connection.transaction():
            await append(connection, effect_id, attempt, result, claim)
            row = await _apply(connection, stored, attempt, state_after(stored, attempt, result), result)
    except asyncpg.UniqueViolationError:
        # The vendor's reference belongs to another effect as well: one of the two is wrong, and both are kept.
        await append(connection, effect_id, attempt, result, claim)
        row = await _apply(connection, stored, attempt, State.REVIEW, Result(result.event), Cause.SAME_REFERENCE)
    except asyncpg.PostgresError as error:
        if is_transient(error):
            raise
        row = await _record_without_document(connection, stored, attempt, result, error, claim)
    after = as_stored(row)
    if stored.state is State.REVIEW and after.state is not State.REVIEW:
        await wake_message(connection, after.message_id)
    return after


async def _is_known(connection: Connection, effect_id: UUID, attempt: int, claim: Claim | None) -> bool:
    """Whether this run has already recorded that this attempt was performed."""
    known: bool = claim is not None and await connection.fetchval(
        """
        select exists (select from payonce.effect_attempts
            where effect_id = $1 and attempt = $2 and event = 'performed' and message_id = $3 and token = $4)
        """,
        effect_id,
        attempt,
        claim.message.id,
        claim.token,
    )
    return known


async def record_performed(
    pool: asyncpg.Pool, effect_id: UUID, attempt: int, result: Result, claim: Claim | None = None
) -> EffectRecord | None:
    """The usual result in one statement: the newest attempt was performed. None in any other case, or when the vendor's
    answer cannot be stored: `record` has to look."""
    if result.event is not Event.PERFORMED:
        return None
    performed = writes.PerformedAttempt(
        effect_id,
        attempt,
        result.outcome,
        stored_reference(result.vendor_ref),
        redacted(result.detail),
        None if claim is None else claim.message.id,
        None if claim is None else claim.token,
    )
    try:
        async with pool.acquire() as connection:
            row = await writes.record_performed(connection, performed)
    except asyncpg.PostgresError as error:
        if is_transient(error):
            raise
        return None
    return None if row is None else as_stored(row)


async def _record_without_document(
    connection: Connection, stored: EffectRecord, attempt: int, result: Result, error: Exception, claim: Claim | None
) -> Any:
    """Records that it happened even if the vendor's answer cannot be stored; a person is then asked for the outcome."""
    detail = f"the vendor's answer could not be stored: {type(error).__name__}: {error}"
    bare = Result(result.event, detail if result.detail is None else f"{result.detail}; {detail}")
    await append(connection, stored.id, attempt, bare, claim)
    to = state_after(stored, attempt, bare)
    if to is State.PERFORMED and stored.state is not State.PERFORMED:
        return await _apply(connection, stored, attempt, State.REVIEW, bare, Cause.OUTCOME_NOT_KEPT)
    return await _apply(connection, stored, attempt, to, bare)


async def _apply(
    connection: Connection, stored: EffectRecord, attempt: int, to: State, result: Result, cause: Cause | None = None
) -> Any:
    ends_the_try = attempt == stored.attempt and result.event in _ENDS_A_TRY
    unsent = ends_the_try and result.event is Event.NOT_SENT and stored.state is State.INTENDED
    newly_performed = to is State.PERFORMED and stored.state is not State.PERFORMED
    if to is State.REVIEW and stored.state is not State.REVIEW:
        cause = cause or Cause.CONTRADICTION
    return await connection.fetchrow(
        """
        update payonce.effects
        set state = $2, revision = revision + 1, updated_at = payonce.due_now(),
            outcome = case when $3 then $4::text::json else outcome end,
            vendor_ref = case when $3 then coalesce($5, vendor_ref) else vendor_ref end,
            reason = coalesce($6, reason),
            review_cause = case when $2 = 'review' then coalesce($7, review_cause) end,
            busy_until = case when $8 then null else busy_until end,
            sent_until = case when $9 then null else sent_until end,
            -- It was ruled out without knowledge of this attempt.
            ruled_out = ruled_out and not $10
        where id = $1
        returning *, payonce.due_now() as now
        """,
        stored.id,
        checked_transition(stored.state, to),
        newly_performed,
        result.outcome,
        result.vendor_ref,
        redacted(result.detail) if to in (State.REFUSED, State.UNKNOWN) else None,
        cause,
        ends_the_try or to not in OPEN,
        unsent,
        result.event is Event.UNKNOWN,
    )


async def append(
    connection: Connection, effect_id: UUID, attempt: int, result: Result, claim: Claim | None = None
) -> None:
    await connection.execute(
        """
        insert into payonce.effect_attempts (effect_id, attempt, event, detail, outcome, vendor_ref, message_id, token)
        values ($1, $2, $3, $4, $5::text::json, $6, $7, $8)
        """,
        effect_id,
        attempt,
        result.event,
        redacted(result.detail),
        result.outcome,
        result.vendor_ref,
        None if claim is None else claim.message.id,
        None if claim is None else claim.token,
    )


def did_not_counts(stored: EffectRecord, horizon_s: float) -> float:
    """Seconds until the vendor's silence proves anything; 0 or less when it does."""
    if stored.sent_until is None:
        return 0.0
    return (stored.sent_until + timedelta(seconds=horizon_s) - stored.now).total_seconds()


def checked_transition(before: State, after: State) -> State:
    if after is not before and after not in TRANSITIONS[before]:
        raise AssertionError(f"an effect does not go from {before} to {after}")
    return after


def redacted(text: str | None) -> str | None:
    return None if text is None else clean_text(redact(text))


def as_stored(row: Any) -> EffectRecord:
    fields = {name: row[name] for name in EffectRecord.__struct_fields__}
    fields["state"] = State(fields["state"])
    fields["review_cause"] = None if fields["review_cause"] is None else Cause(fields["review_cause"])
    return EffectRecord(**fields)


async def _check_scope(connection: Connection, scope: str) -> None:
    taken = await connection.fetchrow(
        """
        select kind, key, generation, state from payonce.effects
        where scope = $1 and state in ('intended', 'unknown', 'review') limit 1
        """,
        scope,
    )
    if taken is not None:
        raise Retry(f"{taken['kind']} {taken['key']}:{taken['generation']} of {scope} is open ({taken['state']})")
