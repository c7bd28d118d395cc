"""Effects over HTTP: calls to vendors, their outcomes, and answers to effects in review."""

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from payonce.app.logging import without_secrets
from payonce.engine.controls import Executed, ReviewAnswer, submit
from payonce.engine.effects.model import OPEN, Event, State
from payonce.engine.effects.queries import ListedEffect, effect_details, effects
from payonce.engine.effects.review import Answer
from payonce.engine.messages.transaction import Reader, Tx
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContextDep
from payonce.http.kit.idempotency import Once, moves_money
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.scopes import EFFECTS_ANSWER, EFFECTS_READ
from payonce.http.kit.values import PAGE_DEFAULT, Document, Limit, Money, Name, Note, RequestBody
from payonce.kit.money import loads_exact

READ: Final = responses(400, 401, 403, 422, 429, 503)
READ_ONE: Final = responses(400, 401, 403, 404, 422, 429, 503)
ANSWER: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)

Viewer = Annotated[Caller, require(EFFECTS_READ)]


class EffectSummary(BaseModel):
    id: UUID
    kind: str
    key: str
    generation: int
    state: State
    safety: str
    revision: int = Field(description="Required by POST …/answer, so that the answer applies to the state you saw.")
    attempt: int
    scope: str | None
    vendor: str
    vendor_ref: str | None
    review_cause: str | None
    reason: str | None
    amount: Money | None
    service: str | None
    tenant: str | None
    message_id: UUID
    trace_id: str | None
    age_s: float
    created_at: datetime
    updated_at: datetime


class EffectPage(BaseModel):
    effects: list[EffectSummary]
    next_after: UUID | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class EffectAttempt(BaseModel):
    at: datetime
    attempt: int
    event: Event
    detail: str | None
    outcome: Document
    vendor_ref: str | None


class EffectTimeline(EffectSummary):
    request: Document
    outcome: Document
    tries: list[EffectAttempt]
    question: str | None = Field(description="What has to be decided; null if nothing has.")
    answers: list[Answer] = Field(description="The answers that are safe in this state.")
    example_outcome: Document
    queue: str | None
    message_state: str | None


class EffectAnswer(RequestBody):
    answer: Answer
    revision: int = Field(ge=0, le=2**31 - 1, description="The revision that GET returned.")
    note: Note = Field(description="How you know; stored with the effect.")
    outcome: Annotated[Any, Field(description="With `happened`: the vendor's response.")] = None
    vendor_ref: Name | None = Field(None, description="With `happened`: the vendor's reference.")


class Answered(BaseModel):
    """Executed, or, above the asset's threshold, waiting until a second person grants `approval`."""

    effect: UUID
    done: bool
    state: State | None = None
    redriven: bool | None = None
    approval: int | None = None
    expires_at: datetime | None = None


def effect_routes() -> APIRouter:
    routes = APIRouter(prefix="/v1/effects", tags=["effects"])

    @routes.get("", summary="List effects, oldest first; by default those that are open", responses=READ)
    async def list_effects(
        context: AppContextDep,
        caller: Viewer,
        state: Annotated[list[State] | None, Query(max_length=len(State))] = None,
        vendor: Name | None = None,
        asset: Name | None = None,
        queue: Annotated[Name | None, Query(description="Only effects whose messages are in this queue now.")] = None,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[UUID | None, Query(description="The last effect id of the previous page.")] = None,
    ) -> EffectPage:
        states = tuple(state or OPEN)
        found = await effects(context.read, states, vendor=vendor, asset=asset, queue=queue, limit=limit, after=after)
        following = found[-1].effect.id if len(found) == limit else None
        return EffectPage(effects=[EffectSummary(**_summary_fields(each)) for each in found], next_after=following)

    @routes.get(
        "/{effect_id}",
        summary="Show an effect with its request, attempts, question and safe answers",
        responses=READ_ONE,
    )
    async def show_effect(effect_id: Annotated[UUID, Path()], context: AppContextDep, caller: Viewer) -> EffectTimeline:
        await _check_exists(context.read, effect_id)
        found = await effect_details(context.read, effect_id)
        effect = found.listed.effect
        tries = [
            EffectAttempt(
                at=line.at,
                attempt=line.attempt,
                event=line.event,
                detail=without_secrets(line.detail),
                outcome=_document(line.outcome),
                vendor_ref=line.vendor_ref,
            )
            for line in found.evidence
        ]
        return EffectTimeline(
            **_summary_fields(found.listed),
            request=_document(effect.request),
            outcome=_document(effect.outcome),
            tries=tries,
            question=found.question,
            answers=sorted(found.allowed),
            example_outcome=_document(found.example_outcome),
            queue=found.queue,
            message_state=found.message_state,
        )

    @routes.post("/{effect_id}/answer", summary="Answer an effect in review", response_model=Answered, responses=ANSWER)
    async def answer_effect(
        effect_id: Annotated[UUID, Path()],
        body: EffectAnswer,
        context: AppContextDep,
        once: Annotated[Once, moves_money(EFFECTS_ANSWER)],
    ) -> Response:
        async def act(tx: Tx) -> Answered:
            await _check_exists(tx, effect_id)
            given = ReviewAnswer(effect_id, body.revision, body.answer, body.note, body.outcome, body.vendor_ref)
            end = await submit(tx, context.actions["answer review"], given, once.caller.holder, body.note)
            if isinstance(end, Executed):
                return Answered(effect=effect_id, done=True, state=end.result["state"], redriven=end.result["redriven"])
            return Answered(effect=effect_id, done=False, approval=end.id, expires_at=end.expires_at)

        return await once.answer(act)

    return routes


async def _check_exists(read: Reader | Tx, effect_id: UUID) -> None:
    if not await read.fetchval("select exists (select from payonce.effects where id = $1)", effect_id):
        raise not_found(f"effect {effect_id}")


def _summary_fields(listed: ListedEffect) -> dict[str, Any]:
    effect = listed.effect
    same = (
        "id",
        "kind",
        "key",
        "generation",
        "state",
        "safety",
        "revision",
        "attempt",
        "scope",
        "vendor_ref",
        "review_cause",
        "message_id",
        "trace_id",
    )
    return {
        **{name: getattr(effect, name) for name in same},
        "reason": without_secrets(effect.reason),
        "amount": None if listed.amount is None else Money.of(listed.amount),
        "vendor": listed.vendor,
        "service": listed.service,
        "tenant": listed.tenant,
        "age_s": listed.age_s,
        "created_at": listed.created_at,
        "updated_at": listed.updated_at,
    }


def _document(text: str | None) -> Any:
    return None if text is None else without_secrets(loads_exact(text))
