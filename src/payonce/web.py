"""What a process says over HTTP: health, readiness, queues, metrics. Errors are problem documents (RFC 9457)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

import asyncpg
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from payonce.app import App, all_migrations
from payonce.engine.database import is_transient
from payonce.engine.metrics import REGISTRY
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, PayonceError, Unavailable
from payonce.kit.redact import redact

READY_LIMIT_S: Final = 3.0
"""A database that answers later than this is not ready, and a probe must not hang."""
SHUTDOWN_LIMIT_S: Final = 5

# Named one by one, because what falls under Exception is also logged as a bug.
EXPECTED: Final = (PayonceError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

log = get_logger(__name__)


def build_web(app: App) -> Starlette:
    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(request: Request) -> Response:
        await _check_ready(app)
        return JSONResponse({"status": "ready", "loops": sorted(app.loops)})

    async def queues(request: Request) -> Response:
        async with asyncio.timeout(READY_LIMIT_S):
            depths = [asdict(await app.admin.depth(name)) for name in await app.admin.queues()]
        return JSONResponse({"queues": depths})

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/v1/health/queues", queues),
            Route("/metrics", metrics),
        ],
        exception_handlers={HTTPException: _http_problem, Exception: _bug, **dict.fromkeys(EXPECTED, _problem)},
    )


@asynccontextmanager
async def listening(app: App, host: str, port: int) -> AsyncIterator[int]:
    """Serves in this very loop until the block ends; answers with the port, which the system chose if it was 0."""
    listener = _bind(host, port)
    config = uvicorn.Config(
        build_web(app), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=SHUTDOWN_LIMIT_S
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    app.loops["web"] = task
    chosen = int(listener.getsockname()[1])
    log.info("listening", url=f"http://{host}:{chosen}")
    try:
        yield chosen
    finally:
        del app.loops["web"]
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


class _Server(uvicorn.Server):
    """Signals belong to the process, which drains its work first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Unavailable(
            f"cannot listen on {host} port {port}: {reason}; choose another with PAYONCE_HOST and PAYONCE_PORT"
        ) from error


async def _check_ready(app: App) -> None:
    for name, task in app.loops.items():
        if task.done():
            raise Unavailable(f"the {name} loop of this process has ended; restart the process")
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            await app.database.check(all_migrations())
    except TimeoutError as error:
        raise Unavailable(f"the database did not answer within {READY_LIMIT_S:g} s") from error


def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _document(request, error.status_code, error.detail, error.headers)


def _problem(request: Request, error: Exception) -> Response:
    """Bad input is the caller's; a database that is away is for later."""
    if isinstance(error, Invalid):
        return _document(request, HTTPStatus.BAD_REQUEST, str(error))
    if is_transient(error):
        return _document(request, HTTPStatus.SERVICE_UNAVAILABLE, str(error) or "the database did not answer in time")
    return _document(request, HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


def _bug(request: Request, error: Exception) -> Response:
    return _document(request, HTTPStatus.INTERNAL_SERVER_ERROR, "an error of payonce itself; its log tells more")


def _document(request: Request, code: int, detail: str, headers: Any = None) -> Response:
    body = {
        "type": "about:blank",
        "title": HTTPStatus(code).phrase,
        "status": int(code),
        "detail": redact(detail),
        "instance": request.url.path,
    }
    return JSONResponse(body, status_code=code, headers=headers, media_type="application/problem+json")
