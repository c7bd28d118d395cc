"""The client. Every request is sent once, within bounds of time and size; every failure is not sent or unknown.

    NotSent   provably nothing left this machine: a retry is safe
    Unknown   it may have happened: find out before acting again

An answer of any status is returned, including 429 and redirects: its meaning depends on the vendor.
"""

import asyncio
import math
import re
import ssl
import time
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from multidict import CIMultiDict

from payonce.kit.http.failures import BodyTooLarge, Broken, Unsendable
from payonce.kit.http.headers import is_name
from payonce.kit.http.inprocess import Application, InProcessTransport
from payonce.kit.http.response import Attempt, Response
from payonce.kit.http.target import Query, Target, parse_url
from payonce.kit.http.transport import Outgoing, Resolve, Transport
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.kit.redact import redact
from payonce.kit.version import __version__

DEFAULT_TIMEOUT_S: Final = 20.0
DEFAULT_CONNECT_TIMEOUT_S: Final = 5.0
DEFAULT_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
DEFAULT_CONNECTIONS_MAX: Final = 100
REQUEST_MAX_BYTES: Final = 16 * 1024 * 1024

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]*")
# With these a caller would describe another message than the one sent, or another host than the one checked.
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_STANDARD: Final = {"User-Agent": f"payonce/{__version__}", "Accept": "*/*", "Accept-Encoding": "gzip"}

_PATHS_KEPT: Final = 256
_redacted_path = lru_cache(maxsize=_PATHS_KEPT)(redact)

log = get_logger(__name__)


class HttpClient:
    """A client of one vendor, or with `base_url=None` of URLs given per request (webhooks).

    `transport` replaces the network: an ASGI application in this process, or another Transport.
    """

    def __init__(
        self,
        name: str,
        base_url: str | None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        connect_timeout_s: float = DEFAULT_CONNECT_TIMEOUT_S,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        connections_max: int = DEFAULT_CONNECTIONS_MAX,
        allow_private: bool = False,
        headers: Mapping[str, str] | None = None,
        transport: Application | Transport | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self._timeout_s = _positive(timeout_s, "timeout_s")
        self._max_body_bytes = max_body_bytes
        self._allow_private = allow_private
        self._headers = CIMultiDict(_STANDARD)
        self._headers.update(_checked_headers(headers or {}))
        self._root = self._checked(parse_url(base_url)) if base_url is not None else None
        if self._root is not None and self._root.query:
            raise Unsendable("a base URL has no query: pass query= with each request")
        self._is_closed = False
        self._transport: Transport
        if isinstance(transport, Transport):
            self._transport = transport
        elif transport is not None:
            self._transport = InProcessTransport(transport, allow_private=allow_private, resolve=resolve)
        else:
            # aiohttp takes as long to import as all the rest, and simulators do without it.
            from payonce.kit.http.sockets import SocketTransport

            self._transport = SocketTransport(
                connect_timeout_s=_positive(connect_timeout_s, "connect_timeout_s"),
                connections_max=connections_max,
                allow_private=allow_private,
                resolve=resolve,
                tls=tls,
            )

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Query | None = None,
        timeout_s: float | None = None,
    ) -> Response:
        """Sends once. `path` is appended to the base URL; without a base URL it is the whole URL."""
        outgoing = self._prepare(method, path, json, body, headers or {}, query)
        source = f"{self.name}: {self._shown(outgoing)}"
        limit_s = self._timeout_s if timeout_s is None else _positive(timeout_s, "timeout_s")
        attempt = Attempt(self._max_body_bytes)
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._transport.exchange(outgoing, attempt)
            received_headers, received = attempt.finish()
        except TimeoutError:
            raise self._failed(source, attempt, f"no answer within {limit_s:g} s") from None
        except Broken as broken:
            raise self._failed(source, attempt, broken.reason) from None
        except BodyTooLarge as too_large:
            log.info("http_request_failed", request=source, reason=too_large.reason)
            raise BodyTooLarge(f"{source} {too_large.reason}", too_large.status) from None
        elapsed_s = time.monotonic() - started
        log.debug("http_request_done", request=source, status=attempt.status, elapsed_s=round(elapsed_s, 4))
        return Response(attempt.status, received_headers, received, elapsed_s, source)

    async def close(self) -> None:
        self._is_closed = True
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"HttpClient({self.name!r}, {self._root.origin if self._root else 'any host'})"

    def _prepare(
        self, method: str, path: str, json: Any, body: bytes | None, headers: Mapping[str, str], query: Query | None
    ) -> Outgoing:
        if self._is_closed:
            raise Unsendable(f"the HTTP client {self.name} is closed")
        if method not in _METHODS:
            raise Unsendable(f"{method[:20]!r} is not a method of requests: one of {', '.join(sorted(_METHODS))}")
        if json is not None and body is not None:
            raise Unsendable("a request has either json or a body")
        merged = self._headers.copy()
        if json is not None:
            merged["Content-Type"] = "application/json"
            body = msgspec.json.encode(json)
        merged.update(_checked_headers(headers))
        if body is not None and len(body) > REQUEST_MAX_BYTES:
            raise Unsendable(f"a request body of {len(body)} bytes is over the limit of {REQUEST_MAX_BYTES}")
        target = self._root.at(path, query) if self._root else self._checked(parse_url(path)).asking(query)
        return Outgoing(method, target, tuple(merged.items()), body)

    def _checked(self, target: Target) -> Target:
        """An address in the URL is never resolved, so it is checked here."""
        if not self._allow_private:
            target.must_be_public()
        return target

    def _shown(self, outgoing: Outgoing) -> str:
        """Without the query, and without the path of a customer's URL: receivers keep secrets there."""
        place = _redacted_path(outgoing.target.path) if self._root else outgoing.target.origin
        return f"{outgoing.method} {place}"

    def _failed(self, source: str, attempt: Attempt, reason: str) -> NotSent | Unknown:
        log.info("http_request_failed", request=source, reason=reason, sent=attempt.may_have_left)
        if attempt.may_have_left:
            return Unknown(f"{source} may have happened: {reason}")
        return NotSent(f"{source} was not sent: {reason}")


def _checked_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Errors name the header without its value."""
    for name, value in headers.items():
        if not is_name(name):
            raise Unsendable("a header's name has characters that are not allowed in header names")
        if name.lower() in _OURS:
            raise Unsendable(f"the header {name} is set by the client itself")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise Unsendable(f"the value of the header {name} is not printable ASCII text")
    return headers


def _positive(seconds: float, name: str) -> float:
    if not 0 < seconds < math.inf:
        raise Invalid(f"{name} must be a number of seconds above zero: every request has a time-out")
    return seconds
