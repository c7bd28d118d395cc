"""Queues over HTTP: inspect, pause, resume and redrive."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field, model_validator

from payonce.app.logging import without_secrets
from payonce.engine.controls import Executed, amounts_of, count_in_review, needs_second_person, redrive_request, submit
from payonce.engine.messages import bulk
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter, QueuedMessage
from payonce.engine.messages.transaction import Tx
from payonce.http.health import Depths, QueueDepth
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContext, AppContextDep
from payonce.http.kit.idempotency import Once, moves_money
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.scopes import QUEUES_READ, QUEUES_STEER
from payonce.http.kit.values import NUMBER_MAX, PAGE_DEFAULT, Document, Limit, Moment, Money, Name, Note, RequestBody
from payonce.kit.outcomes import Stale

IDS_MAX: Final = 1_000
"""Ids in one redrive."""
READ: Final = responses(400, 401, 403, 404, 422, 429, 503)
STEER: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)

OperationId = Annotated[int, Path(ge=1, le=2**63 - 1)]
QueueName = Annotated[Name, Path(description="As GET /v1/queues lists them.")]
Reader = Annotated[Caller, require(QUEUES_READ)]
Steerer = Annotated[Caller, require(QUEUES_STEER)]


class StoredMessage(BaseModel):
    """A stored message; secrets in its payload are redacted."""

    id: UUID
    queue: str
    action: str
    state: str
    correlation_id: str | None
    idempotency_key: str | None
    trace_id: str
    lane: str | None
    created_at: datetime | None
    ready_at: datetime | None = Field(
        description="When it is due; for a parked message, when it was parked. Null while unknown."
    )
    attempts: int
    max_attempts: int | None
    crashes: int
    lease_until: datetime | None
    worker: str | None
    last_error: str | None
    payload: Document


class MessagePage(BaseModel):
    queue: str
    state: str
    messages: list[StoredMessage]
    next_after: UUID | None = Field(description="Pass it as `after` to get the next page; null on the last page.")


class Pause(RequestBody):
    reason: Note = Field(description="Shown with the paused queue.")


class Paused(BaseModel):
    queue: str
    paused: bool


class Redriven(BaseModel):
    """Above the threshold of an asset a second person must agree: `approval` is then the approval to grant. More than
    50,000 messages are redriven in batches: `operation` is then the operation to follow."""

    queue: str
    matching: int
    redriven: int
    in_review: int = Field(0, description="Redriven messages that wait again, because their effects are in review.")
    amounts: list[Money] = Field(description="What the messages may move; not totalled for an operation.")
    approval: int | None = None
    operation: int | None = None


class QueueOperation(BaseModel):
    """A redrive or purge in batches, with its progress."""

    id: int
    kind: bulk.Kind
    queue: str
    state: State
    status: bulk.Status
    total: int = Field(description="Matching messages at the start, capped at a million.")
    changed: int
    kept: int = Field(description="Messages that a purge kept because they have open effects.")
    error: str | None
    asked_by: str
    why: str
    created_at: datetime
    updated_at: datetime


class QueueOperations(BaseModel):
    queue: str
    operations: list[QueueOperation]


class MessageFilter(RequestBody):
    """Selects the parked messages that match all given fields, or with `all` every parked message of the queue."""

    ids: list[UUID] | None = Field(None, min_length=1, max_length=IDS_MAX)
    action: Name | None = None
    correlation_id: Name | None = None
    error_contains: Name | None = None
    parked_after: Moment | None = None
    parked_before: Moment | None = None
    all: Literal[True] | None = Field(None, description="Instead of any other field.")

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        """An empty filter is more often a script's mistake than a request for everything."""
        if self.all and self.criteria():
            raise ValueError("give either all or a filter, not both")
        if not self.all and not self.criteria():
            raise ValueError(
                'the filter is empty; give ids, action, correlation_id, …, or "all": true for every message'
            )
        return self

    def criteria(self) -> dict[str, Any]:
        return self.model_dump(exclude={"all", "expected", "why"}, exclude_none=True)


