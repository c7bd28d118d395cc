"""HTTP/1.1 as the dispatcher needs it: one request on a kept connection, and of the answer its status alone.

A client for every purpose spends on each request several times what the task costs otherwise.
"""

import asyncio
import base64
import ssl
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

import httptools
from yarl import URL

CONNECT_LIMIT_S: Final = 10.0
IDLE_MAX_S: Final = 14.0
"""Of a connection that is kept; our roles keep theirs for 15 s, and whoever writes should be the first to close."""
HEAD_MAX_BYTES: Final = 64 * 1024
URLS_KEPT: Final = 1_000
_BODYLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that say nothing of a body when they have none."""

Headers = Collection[tuple[str, str]]


class NoAnswer(Exception):
    """The connection failed, or what came over it is no answer."""


class Place(NamedTuple):
    """Where a connection goes to."""

    secure: bool
    host: str
    port: int


@dataclass(frozen=True)
class Target:
    """A URL, as it is connected to and asked for."""

    place: Place
    path: bytes
    host: bytes
    login: bytes | None


@lru_cache(maxsize=URLS_KEPT)
def target_of(text: str) -> Target:
    url = URL(text)
    host, port = url.raw_host, url.port
    if not host or port is None:
        raise NoAnswer("the URL names no host")
    login = None
    if url.user is not None or url.password is not None:
        login = b"Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode())
    place = Place(url.scheme == "https", host, port)
    return Target(place, url.raw_path_qs.encode(), (url.host_port_subcomponent or "").encode(), login)


class Replied(NamedTuple):
    status: int
    retry_after: str | None


class Wire:
    """Connections, kept while they are wanted again."""

    def __init__(self, idle_max_s: float = IDLE_MAX_S) -> None:
        self._idle_max_s = idle_max_s
        self._idle: defaultdict[Place, list[_Connection]] = defaultdict(list)
        self._sweeping: asyncio.TimerHandle | None = None

    async def exchange(self, method: str, url: str, headers: Headers, body: bytes) -> Replied:
        """Sends it once, whatever happens. Raises NoAnswer and OSError."""
        target = target_of(url)
        request = _written(method, target, headers, body)
        connection = self._kept(target.place) or await _connected(target.place)
        reply = await connection.ask(request, heads_only=method == "HEAD")
        if connection.is_open:
            self._keep(target.place, connection)
        return reply

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _kept(self, place: Place) -> "_Connection | None":
        """The last one that was used: the others may then grow old and go."""
        connections = self._idle.get(place, [])
        while connections:
            connection = connections.pop()
            if connection.is_open:
                return connection
        return None

    def _keep(self, place: Place, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle[place].append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._idle_max_s / 2, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        # Twice in the time, so that none gets older than that.
        before = loop.time() - self._idle_max_s / 2
        for place, connections in list(self._idle.items()):
            for connection in connections:
                if connection.idle_since <= before:
                    connection.close()
            self._idle[place] = [each for each in connections if each.is_open]
            if not self._idle[place]:
                del self._idle[place]
        self._sweeping = loop.call_later(self._idle_max_s / 2, self._sweep) if self._idle else None


class _Connection(asyncio.Protocol):
    """One request after another, each with its answer."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: asyncio.Future[Replied] | None = None
        self._begin(heads_only=False)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, *, heads_only: bool) -> Replied:
        if self._transport is None or self._transport.is_closing():
            raise NoAnswer("the connection was closed as soon as it was made")
        self._reply = asyncio.get_running_loop().create_future()
        self._begin(heads_only=heads_only)
        self._transport.write(request)
        try:
            return await self._reply
        finally:
            self._reply = None
            if not self._may_be_used_again:
                self.close()

    def _begin(self, *, heads_only: bool) -> None:
        self._heads_only = heads_only
        self._status = 0
        self._retry_after: str | None = None
        self._head_bytes = 0
        self._is_framed = False
        self._is_kept_alive = False
        self._may_be_used_again = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reply is None or self._reply.done():
            # Nobody asked: whatever comes next could be taken for the answer to another request.
            self.close()
            return
        self._head_bytes += 0 if self._status else len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._may_be_used_again = False
            self._answer()
        except httptools.HttpParserError as error:
            self._fail(NoAnswer(f"the answer is not HTTP: {error}"))
        if not self._status and self._head_bytes > HEAD_MAX_BYTES:
            self._fail(NoAnswer(f"the head of the answer has more than {HEAD_MAX_BYTES:,} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._status and not self._is_framed:
            self._answer()
        else:
            self._fail(NoAnswer("the connection was closed before the answer was whole") if exc is None else exc)

    def on_message_begin(self) -> None:
        if self._reply is None or self._reply.done():
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._is_framed = True

    def on_headers_complete(self) -> None:
        self._is_kept_alive = self._parser.should_keep_alive()
        self._status = self._parser.get_status_code()
        if self._heads_only and self._status >= 200:
            # The parser would wait for a body that never comes.
            self._answer()

    def on_body(self, body: bytes) -> None:
        """What it says means nothing here. An answer that goes on after its first part is not waited for."""
        self._answer()

    def on_message_complete(self) -> None:
        if 100 <= self._status < 200 and self._status != 101:
            # Not the answer yet.
            self._begin(heads_only=self._heads_only)
            return
        self._may_be_used_again = self._is_kept_alive and not self._heads_only
        self._answer()

    def _answer(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(Replied(self._status, self._retry_after))

    def _fail(self, error: Exception) -> None:
        self._may_be_used_again = False
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)
        self.close()


async def _connected(place: Place) -> _Connection:
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, place.host, place.port, ssl=_tls() if place.secure else None
            )
    except TimeoutError:
        raise NoAnswer(f"no connection to {place.host}:{place.port} within {CONNECT_LIMIT_S:g} s") from None
    return connection


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _written(method: str, target: Target, headers: Headers, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1\r\nHost: %s" % (method.encode(), target.path, target.host)]
    for name, value in headers:
        line = f"{name}: {value}"
        if "\r" in line or "\n" in line or "\0" in line:
            raise NoAnswer("a header has an end of line in it")
        lines.append(line.encode())
    if target.login is not None and not any(name.lower() == "authorization" for name, _ in headers):
        lines.append(b"Authorization: " + target.login)
    if body or method not in _BODYLESS:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", body))
