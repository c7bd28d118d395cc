"""A minimal HTTP server on the loopback for simulators: complete requests, complete responses.

Streaming and foreign applications are served by `payonce.testing.server`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools

from payonce.kit.http import Application
from payonce.kit.log import get_logger

BACKLOG: Final = 1_024
FIRST_LINES_KEPT: Final = 16
BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

log = get_logger(__name__)


@asynccontextmanager
async def answering(application: Application) -> AsyncIterator[str]:
    """Serves in this event loop until the block ends; yields the address."""
    connections: set[_Connection] = set()
    listener = await asyncio.get_running_loop().create_server(
        lambda: _Connection(application, connections), "127.0.0.1", 0, backlog=BACKLOG
    )
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        await asyncio.gather(*(connection.close() for connection in list(connections)))
        await listener.wait_closed()


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, application: Application, connections: "set[_Connection]") -> None:
        self._application = application
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._running: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    async def close(self) -> None:
        self._transport.abort()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, problem: Exception | None) -> None:
        self._connections.discard(self)
        self._gone.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._transport.write(BAD_REQUEST)
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        if self._running is not None and not self._running.done():
            # Clients wait for a response before the next request.
            self._transport.abort()
            return
        path, _, query = self._url.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": self._parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "client": self._transport.get_extra_info("peername"),
            "server": self._transport.get_extra_info("sockname"),
        }
        self._running = asyncio.create_task(
            self._answer(scope, b"".join(self._body), bool(self._parser.should_keep_alive()))
        )

    async def _answer(self, scope: dict[str, Any], body: bytes, keep_alive: bool) -> None:
        requests = [{"type": "http.request", "body": body, "more_body": False}]
        events: list[Any] = []

        async def receive() -> Any:
            if requests:
                return requests.pop()
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            events.append(event)

        try:
            await self._application(scope, receive, send)
        except Exception:
            log.exception("simulator_failed", path=scope["path"])
            events = [{"status": 500, "headers": [(b"content-length", b"0")]}, {}]
        if len(events) > 1:
            self._transport.write(_encoded(events[0], b"".join(each.get("body", b"") for each in events[1:]), scope))
        if len(events) < 2 or not keep_alive:
            # An incomplete response is not sent.
            self._transport.close()


def _encoded(start: Any, body: bytes, scope: dict[str, Any]) -> bytes:
    lines = [_first_lines(start["status"], int(time.time())), *(b"%b: %b\r\n" % each for each in start["headers"])]
    return b"".join([*lines, b"\r\n", b"" if scope["method"] == "HEAD" else body])


@lru_cache(maxsize=FIRST_LINES_KEPT)
def _first_lines(status: int, second: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ndate: {formatdate(second, usegmt=True)}\r\n".encode()
