"""HTTP of a task server in its own process: liveness, readiness and metrics."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from payonce.engine.database.connections import Database
from payonce.http.guard import Guard
from payonce.http.health import check_ready, metrics_are_open
from payonce.http.hosts import Hosts
from payonce.http.kit.problems import Problem, document
from payonce.http.metrics_page import MetricsPage
from payonce.http.server import bound, served
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable

OPTION: Final = "--http-port"
DEFAULT_PORT: Final = 8124
PROBES: Final = ("GET", "HEAD")
_CLOSED: Final = Problem(
    HTTPStatus.FORBIDDEN,
    "metrics are served on loopback only; set PAYONCE_METRICS=open if only scrapers can reach this port",
)

log = get_logger(__name__)


def probe_app(
    database: Database, loops: Mapping[str, "asyncio.Task[Any]"], metrics_open: bool, hosts: Hosts | None = None
) -> ASGIApp:
    metrics_page = MetricsPage()

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        try:
            await check_ready(database, loops)
        except Unavailable as error:
            return document(request.url.path, Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
        return JSONResponse({"status": "ready", "loops": sorted(loops)})

    async def metrics(request: Request) -> Response:
        return await metrics_page.answer() if metrics_open else document(request.url.path, _CLOSED)

    pages = {"/healthz": alive, "/readyz": ready, "/metrics": metrics}
    return Guard(Starlette(routes=[Route(path, page, methods=PROBES) for path, page in pages.items()]), hosts=hosts)


@asynccontextmanager
async def probe_server(
    database: Database,
    loops: Mapping[str, "asyncio.Task[Any]"],
    host: str,
    port: int | None,
    setting: str | None,
    allowed_hosts: str | None = None,
) -> AsyncIterator[str]:
    """Listens until the block ends and yields the URL. Without a port it uses the default, or any free one: a task
    server must not fail for its metrics."""
    try:
        listener = bound(host, DEFAULT_PORT if port is None else port, OPTION)
    except Unavailable:
        if port is not None:
            raise
        log.warning("http_port_taken", wanted=DEFAULT_PORT, choose_with=OPTION)
        listener = bound(host, 0, OPTION)
    hosts = Hosts(host, allowed_hosts)
    async with served(probe_app(database, loops, metrics_are_open(setting, host), hosts), listener) as (chosen, _):
        yield f"http://{host}:{chosen}"
