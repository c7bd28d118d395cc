"""Health, readiness, queues and metrics: for probes and scrapers, without a key as far as they tell no figures."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from starlette.requests import Request

from payonce.app.process import App
from payonce.app.registry import all_migrations
from payonce.console.auth import is_loopback
from payonce.engine.database.connections import Database
from payonce.engine.database.durability import ACCEPT_DATA_LOSS
from payonce.http.kit.auth import require
from payonce.http.kit.problems import responses
from payonce.http.kit.scopes import METRICS_READ
from payonce.http.metrics_page import MetricsPage
from payonce.http.monitor_access import KEY, OPEN, is_monitor, operator_schemes, require_monitor
from payonce.kit.outcomes import PayonceError, Unavailable
from payonce.kit.redact import redact

READY_LIMIT_S: Final = 3.0
"""A database that answers later than this is not ready, and a probe must not hang."""


class Alive(BaseModel):
    status: str


class Ready(BaseModel):
    status: str
    loops: list[str]


class Part(BaseModel):
    name: str
    well: bool
    detail: str | None = Field(description="What is wrong, or what an operator accepted.")


class Detailed(BaseModel):
    status: str = Field(description="healthy, or unhealthy when a part is not well.")
    parts: list[Part] = Field(description="For operators, keys with metrics:read and monitors on the machine itself.")


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
    page = MetricsPage()
    closed = not metrics_are_open(app.settings.metrics, app.settings.host)

    @routes.get("/healthz", summary="The process lives")
    async def alive() -> Alive:
        return Alive(status="alive")

    @routes.get("/readyz", summary="Its database answers and is migrated, its loops run", responses=responses(503))
    async def ready() -> Ready:
        await check_ready(app.database, app.loops)
        return Ready(status="ready", loops=sorted(app.loops))

    @routes.get("/v1/health/", summary="The process lives, for those who look here")
    async def health() -> Alive:
        return Alive(status="healthy")

    @routes.get("/v1/health/detailed", summary="Database, queues and loops; for watchers each by itself")
    async def detailed_health(request: Request) -> Detailed:
        if await is_monitor(app, request):
            return await detailed_of(app)
        # Without the queues: whoever finds the port must not have them all counted.
        return Detailed(status=_status(await _process_parts(app)), parts=[])

    @routes.get(
        "/v1/health/queues",
        summary="Depth by state, age of the oldest",
        dependencies=[require_monitor(app), *operator_schemes(app)],
        responses=responses(401, 403, 429, 503),
        # Monitors on this machine need no credentials.
        openapi_extra={"security": [{}]},
    )
    async def queue_health() -> Depths:
        return await depths_of(app)

    @routes.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        dependencies=[require(METRICS_READ)] if closed else [],
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **(responses(401, 403, 429, 503) if closed else {}),
        },
    )
    async def metrics() -> Response:
        return await page.answer()

    for path, probe in (("/healthz", alive), ("/readyz", ready)):
        # Load balancers like to ask for the head alone.
        routes.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    return routes


async def depths_of(app: App) -> Depths:
    async with asyncio.timeout(READY_LIMIT_S):
        depths = [await app.admin.depth(name) for name in await app.admin.queues()]
    return Depths(queues=[QueueDepth(**asdict(depth)) for depth in depths])


async def detailed_of(app: App) -> Detailed:
    """Answers whatever is wrong: who asks wants to know which part it is."""
    database, *loops = await _process_parts(app)
    parts = [database, await _part("queues", depths_of(app)), *loops]
    return Detailed(status=_status(parts), parts=parts)


async def _process_parts(app: App) -> list[Part]:
    parts = [await _part("database", app.database.check(all_migrations()))]
    if app.settings.accept_data_loss:
        parts.append(Part(name="durability", well=True, detail=f"{ACCEPT_DATA_LOSS} is set: commits may be lost"))
    for name, task in sorted(app.loops.items()):
        ended = "it has ended; restart the process" if task.done() else None
        parts.append(Part(name=f"{name} loop", well=ended is None, detail=ended))
    return parts


def _status(parts: Sequence[Part]) -> str:
    return "healthy" if all(part.well for part in parts) else "unhealthy"


async def _part(name: str, check: Awaitable[Any]) -> Part:
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            await check
    except Exception as error:
        # Ours are sentences for everybody; what a driver says may name addresses.
        said = str(error) if isinstance(error, PayonceError) else f"it did not answer: {type(error).__name__}"
        return Part(name=name, well=False, detail=redact(said))
    return Part(name=name, well=True, detail=None)


def metrics_are_open(setting: str | None, host: str) -> bool:
    """Metrics tell what open effects and unmatched items come to: no figures for whoever finds the port."""
    return (setting or (OPEN if is_loopback(host) else KEY)) == OPEN


async def check_ready(database: Database, loops: Mapping[str, "asyncio.Task[Any]"]) -> None:
    for name, task in loops.items():
        if task.done():
            raise Unavailable(f"the {name} loop of this process has ended; restart the process")
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            await database.check(all_migrations())
    except TimeoutError as error:
        raise Unavailable(f"the database did not answer within {READY_LIMIT_S:g} s") from error
