"""Health, readiness, queues and metrics: for probes and scrapers, without a key as far as they tell no sums."""

import asyncio
from dataclasses import asdict
from typing import Final

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from payonce.app import App, all_migrations
from payonce.console.door import is_loopback
from payonce.engine.metrics import REGISTRY
from payonce.kit.outcomes import Unavailable
from payonce.routes.callers import require
from payonce.routes.problems import responses
from payonce.routes.scopes import METRICS_READ

READY_LIMIT_S: Final = 3.0
"""A database that answers later than this is not ready, and a probe must not hang."""


class Alive(BaseModel):
    status: str


class Ready(BaseModel):
    status: str
    loops: list[str]


class QueueDepth(BaseModel):
    """Messages of one queue by state; counts stop at a bound."""

    queue: str
    ready: int
    delayed: int
    alone: int
    leased: int
    parked: int
    oldest_ready_s: float
    paused: bool


class Depths(BaseModel):
    queues: list[QueueDepth]


def health_routes(app: App) -> APIRouter:
    routes = APIRouter(tags=["health"])
    # Metrics tell what open effects and unmatched items come to: no figures for whoever finds the port.
    closed = (app.settings.metrics or ("open" if is_loopback(app.settings.host) else "key")) == "key"

    @routes.get("/healthz", summary="The process lives")
    async def alive() -> Alive:
        return Alive(status="alive")

    @routes.get("/readyz", summary="Its database answers and is migrated, its loops run", responses=responses(503))
    async def ready() -> Ready:
        await _check_ready(app)
        return Ready(status="ready", loops=sorted(app.loops))

    @routes.get("/v1/health/queues", summary="Depth by state, age of the oldest", responses=responses(503))
    async def queue_health() -> Depths:
        return await depths_of(app)

    @routes.get(
        "/metrics", summary="For Prometheus", response_class=Response,
        dependencies=[require(METRICS_READ)] if closed else [],
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **(responses(401, 403, 429, 503) if closed else {}),
        },
    )  # fmt: skip
    async def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    for path, probe in (("/healthz", alive), ("/readyz", ready)):
        # Load balancers like to ask for the head alone.
        routes.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    return routes


async def depths_of(app: App) -> Depths:
    async with asyncio.timeout(READY_LIMIT_S):
        depths = [await app.admin.depth(name) for name in await app.admin.queues()]
    return Depths(queues=[QueueDepth(**asdict(depth)) for depth in depths])


async def _check_ready(app: App) -> None:
    for name, task in app.loops.items():
        if task.done():
            raise Unavailable(f"the {name} loop of this process has ended; restart the process")
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            await app.database.check(all_migrations())
    except TimeoutError as error:
        raise Unavailable(f"the database did not answer within {READY_LIMIT_S:g} s") from error
