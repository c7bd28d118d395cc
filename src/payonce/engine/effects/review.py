"""Reviews: effects whose outcome could not be found out, the question to a person, and the safe answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec

from payonce.engine.effects import store
from payonce.engine.effects.declaration import Effect, encode, encode_stated
from payonce.engine.effects.model import Cause, EffectRecord, Event, Result, State
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid, Stale
from payonce.kit.redact import redact

REVIEWS_MAX: Final = 500
EVIDENCE_MAX: Final = 50
"""Attempts shown per effect, the newest ones."""


class Answer(StrEnum):
    HAPPENED = "happened"
    """It happened, with this outcome."""
    DID_NOT = "did_not"
    """It did not happen and no longer can. It is not sent again in this generation."""
    SEND_AGAIN = "send_again"
    """It did not happen, or the vendor accepts it only once: send the stored request again. A vendor that can be
    queried is asked once more and, if there is a fence, fenced."""
    LOOK_AGAIN = "look_again"
    """Ask the vendor once more."""


@dataclass(frozen=True)
class Evidence:
    attempt: int
    event: Event
    detail: str | None
    outcome: str | None
    vendor_ref: str | None
    message_id: UUID | None
    at: datetime


@dataclass(frozen=True)
class Review:
    effect: EffectRecord
    question: str
    evidence: Sequence[Evidence]
    allowed: frozenset[Answer]


@dataclass(frozen=True)
class AnsweredReview:
    """The effect's new state and the message that waits for the answer; a parked message is to be redriven."""

    effect_id: UUID
    state: State
    message_id: UUID


async def reviews(read: Reader | Tx, limit: int = 100, after: UUID | None = None) -> list[Review]:
    """Effects in review, oldest first; `after` is the last id of the previous page."""
    rows = await read.fetch(
        """
        select *, payonce.due_now() as now from payonce.effects
        where state = 'review' and ($1::uuid is null or id > $1) order by id limit $2
        """,
        after,
        min(limit, REVIEWS_MAX),
    )
    found = [store.as_stored(row) for row in rows]
    evidence = await evidence_of(read, [stored.id for stored in found])
    return [Review(each, question(each), evidence.get(each.id, ()), allowed_answers(each)) for each in found]


async def answer_review(
    tx: Tx,
    effect_id: UUID,
    answer: Answer,
    by: str,
    note: str,
    *,
    revision: int,
    outcome: object = None,
    vendor_ref: str | None = None,
    effect: type[Effect[Any, Any]] | None = None,
) -> AnsweredReview:
    """Records a person's answer to the effect as shown at `revision`; raises Stale when it has changed since.

    HAPPENED requires the outcome for the handler. It is checked against the type that `effect` declares, or that this
    process knows for the kind: an outcome that the handler cannot read would block its message for good.
    """
    row = await tx.fetchrow(
        "select *, payonce.due_now() as now from payonce.effects where id = $1 for update", effect_id
    )
    if row is None:
        raise Invalid(f"there is no effect {effect_id}")
    stored = store.as_stored(row)
    if stored.state is not State.REVIEW or stored.revision != revision:
        raise Stale(f"{stored.label} is {stored.state} and has changed since it was shown; look again")
    if answer not in allowed_answers(stored):
        allowed = ", ".join(sorted(allowed_answers(stored)))
        raise Invalid(f"{answer} is not a safe answer for {stored.label}; possible: {allowed}")
    document = None
    if answer is Answer.HAPPENED:
        if outcome is None:
            raise Invalid(f"{stored.label} happened with which outcome? Its handler needs it")
        what = f"the outcome of {stored.label}"
        if effect is None:
            document = encode_stated(outcome, stored.kind, what)
        else:
            document = encode(outcome, effect.outcome_type, what)
    remark = f"{answer} by {by}: {note}"
    to = _state_after_answer(stored, answer)
    reason = redact(remark) if to is State.ABANDONED else None
    ruled_out = answer is Answer.SEND_AGAIN and stored.safety == "findable"
    result = Result(Event.ANSWERED, remark, document, vendor_ref)
    try:
        async with tx.connection.transaction():
            await store.move(tx.connection, stored, to, result, reason=reason, ruled_out=ruled_out)
    except asyncpg.UniqueViolationError as error:
        raise Invalid(
            f"another effect has that vendor reference, or another effect of {stored.scope} is open"
        ) from error
    return AnsweredReview(effect_id, to, stored.message_id)


def parsed_outcome(text: str, what: str) -> Any:
    """A person's JSON. Raises Invalid if the handler would not get it unchanged."""
    exact, decoded = loads_exact(text), msgspec.json.decode(text)
    if loads_exact(msgspec.json.encode(decoded)) != exact:
        raise Invalid(f"{what} contains a number with more digits than JSON keeps; write it as text, in quotes")
    return decoded


