"""The production transport: aiohttp, with addresses resolved once, checked, and checked again at the socket."""

import asyncio
import io
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Address, ip_address
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from payonce.kit.http.connection import CUT, DROPPED, HEAD_MAX_BYTES, NO_HTTP, SWITCHING_PROTOCOLS, Connection
from payonce.kit.http.failures import Broken
from payonce.kit.http.headers import check_lines, is_name
from payonce.kit.http.proxies import Proxies, judge_name
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import Target, judge
from payonce.kit.http.transport import Outgoing, Resolve, resolve_once

IDLE_MAX_S: Final = 4.0
"""Node and uvicorn close a connection after 5 idle seconds; a request written at that moment ends as unknown."""
FILE_FROM_BYTES: Final = 1024 * 1024
"""From this size on aiohttp expects a file: it writes a file in parts and does not block the loop."""
OURS_ALONE: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that aiohttp would add."""
CLOSED: Final = "the client was closed"


class SocketTransport:
    def __init__(
        self,
        *,
        connect_timeout_s: float,
        connections_max: int,
        allow_private: bool,
        resolve: Resolve | None,
        tls: ssl.SSLContext | None,
        idle_max_s: float = IDLE_MAX_S,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._connections_max = connections_max
        self._allow_private = allow_private
        self._resolve = resolve or _resolve_by_system
        self._tls = tls
        self._idle_max_s = idle_max_s
        self._proxies = Proxies.of_environment()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether they use a proxy."""
        self._is_closed = False

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        check_lines(outgoing)
        try:
            response = await self._sent(outgoing, attempt)
            try:
                await _take_in(response, attempt)
            finally:
                response.close()
        except (aiohttp.ClientError, OSError) as problem:
            # Without the cause: aiohttp's texts quote the URL, whose query may hold a secret.
            raise Broken(_in_words(problem)) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._is_closed and task is not None and not task.cancelling():
                # A closing aiohttp cancels requests that wait for a connection, although their tasks are not cancelled.
                raise Broken(CLOSED) from None
            raise

    async def close(self) -> None:
        """Requests that wait for a connection end as not sent."""
        self._is_closed = True
        for session in self._sessions.values():
            await session.close()

    async def _sent(self, outgoing: Outgoing, attempt: Attempt) -> aiohttp.ClientResponse:
        target, body = outgoing.target, outgoing.body
        proxy = self._proxies.of(target)
        if proxy is not None and not self._allow_private:
            judge_name(target)
        return await self._session(is_proxied=proxy is not None).request(
            outgoing.method,
            _url(target),
            headers=_spelled_alike(outgoing.headers),
            data=io.BytesIO(body) if body is not None and len(body) >= FILE_FROM_BYTES else body,
            allow_redirects=False,
            proxy=None if proxy is None else proxy.url,
            proxy_headers=None if proxy is None else proxy.headers,
            middlewares=(partial(self._send_once, attempt),),
        )

    async def _send_once(
        self, attempt: Attempt, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """aiohttp repeats a GET, PUT or DELETE after its own exception for a dropped connection, so none may pass."""
        assert isinstance(request, _Request)
        request.attempt = attempt
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as problem:
            is_late = self._is_closed and not attempt.may_have_left
            raise Broken(CLOSED if is_late else _in_words(problem)) from None

    def _session(self, *, is_proxied: bool) -> aiohttp.ClientSession:
        if self._is_closed:
            raise Broken(CLOSED)
        session = self._sessions.get(is_proxied)
        if session is None:
            # A proxy is named by the operator and may have a private address.
            session = self._sessions[is_proxied] = self._open(allow_private=self._allow_private or is_proxied)
        return session

    def _open(self, *, allow_private: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(
                limit=self._connections_max,
                keepalive_timeout=self._idle_max_s,
                resolver=_PinnedResolver(self._resolve, allow_private),
                use_dns_cache=False,
                socket_factory=partial(_guarded_socket, allow_private),
                ssl=self._tls or True,
            ),
            request_class=_Request,
            # The client limits the total time, for all transports alike.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=OURS_ALONE,
            # The connection bounds the head as a whole.
            max_line_size=HEAD_MAX_BYTES,
            max_field_size=HEAD_MAX_BYTES,
            max_headers=HEAD_MAX_BYTES,
        )


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(Connection, loop=self._loop)


class _Request(aiohttp.ClientRequest):
    attempt: Attempt

    async def send(self, conn: Any) -> aiohttp.ClientResponse:
        """Called by aiohttp with an open connection. Here the request begins to leave; a second call is refused."""
        if self.attempt.may_have_left:
            raise Broken(DROPPED)
        self.attempt.may_have_left = True
        return await super().send(conn)

    def update_expect_continue(self, expect: bool = False) -> None:
        """The body never waits for `100 Continue`, whatever a header says."""


async def _take_in(response: aiohttp.ClientResponse, attempt: Attempt) -> None:
    encodings = response.headers.getall("Transfer-Encoding", [])
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    if (
        response.status == SWITCHING_PROTOCOLS
        or [each.lower() for each in encodings] not in ([], ["chunked"])
        or not all(is_name(name) for name, _ in headers)
    ):
        raise Broken(NO_HTTP)
    attempt.begin(response.status, headers)
    while chunk := await response.content.readany():
        attempt.feed(chunk)
        if not attempt.wants_body:
            return


class _PinnedResolver(AbstractResolver):
    """aiohttp connects to the addresses that this returns and to no others."""

    def __init__(self, resolve: Resolve, allow_private: bool) -> None:
        self._resolve = resolve
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await resolve_once(self._resolve, host, port, allow_private=self._allow_private)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return


def _guarded_socket(allow_private: bool, info: tuple[Any, ...]) -> socket.socket:
    """The second check, of the very address that is connected to."""
    family, kind, protocol, _, place = info
    if not allow_private:
        judge(place[0], [ip_address(place[0])])
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    return opened


def _spelled_alike(headers: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """aiohttp drops the first of two headers whose names differ in case alone."""
    if len({name.lower() for name, _ in headers}) == len(headers):
        return headers
    return [(name.lower(), value) for name, value in headers]


def _url(target: Target) -> URL:
    url = URL(f"{target.origin}{target.path}{'?' if target.query else ''}{target.query}", encoded=True)
    # aiohttp must connect to the host that was checked.
    assert (url.scheme, url.raw_host, url.port) == (target.scheme, target.host, target.port)
    return url


async def _resolve_by_system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def _in_words(problem: Exception) -> str:
    match problem:
        case aiohttp.ClientConnectorCertificateError():
            detail = getattr(problem.certificate_error, "verify_message", "")
            return f"the certificate was not accepted: {detail or 'not valid for this host'}"
        case aiohttp.ClientConnectorSSLError():
            return "TLS could not be agreed"
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case aiohttp.ClientProxyConnectionError():
            return f"no connection to the proxy of HTTPS_PROXY: {_reason(problem.os_error)}"
        case aiohttp.ClientConnectorError():
            return f"no connection: {_reason(problem.os_error)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy of HTTPS_PROXY answered {problem.status}"
        case aiohttp.ClientPayloadError():
            return CUT
        case aiohttp.ClientResponseError():
            return NO_HTTP
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return DROPPED
        case _:
            return f"the connection failed ({type(problem).__name__})"


def _reason(problem: OSError) -> str:
    return os.strerror(problem.errno) if problem.errno else "no address of the host could be reached"
