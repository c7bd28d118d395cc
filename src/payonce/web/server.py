"""The listening server: in the process' own loop, with a bound on silent connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from payonce.app import App
from payonce.engine.metrics import HTTP_REQUESTS
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable
from payonce.routes.problems import Problem, document
from payonce.web.application import build_web

SHUTDOWN_LIMIT_S: Final = 5
KEEP_ALIVE_S: Final = 15
HEAD_LIMIT_S: Final = 10.0
"""For the head of a request to arrive, from the connection or the first byte: silence must not hold a connection."""
HEAD_MAX_BYTES: Final = 64 * 1024
"""All that comes before the body, and after it as a trailer: it is held in memory before anybody is asked for a key."""
URL_MAX_BYTES: Final = 8 * 1024
CONNECTIONS_MAX: Final = 1_000
"""Above it requests are answered with 503: each connection costs memory, and none waits unseen."""

log = get_logger(__name__)


@asynccontextmanager
async def listening(app: App, host: str, port: int) -> AsyncIterator[int]:
    """Serves in this very loop until the block ends; answers with the port, which the system chose if it was 0."""
    listener = bound(host, port)
    async with served(build_web(app), listener, app.settings.trusted_proxies) as (chosen, task):
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
    web: ASGIApp, listener: socket.socket, proxies: str | None = None
) -> AsyncIterator[tuple[int, "asyncio.Task[None]"]]:
    """Any application, until the block ends: the port, and what serves it."""
    config = uvicorn.Config(
        web,
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
    try:
        yield int(listener.getsockname()[1]), task
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await task


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not arrive in time or does not end; the server itself
    would wait, and would keep it all."""

    head_limit_s: float = HEAD_LIMIT_S
    _head_due: asyncio.TimerHandle | None = None
    _heads_begun = 0
    _received_bytes = 0
    """Of a head that is still coming, without the data that it began in: those may hold a whole body before it."""
    _read_bytes = 0
    """Of the head as far as it was read."""
    _too_long: Problem | None = None

    def data_received(self, data: bytes) -> None:
        waiting_for = self._heads_begun if self._head_due is not None else 0
        super().data_received(data)
        if waiting_for and self._head_due is not None and self._heads_begun == waiting_for:
            self._received_bytes += len(data)
            if self._received_bytes > HEAD_MAX_BYTES:
                self._too_long = _HEAD_TOO_LONG
                self.send_400_response("")

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_MAX_BYTES:
            self._refuse(_URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._read_bytes += len(name) + len(value) + len(b": \r\n")
        if self._read_bytes + len(self.url) > HEAD_MAX_BYTES:
            self._refuse(_HEAD_TOO_LONG)
        super().on_header(name, value)

    def _refuse(self, problem: Problem) -> None:
        """The parser stops at an exception and reports it as a request that cannot be read."""
        self._too_long = problem
        raise problem

    def send_400_response(self, msg: str) -> None:
        """Where the server refuses what it cannot read."""
        if self.transport.is_closing():
            return
        problem = self._too_long or _UNREADABLE
        HTTP_REQUESTS.labels("other", "other", str(int(problem.status))).inc()
        answer = document("", problem)
        lines = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._heads_begun += 1
        self._received_bytes = self._read_bytes = 0
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


_CLOSE: Final = {"Connection": "close"}
_UNREADABLE: Final = Problem(HTTPStatus.BAD_REQUEST, "this is no HTTP request that can be read", headers=_CLOSE)
_URL_TOO_LONG: Final = Problem(
    HTTPStatus.REQUEST_URI_TOO_LONG, f"a URL has at most {URL_MAX_BYTES:,} bytes", headers=_CLOSE
)
_HEAD_TOO_LONG: Final = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head of a request has at most {HEAD_MAX_BYTES:,} bytes",
    headers=_CLOSE,
)  # fmt: skip


class _Server(uvicorn.Server):
    """Signals belong to the process, which drains its work first."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _reached_at(host: str, port: int) -> str:
    """From this machine: who listens everywhere listens on the loopback, too."""
    near = {
        "0.0.0.0": "127.0.0.1",  # noqa: S104 - compared, not bound
        "::": "::1",
    }.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def bound(host: str, port: int, otherwise: str = "PAYONCE_HOST and PAYONCE_PORT") -> socket.socket:
    """`otherwise` says by what another place is chosen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason: Any = getattr(error, "strerror", None) or error
        raise Unavailable(f"cannot listen on {host} port {port}: {reason}; choose another with {otherwise}") from error
