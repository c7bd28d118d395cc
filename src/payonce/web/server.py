"""The listening server: in the process' own loop, with a bound on silent connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from payonce.app import App
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable
from payonce.web.application import build_web

SHUTDOWN_LIMIT_S: Final = 5
KEEP_ALIVE_S: Final = 15
HEAD_LIMIT_S: Final = 10.0
"""For the head of a request to arrive, from the connection or the first byte: silence must not hold a connection."""
CONNECTIONS_MAX: Final = 1_000
"""Above it requests are answered with 503: each connection costs memory, and none waits unseen."""

log = get_logger(__name__)


@asynccontextmanager
async def listening(app: App, host: str, port: int) -> AsyncIterator[int]:
    """Serves in this very loop until the block ends; answers with the port, which the system chose if it was 0."""
    listener = _bind(host, port)
    proxies = app.settings.trusted_proxies
    config = uvicorn.Config(
        build_web(app),
        http=PunctualProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        # Whoever may name the client's address is said in the settings; by default nobody.
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
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
        app.closing.set()
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not arrive in time; the server itself would wait."""

    head_limit_s: float = HEAD_LIMIT_S
    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(self.head_limit_s, self.transport.close)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


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
        reason: Any = getattr(error, "strerror", None) or error
        raise Unavailable(
            f"cannot listen on {host} port {port}: {reason}; choose another with PAYONCE_HOST and PAYONCE_PORT"
        ) from error