async def give_up_effects(tx: Tx, message_id: UUID, why: str) -> list[EffectRecord]:
    """Opens a review for every intended or unknown effect of a message that is given up; returns them."""
    rows = await tx.fetch(
        """
        select *, payonce.due_now() as now from payonce.effects
        where message_id = $1 and state in ('intended', 'unknown') order by id for update
        """,
        message_id,
    )
    given_up = [store.as_stored(row) for row in rows]
    for stored in given_up:
        await store.move(
            tx.connection,
            stored,
            State.REVIEW,
            Result(Event.GAVE_UP, why),
            reason=store.redacted(why),
            cause=Cause.GAVE_UP,
        )
    return given_up


async def next_generation(tx: Tx, kind: str, key: str, after: int) -> int:
    """Allows the key to be used once more after a definite refusal or a recorded abandonment of generation `after`.

    Repeating the call has no further effect. The next effect() under the key prepares and performs the new generation.
    If an earlier one turns out to have happened by then, effect() runs the intent and returns that outcome instead.
    """
    state = await tx.fetchval(
        "select state from payonce.effects where kind = $1 and key = $2 and generation = $3 for update",
        kind,
        key,
        after,
    )
    if state not in (State.REFUSED, State.ABANDONED):
        raise Invalid(
            f"{kind} {key}:{after} is {state or 'unknown here'}; a next generation needs a refusal or an abandonment"
        )
    await tx.execute(
        """
        update payonce.effects
        set superseded = true, intent_due = true, revision = revision + 1, updated_at = payonce.due_now()
        where kind = $1 and key = $2 and generation = $3 and not superseded
        """,
        kind,
        key,
        after,
    )
    return after + 1


def question(stored: EffectRecord) -> str:
    """The question to be decided, in words."""
    match stored.review_cause:
        case Cause.CONTRADICTION:
            why = "two answers of the vendor contradict each other"
        case Cause.SAME_REFERENCE:
            why = "the vendor gave it the reference of another effect of ours"
        case Cause.KEY_EXPIRED:
            why = "the vendor no longer knows our key and does not show it"
        case Cause.NO_FENCE:
            why = "the vendor does not show it, but an earlier send may still arrive late"
        case Cause.ON_STATEMENT:
            why = "the vendor's statement shows it, but not the outcome that the handler needs"
        case Cause.NOT_ON_STATEMENT:
            why = "it was performed, but the vendor's statement does not show it"
        case Cause.OUTCOME_NOT_KEPT:
            why = "it happened, but the store refused the vendor's answer, which the handler needs"
        case Cause.GAVE_UP:
            why = f"its message was given up: {stored.reason or 'no reason given'}"
        case _:
            why = "the vendor can neither be queried nor called twice"
    return f"Did {stored.kind} for {stored.key} (generation {stored.generation}) happen? Open because {why}."


def allowed_answers(stored: EffectRecord) -> frozenset[Answer]:
    """Only answers that cannot move money twice, whatever the truth is."""
    allowed = {Answer.HAPPENED, Answer.DID_NOT}
    if stored.review_cause in (Cause.ON_STATEMENT, Cause.OUTCOME_NOT_KEPT):
        return frozenset({Answer.HAPPENED})
    if stored.review_cause in (Cause.CONTRADICTION, Cause.SAME_REFERENCE, Cause.NOT_ON_STATEMENT):
        return frozenset(allowed)
    if stored.safety in ("keyed", "findable"):
        allowed.add(Answer.LOOK_AGAIN)
    key_lives = stored.key_valid_until is not None and stored.now < stored.key_valid_until
    silence_counts = stored.safety == "findable" and store.did_not_counts(stored, stored.horizon_s or 0.0) <= 0
    if stored.safety in ("rebroadcast", "harmless") or stored.sent_until is None or key_lives or silence_counts:
        allowed.add(Answer.SEND_AGAIN)
    return frozenset(allowed)


def _state_after_answer(stored: EffectRecord, answer: Answer) -> State:
    match answer:
        case Answer.HAPPENED:
            return State.PERFORMED
        case Answer.DID_NOT:
            return State.ABANDONED
        case Answer.LOOK_AGAIN:
            return State.UNKNOWN
        case Answer.SEND_AGAIN:
            # What may have been sent is treated as doubtful: queried, fenced, or replayed.
            return State.INTENDED if stored.sent_until is None else State.UNKNOWN


async def evidence_of(read: Reader | Tx, effect_ids: Sequence[UUID]) -> dict[UUID, list[Evidence]]:
    rows = await read.fetch(
        """
        select line.* from unnest($1::uuid[]) as asked (id) cross join lateral (
            select * from payonce.effect_attempts where effect_id = asked.id order by id desc limit $2
        ) line order by line.effect_id, line.id
        """,
        list(effect_ids),
        EVIDENCE_MAX,
    )
    found: dict[UUID, list[Evidence]] = {}
    for row in rows:
        line = Evidence(
            row["attempt"],
            Event(row["event"]),
            row["detail"],
            row["outcome"],
            row["vendor_ref"],
            row["message_id"],
            row["created_at"],
        )
        found.setdefault(row["effect_id"], []).append(line)
    return found
