"""Queues over HTTP: look into them, pause, resume, and let parked messages start over."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field, model_validator

from payonce.engine.brakes import Done, amounts_of, ask, redrive_of
from payonce.engine.model import State
from payonce.engine.queue import Filter, Stored
from payonce.engine.transaction import Tx
from payonce.kit.outcomes import Stale
from payonce.logs import without_secrets
from payonce.routes.callers import Caller, require
from payonce.routes.desk import AtDesk, Desk
from payonce.routes.once import Once, moves_money
from payonce.routes.problems import not_found, responses
from payonce.routes.scopes import QUEUES_READ, QUEUES_STEER
from payonce.routes.values import NUMBER_MAX, PAGE_DEFAULT, Asked, Document, Limit, Moment, Money, Name, Note
from payonce.web.health import Depths, QueueDepth

IDS_MAX: Final = 1_000
"""Messages that one redrive names one by one."""
READ: Final = responses(400, 401, 403, 404, 422, 429, 503)
STEER: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)

QueueName = Annotated[Name, Path(description="As GET /v1/queues lists them.")]
Reader = Annotated[Caller, require(QUEUES_READ)]
Steerer = Annotated[Caller, require(QUEUES_STEER)]


class StoredMessage(BaseModel):
    """A message as it lies in the store; secrets in its payload are hidden."""

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
        description="When it falls due; of a parked one, since when it is. Null while it is not known."
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
    next_after: UUID | None = Field(description="Give it as `after` for the next page; null on the last one.")


class Pause(Asked):
    reason: Note = Field(description="Shown to whoever asks why.")


class Paused(BaseModel):
    queue: str
    paused: bool


class Redriven(BaseModel):
    """Above the thresholds of what they move a second person must agree: then `approval` is the one to grant."""

    queue: str
    matching: int
    redriven: int
    amounts: list[Money]
    approval: int | None = None


class RedriveRequest(Asked):
    """Which parked messages start over: those that match every field given, or with `all` every one of the queue."""

    ids: list[UUID] | None = Field(None, min_length=1, max_length=IDS_MAX)
    action: Name | None = None
    correlation_id: Name | None = None
    error_contains: Name | None = None
    parked_after: Moment | None = None
    parked_before: Moment | None = None
    all: Literal[True] | None = Field(None, description="In place of any other choice.")
    expected: int | None = Field(None, ge=0, le=NUMBER_MAX, description="If another number matches, nothing is done.")
    why: Note = Field(description="For the audit log and the second person.")

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        """An empty choice is more often a script's mistake than a wish for everything."""
        if self.all and self.choice():
            raise ValueError("either all, or which ones; not both")
        if not self.all and not self.choice():
            raise ValueError('say which messages: ids, action, correlation_id, …; or "all": true for every one')
        return self

    def choice(self) -> dict[str, Any]:
        return self.model_dump(exclude={"all", "expected", "why"}, exclude_none=True)


def queue_routes() -> APIRouter:
    routes = APIRouter(prefix="/v1/queues", tags=["queues"])

    @routes.get("", summary="All queues: messages by state, age of the oldest, paused or not", responses=READ)
    async def list_queues(desk: AtDesk, caller: Reader) -> Depths:
        depths = [await desk.admin.depth(name) for name in await desk.admin.queues()]
        return Depths(queues=[QueueDepth(**asdict(depth)) for depth in depths])

    @routes.get("/{queue}", summary="One queue", responses=READ)
    async def show_queue(queue: QueueName, desk: AtDesk, caller: Reader) -> QueueDepth:
        await _known(desk, queue)
        return QueueDepth(**asdict(await desk.admin.depth(queue)))

    @routes.get("/{queue}/messages", summary="Messages in the order they fall due", responses=READ)
    async def list_messages(
        queue: QueueName,
        desk: AtDesk,
        caller: Reader,
        state: State = State.READY,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[UUID | None, Query(description="The last message of the page before.")] = None,
    ) -> MessagePage:
        await _known(desk, queue)
        found = await desk.admin.peek(queue, state, limit, after)
        following = found[-1].message.id if len(found) == limit else None
        return MessagePage(queue=queue, state=state, messages=_shown(found), next_after=following)

    @routes.post("/{queue}/pause", summary="Stop claims at once; nothing is lost", responses=STEER)
    async def pause_queue(queue: QueueName, body: Pause, desk: AtDesk, caller: Steerer) -> Paused:
        await _known(desk, queue)
        await desk.admin.pause(queue, body.reason, caller.holder)
        return Paused(queue=queue, paused=True)

    @routes.post("/{queue}/resume", summary="Let a paused queue be worked on again", responses=STEER)
    async def resume_queue(queue: QueueName, desk: AtDesk, caller: Steerer) -> Paused:
        await _known(desk, queue)
        await desk.admin.resume(queue, caller.holder)
        return Paused(queue=queue, paused=False)

    @routes.post(
        "/{queue}/redrive", summary="Let parked messages start over: attempts, crashes and age from zero",
        response_model=Redriven, responses=STEER,
    )  # fmt: skip
    async def redrive(
        queue: QueueName, body: RedriveRequest, desk: AtDesk, once: Annotated[Once, moves_money(QUEUES_STEER)]
    ) -> Response:
        async def act(tx: Tx) -> Redriven:
            await _known(desk, queue)
            return await redrive_parked(tx, desk, queue, body, once.caller.holder)

        return await once.answer(act)

    return routes


async def redrive_parked(tx: Tx, desk: Desk, queue: str, body: RedriveRequest, by: str) -> Redriven:
    asked = await redrive_of(tx, desk.admin, queue, Filter(**body.choice()))
    if body.expected is not None and asked.count != body.expected:
        raise Stale(f"{asked.count:,} parked messages of {queue} match, and not {body.expected:,}; look again")
    ids = (
        await desk.admin.choose(queue, State.PARKED, asked.which, asked.count, within=tx.connection)
        if asked.count
        else []
    )
    amounts = [Money.of(amount) for amount in await amounts_of(tx, ids)]
    told: dict[str, Any] = {"queue": queue, "matching": asked.count, "amounts": amounts}
    if not asked.count:
        return Redriven(**told, redriven=0)
    end = await ask(tx, desk.actions["redrive"], asked, by, body.why)
    if isinstance(end, Done):
        return Redriven(**told, redriven=end.result["redriven"])
    return Redriven(**told, redriven=0, approval=end.id)


async def _known(desk: Desk, queue: str) -> None:
    if queue not in await desk.admin.queues():
        raise not_found(f"queue {queue!r}")


def _shown(found: Sequence[Stored]) -> list[StoredMessage]:
    same = ("id", "queue", "action", "correlation_id", "idempotency_key", "lane", "created_at", "attempts",
            "max_attempts")  # fmt: skip
    return [
        StoredMessage(
            **{name: getattr(stored.message, name) for name in same},
            state=stored.state, trace_id=stored.message.trace, ready_at=stored.ready_at if stored.due_known else None,
            crashes=stored.crashes,
            lease_until=stored.lease_until, worker=stored.worker, last_error=without_secrets(stored.last_error),
            payload=without_secrets(stored.message.payload),
        )
        for stored in found
    ]  # fmt: skip