class RedriveRequest(MessageFilter):
    """The parked messages to redrive."""

    expected: int | None = Field(
        None, ge=0, le=NUMBER_MAX, description="If a different number matches, nothing is changed."
    )
    why: Note = Field(description="For the audit log and the approver.")


class RedrivePreview(BaseModel):
    """The effect of a redrive at this moment."""

    queue: str
    matching: int
    in_review: int = Field(
        description="Matching messages whose effect is in review: a redrive does not help them. Answer the effect "
        "(GET /v1/effects?state=review&queue=…); the answer wakes its message."
    )
    unreadable: int = Field(description="Matching entries that cannot be decoded; they stay and can only be purged.")
    amounts: list[Money]
    unknown_amounts: int = Field(description="Messages whose amount is unknown.")
    second_person: str | None = Field(description="Why a second person must agree; null if none is needed.")
    messages: list[StoredMessage] = Field(description="The first matching messages.")


def queue_routes() -> APIRouter:
    routes = APIRouter(prefix="/v1/queues", tags=["queues"])

    @routes.get(
        "",
        summary="List queues with message counts by state, age of the oldest message and pause status",
        responses=READ,
    )
    async def list_queues(context: AppContextDep, caller: Reader) -> Depths:
        depths = [await context.admin.depth(name) for name in await context.admin.queues()]
        return Depths(queues=[QueueDepth(**asdict(depth)) for depth in depths])

    @routes.get("/{queue}", summary="Show a queue", responses=READ)
    async def show_queue(queue: QueueName, context: AppContextDep, caller: Reader) -> QueueDepth:
        await _check_exists(context, queue)
        return QueueDepth(**asdict(await context.admin.depth(queue)))

    @routes.get("/{queue}/messages", summary="List messages in the order they fall due", responses=READ)
    async def list_messages(
        queue: QueueName,
        context: AppContextDep,
        caller: Reader,
        state: State = State.READY,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[UUID | None, Query(description="The last message id of the previous page.")] = None,
    ) -> MessagePage:
        await _check_exists(context, queue)
        found = await context.admin.peek(queue, state, limit, after)
        following = found[-1].message.id if len(found) == limit else None
        return MessagePage(queue=queue, state=state, messages=_shown(found), next_after=following)

    @routes.post("/{queue}/pause", summary="Pause a queue; claims stop at once", responses=STEER)
    async def pause_queue(queue: QueueName, body: Pause, context: AppContextDep, caller: Steerer) -> Paused:
        await _check_exists(context, queue)
        await context.admin.pause(queue, body.reason, caller.holder)
        return Paused(queue=queue, paused=True)

    @routes.post("/{queue}/resume", summary="Resume a paused queue", responses=STEER)
    async def resume_queue(queue: QueueName, context: AppContextDep, caller: Steerer) -> Paused:
        await _check_exists(context, queue)
        await context.admin.resume(queue, caller.holder)
        return Paused(queue=queue, paused=False)

    @routes.post("/{queue}/redrive/preview", summary="Preview a redrive without changing anything", responses=STEER)
    async def preview_redrive(
        queue: QueueName, body: MessageFilter, context: AppContextDep, caller: Reader
    ) -> RedrivePreview:
        await _check_exists(context, queue)
        return await _previewed(context, queue, Filter(**body.criteria()))

    @routes.post(
        "/{queue}/redrive",
        summary="Redrive parked messages: attempts, crashes and age start from zero",
        response_model=Redriven,
        responses=STEER,
    )
    async def redrive(
        queue: QueueName, body: RedriveRequest, context: AppContextDep, once: Annotated[Once, moves_money(QUEUES_STEER)]
    ) -> Response:
        async def act(tx: Tx) -> Redriven:
            await _check_exists(context, queue)
            return await redrive_parked(tx, context, queue, body, once.caller.holder)

        return await once.answer(act)

    _add_operations(routes)
    return routes


