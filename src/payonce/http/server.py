"""The HTTP server, in the process's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import uvicorn
from starlette.types import ASGIApp

from payonce.app.process import App
from payonce.http.application import build_web
from payonce.http.connections import Connections
from payonce.http.protocol import PunctualProtocol
from payonce.http.turns import Turns
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable

SHUTDOWN_LIMIT_S: Final = 5
KEEP_ALIVE_S: Final = 15
SEND_BUFFER_BYTES: Final = 64 * 1024
"""Kernel buffer per connection. The kernel's default of some megabytes would hold thousands of unread responses."""

log = get_logger(__name__)


@asynccontextmanager
async def listening(app: App, host: str, port: int) -> AsyncIterator[int]:
    """Serves in this event loop until the block ends. Yields the port, which the system chose if it was 0."""
    listener = bound(host, port)
    access, proxies = app.settings.access, app.settings.trusted_proxies
    connections = Connections(access.http_connections, access.http_connections_per_address, proxies)
    async with served(build_web(app), listener, proxies, connections) as (chosen, task):
        app.loops["web"] = task
        log.info("listening", url=f"http://{host}:{chosen}")
        if app.backend.pushes is not None:
            app.backend.pushes.address = _reached_at(host, chosen)
        try:
            yield chosen
        finally:
            del app.loops["web"]
            app.closing.set()


@asynccontextmanager
async def served(
    web: ASGIApp, listener: socket.socket, proxies: str | None = None, connections: Connections | None = None
) -> AsyncIterator[tuple[int, "asyncio.Task[None]"]]:
    """Serves any application until the block ends. Yields the port and the serving task."""
    limits = Connections(proxies=proxies) if connections is None else connections
    config = uvicorn.Config(
        web,
        # uvicorn calls it like the class.
        http=cast(Any, partial(PunctualProtocol, limits=limits, turns=Turns())),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        # Only proxies named in the settings may report a client's address; by default none.
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    try:
        yield int(listener.getsockname()[1]), task
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


class _Server(uvicorn.Server):
    """Leaves signals to the process, which drains its work first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _reached_at(host: str, port: int) -> str:
    """The URL from this machine; a wildcard address is reached on loopback."""
    near = {
        "0.0.0.0": "127.0.0.1",  # noqa: S104 - compared, not bound
        "::": "::1",
    }.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def bound(host: str, port: int, otherwise: str = "PAYONCE_HOST and PAYONCE_PORT") -> socket.socket:
    """Raises Unavailable if the port cannot be bound; `otherwise` names what sets another address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Inherited by accepted connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        return listener
    except (OSError, OverflowError) as error:
        reason: Any = getattr(error, "strerror", None) or error
        raise Unavailable(f"cannot listen on {host} port {port}: {reason}; choose another with {otherwise}") from error
