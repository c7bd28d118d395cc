"""Queries for people: lists of effects by state, and the details of one effect."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from payonce.engine.effects import store
from payonce.engine.effects.model import OPEN, EffectRecord, State
from payonce.engine.effects.review import Answer, Evidence, allowed_answers, evidence_of, question
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid

LISTED_MAX: Final = 500


@dataclass(frozen=True)
class ListedEffect:
    effect: EffectRecord
    amount: Amount | None
    vendor: str
    service: str | None
    tenant: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def age_s(self) -> float:
        return (self.effect.now - self.created_at).total_seconds()


@dataclass(frozen=True)
class EffectDetails:
    """One effect with its attempts and, if it is in review, the question and the safe answers."""

    listed: ListedEffect
    evidence: Sequence[Evidence]
    question: str | None
    allowed: frozenset[Answer]
    example_outcome: str | None
    """The outcome of another effect of its kind, as a pattern for the outcome that a person states."""
    queue: str | None
    """The queue of its message; None when the message is gone."""
    message_state: str | None


@dataclass(frozen=True)
class OpenCount:
    count: int
    amounts: Sequence[Amount]
    """One per asset."""
    oldest_s: float


async def effects(
    read: Reader | Tx,
    states: Sequence[State] = tuple(OPEN),
    *,
    vendor: str | None = None,
    asset: str | None = None,
    queue: str | None = None,
    limit: int = 100,
    after: UUID | None = None,
    newest_first: bool = False,
) -> list[ListedEffect]:
    """Oldest or newest first; `after` is the last id of the previous page. With `queue`: effects whose messages are
    there now."""
    behind, direction = ("<", "desc") if newest_first else (">", "asc")
    rows = await read.fetch(
        f"""
        select *, payonce.due_now() as now from payonce.effects
        where state = any($1) and ($2::text is null or vendor = $2) and ($3::text is null or asset = $3)
          and ($4::uuid is null or id {behind} $4)
          and ($6::text is null or exists (
              select from payonce.live_messages m where m.id = effects.message_id and m.queue = $6))
        order by id {direction} limit $5
        """,
        list(states),
        vendor,
        asset,
        after,
        min(limit, LISTED_MAX),
        queue,
    )
    return [_as_listed(row) for row in rows]


async def open_counts(read: Reader | Tx) -> dict[State, OpenCount]:
    """By open state: the number of effects, their amounts, and the age of the oldest."""
    rows = await read.fetch(
        """
        select state, asset, exponent, count(*) as count, sum(amount_minor) as minor,
            greatest(0, extract(epoch from payonce.due_now() - min(created_at)))::float8 as oldest_s
        from payonce.effects where state in ('intended', 'unknown', 'review')
        group by state, asset, exponent order by asset, exponent
        """
    )
    found = {}
    for state in OPEN:
        mine = [row for row in rows if row["state"] == state]
        amounts = [Amount(int(row["minor"]), Asset(row["asset"], row["exponent"])) for row in mine if row["asset"]]
        oldest_s = max((row["oldest_s"] for row in mine), default=0.0)
        found[state] = OpenCount(sum(row["count"] for row in mine), amounts, oldest_s)
    return found


async def effect_details(read: Reader | Tx, effect_id: UUID) -> EffectDetails:
    row = await read.fetchrow("select *, payonce.due_now() as now from payonce.effects where id = $1", effect_id)
    if row is None:
        raise Invalid(f"there is no effect {effect_id}; see: payonce effects list")
    listed = _as_listed(row)
    effect = listed.effect
    in_review = effect.state is State.REVIEW
    lines = await evidence_of(read, [effect_id])
    message = await read.fetchrow(
        "select queue, state from payonce.live_messages where id = $1 limit 1", effect.message_id
    )
    return EffectDetails(
        listed,
        lines.get(effect_id, ()),
        question(effect) if in_review else None,
        allowed_answers(effect) if in_review else frozenset(),
        await _example(read, listed) if in_review else None,
        None if message is None else message["queue"],
        None if message is None else message["state"],
    )


async def _example(read: Reader | Tx, listed: ListedEffect) -> str | None:
    found: str | None = await read.fetchval(
        """
        select outcome from payonce.effects where vendor = $1 and kind = $2 and state = 'performed'
        order by created_at desc limit 1
        """,
        listed.vendor,
        listed.effect.kind,
    )
    return found


def _as_listed(row: Any) -> ListedEffect:
    amount = None
    if row["amount_minor"] is not None:
        amount = Amount(int(row["amount_minor"]), Asset(row["asset"], row["exponent"]))
    return ListedEffect(
        store.as_stored(row), amount, row["vendor"], row["service"], row["tenant"], row["created_at"], row["updated_at"]
    )