def _add_operations(routes: APIRouter) -> None:
    @routes.get("/{queue}/operations", summary="List redrives and purges in batches, newest first", responses=READ)
    async def list_operations(
        queue: QueueName, context: AppContextDep, caller: Reader, limit: Limit = PAGE_DEFAULT
    ) -> QueueOperations:
        await _check_exists(context, queue)
        found = await bulk.operations(context.read, queue, limit)
        return QueueOperations(queue=queue, operations=[_operation(each) for each in found])

    @routes.get("/{queue}/operations/{operation}", summary="Show a batch operation with its progress", responses=READ)
    async def show_operation(
        queue: QueueName, operation: OperationId, context: AppContextDep, caller: Reader
    ) -> QueueOperation:
        return _operation(await _operation_of(context, queue, operation))

    @routes.post(
        "/{queue}/operations/{operation}/stop",
        summary="Stop a batch operation; changes already made are kept",
        responses=STEER,
    )
    async def stop_operation(
        queue: QueueName, operation: OperationId, context: AppContextDep, caller: Steerer
    ) -> QueueOperation:
        await _operation_of(context, queue, operation)
        async with context.begin() as tx:
            return _operation(await bulk.stop(tx, operation, caller.holder))


async def _operation_of(context: AppContext, queue: str, operation_id: int) -> bulk.Operation:
    await _check_exists(context, queue)
    found = await bulk.operation_of(context.read, operation_id)
    if found is None or found.queue != queue:
        raise not_found(f"operation {operation_id} of {queue}")
    return found


def _operation(found: bulk.Operation) -> QueueOperation:
    return QueueOperation(**{name: getattr(found, name) for name in QueueOperation.model_fields})


async def redrive_parked(tx: Tx, context: AppContext, queue: str, body: RedriveRequest, by: str) -> Redriven:
    asked = await redrive_request(tx, context.admin, queue, Filter(**body.criteria()))
    if body.expected is not None and asked.count != body.expected:
        raise Stale(f"{asked.count:,} parked messages of {queue} match, and not {body.expected:,}; look again")
    ids: Sequence[UUID] = ()
    if asked.count and not asked.in_batches:
        ids = await context.admin.choose(queue, State.PARKED, asked.which, asked.count, within=tx.connection)
    amounts = [Money.of(amount) for amount in await amounts_of(tx, ids)]
    fields: dict[str, Any] = {
        "queue": queue,
        "matching": asked.count,
        "amounts": amounts,
        "in_review": await count_in_review(tx, ids),
    }
    if not asked.count:
        return Redriven(**fields, redriven=0)
    end = await submit(tx, context.actions["redrive"], asked, by, body.why)
    if isinstance(end, Executed):
        return Redriven(**fields, redriven=end.result["redriven"], operation=end.result.get("operation"))
    return Redriven(**fields, redriven=0, approval=end.id)


async def _previewed(context: AppContext, queue: str, which: Filter) -> RedrivePreview:
    preview = await context.admin.preview(queue, State.PARKED, which)
    async with context.begin() as tx:
        asked = await redrive_request(tx, context.admin, queue, which)
        assessment = await context.actions["redrive"].assess(tx, asked)
        because = await needs_second_person(tx, assessment)
    return RedrivePreview(
        queue=queue,
        matching=asked.count,
        in_review=preview.in_review,
        unreadable=preview.unreadable,
        amounts=[Money.of(amount) for amount in assessment.amounts],
        unknown_amounts=assessment.unknown,
        second_person=because or None,
        messages=_shown([each for each in preview.samples if each.readable]),
    )


async def _check_exists(context: AppContext, queue: str) -> None:
    if queue not in await context.admin.queues():
        raise not_found(f"queue {queue!r}")


def _shown(found: Sequence[QueuedMessage]) -> list[StoredMessage]:
    same = (
        "id",
        "queue",
        "action",
        "correlation_id",
        "idempotency_key",
        "lane",
        "created_at",
        "attempts",
        "max_attempts",
    )
    return [
        StoredMessage(
            **{name: getattr(stored.message, name) for name in same},
            state=stored.state,
            trace_id=stored.message.trace,
            ready_at=stored.ready_at if stored.due_known else None,
            crashes=stored.crashes,
            lease_until=stored.lease_until,
            worker=stored.worker,
            last_error=without_secrets(stored.last_error),
            payload=without_secrets(stored.message.payload),
        )
        for stored in found
    ]
