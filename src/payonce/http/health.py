"""Health, readiness, queue depths and metrics, for probes and scrapers. Only figures need a key."""

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
"""A database that takes longer is not ready; a probe must not hang."""


class Alive(BaseModel):
    status: str


class Ready(BaseModel):
    status: str
    loops: list[str]


class Part(BaseModel):
    name: str
    well: bool
    detail: str | None = Field(description="What is wrong, or which risk an operator accepted.")


class Detailed(BaseModel):
    status: str = Field(description="`healthy`, or `unhealthy` if any part is.")
    parts: list[Part] = Field(
        description="Only for operators, keys with metrics:read and monitors on the same machine."
    )


class QueueDepth(BaseModel):
    """Message counts of one queue by state, capped at a million."""

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

    @routes.get("/healthz", summary="Liveness of the process")
    async def alive() -> Alive:
        return Alive(status="alive")

    @routes.get(
        "/readyz",
        summary="Readiness: the database is reachable and migrated, and all loops run",
        responses=responses(503),
    )
    async def ready() -> Ready:
        await check_ready(app.database, app.loops)
        return Ready(status="ready", loops=sorted(app.loops))

    @routes.get("/v1/health/", summary="Liveness of the process under its versioned path")
    async def health() -> Alive:
        return Alive(status="healthy")

    @routes.get("/v1/health/detailed", summary="Health of database, queues and loops; with details for monitors")
    async def detailed_health(request: Request) -> Detailed:
        if await is_monitor(app, request):
            return await detailed_of(app)
        # Without the queues: counting them costs too much for unauthenticated requests.
        return Detailed(status=_status(await _process_parts(app)), parts=[])

    @routes.get(
        "/v1/health/queues",
        summary="List queues with message counts by state and the age of the oldest message",
        dependencies=[require_monitor(app), *operator_schemes(app)],
        responses=responses(401, 403, 429, 503),
        # Monitors on this machine need no credentials.
        openapi_extra={"security": [{}]},
    )
    async def queue_health() -> Depths:
        return await depths_of(app)

    @routes.get(
        "/metrics",
        summary="Metrics in the Prometheus format",
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
        # Many load balancers send HEAD requests.
        routes.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
    return routes


async def depths_of(app: App) -> Depths:
    async with asyncio.timeout(READY_LIMIT_S):
        depths = [await app.admin.depth(name) for name in await app.admin.queues()]
    return Depths(queues=[QueueDepth(**asdict(depth)) for depth in depths])


async def detailed_of(app: App) -> Detailed:
    """Never raises: a failing part is reported as unhealthy."""
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
        # Our own messages are safe to show; a driver's may contain addresses.
        said = str(error) if isinstance(error, PayonceError) else f"it did not answer: {type(error).__name__}"
        return Part(name=name, well=False, detail=redact(said))
    return Part(name=name, well=True, detail=None)


def metrics_are_open(setting: str | None, host: str) -> bool:
    """Metrics show the amounts of open effects and unmatched items, so by default only loopback needs no key."""
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
