"""Billing's queues and job log over HTTP, for billing operators; both services serve these routes."""

from dataclasses import asdict
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Response

from payonce.engine.messages.transaction import Tx
from payonce.http.health import Depths, QueueDepth
from payonce.http.jobs import JobPage, JobQuery
from payonce.http.kit.context import AppContext, AppContextDep
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.values import Name
from payonce.http.queues import Pause, Paused, Redriven, RedriveRequest, redrive_parked
from payonce.services.billing.api.callers import (
    BillingCaller,
    caller_of,
    require_idempotent,
    require_operator,
    require_resource,
)
from payonce.services.billing.api.card_numbers import refuse_card_numbers
from payonce.services.billing.api.tokens import Tokens
from payonce.services.billing.policies import QUEUES
from payonce.services.billing.scopes import OPERATE, READ

PREFIX: Final = "/v1/ops"
LOOK: Final = responses(400, 401, 403, 404, 422, 429, 503)
STEER: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)
OURS: Final = tuple(policy.queue for policy in QUEUES)

QueueName = Annotated[Name, Path(description="A name from GET /v1/ops/queues.")]
Viewer = Annotated[BillingCaller, require_operator(READ)]
Steerer = Annotated[BillingCaller, require_operator(OPERATE)]


def build_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["billing ops"], dependencies=[Depends(refuse_card_numbers)])
    _add_looking(routes)
    _add_steering(routes)
    return routes


def _add_looking(routes: APIRouter) -> None:
    @routes.get("/job-logs", summary="List finished jobs of billing's queues, newest first", responses=LOOK)
    async def list_job_logs(context: AppContextDep, caller: Viewer, query: Annotated[JobQuery, Depends()]) -> JobPage:
        require_resource(context, Tokens)
        if query.queue is not None:
            _check_ours(query.queue)
        return await query.page(context.read, OURS)

    @routes.get(
        "/queues", summary="List billing's queues with message counts by state and pause status", responses=LOOK
    )
    async def list_billing_queues(context: AppContextDep, caller: Viewer) -> Depths:
        require_resource(context, Tokens)
        known = [name for name in await context.admin.queues() if name in OURS]
        return Depths(queues=[QueueDepth(**asdict(await context.admin.depth(name))) for name in known])


def _add_steering(routes: APIRouter) -> None:
    @routes.post("/queues/{queue}/pause", summary="Stop claiming messages at once; nothing is lost", responses=STEER)
    async def pause_billing_queue(queue: QueueName, body: Pause, context: AppContextDep, caller: Steerer) -> Paused:
        await _check(context, queue)
        await context.admin.pause(queue, body.reason, caller.holder)
        return Paused(queue=queue, paused=True)

    @routes.post("/queues/{queue}/resume", summary="Resume a paused queue", responses=STEER)
    async def resume_billing_queue(queue: QueueName, context: AppContextDep, caller: Steerer) -> Paused:
        await _check(context, queue)
        await context.admin.resume(queue, caller.holder)
        return Paused(queue=queue, paused=False)

    @routes.post("/queues/{queue}/redrive", summary="Requeue parked messages", response_model=Redriven, responses=STEER)
    async def redrive_billing_queue(
        queue: QueueName,
        body: RedriveRequest,
        context: AppContextDep,
        once: Annotated[Once, require_idempotent(OPERATE, operators=True)],
    ) -> Response:
        await _check(context, queue)

        async def act(tx: Tx) -> Redriven:
            return await redrive_parked(tx, context, queue, body, caller_of(once).holder)

        return await once.answer(act)


async def _check(context: AppContext, queue: str) -> None:
    require_resource(context, Tokens)
    _check_ours(queue)
    if queue not in await context.admin.queues():
        raise not_found(f"queue {queue!r}")


def _check_ours(queue: str) -> None:
    """Billing operators control billing's queues only; raises a 404 problem for any other queue."""
    if queue not in OURS:
        raise not_found(f"queue {queue!r} of billing; its queues are {', '.join(OURS)}")
