"""The transport of production: aiohttp, with addresses resolved once, judged, and judged again at the socket."""

import asyncio
import io
import os
import socket
import ssl
from ipaddress import IPv4Address, ip_address
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import judge
from payonce.kit.http.transport import Outgoing, Resolve, resolve_once

IDLE_MAX_S: Final = 4.0
"""Node and uvicorn hang up on a connection idle for 5 s; writing to one at that moment ends as unknown."""

CHUNKED_FROM_BYTES: Final = 1024 * 1024
"""From here on aiohttp wants a file, so as not to hold up the loop while it writes."""


class SocketTransport:
    def __init__(
        self,
        *,
        connect_timeout_s: float,
        connections_max: int,
        allow_private: bool,
        resolve: Resolve | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._connections_max = connections_max
        self._allow_private = allow_private
        self._resolve = resolve or _resolve_by_system
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        session = self._session = self._session or self._open()
        target = outgoing.target
        url = URL(f"{target.origin}{target.path}{'?' if target.query else ''}{target.query}", encoded=True)
        # What was checked is what is connected to, or nothing is.
        assert (url.scheme, url.raw_host, url.port) == (target.scheme, target.host, target.port)
        body: Any = outgoing.body
        if body is not None and len(body) >= CHUNKED_FROM_BYTES:
            body = io.BytesIO(body)
        try:
            async with session.request(
                outgoing.method,
                url,
                data=body,
                headers=outgoing.headers,
                skip_auto_headers=("Content-Type",),
                allow_redirects=False,
                trace_request_ctx=attempt,
            ) as response:
                attempt.begin(response.status, response.headers.items())
                async for chunk in response.content.iter_any():
                    attempt.feed(chunk)
        except (aiohttp.ClientError, OSError) as problem:
            # Without the cause: aiohttp's texts quote the URL, whose query may hold a secret.
            raise Broken(_in_words(problem)) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=self._connections_max,
            keepalive_timeout=IDLE_MAX_S,
            resolver=_PinnedResolver(self._resolve, self._allow_private),
            use_dns_cache=False,
            socket_factory=self._guarded_socket,
            ssl=self._tls or True,
        )
        leaving = aiohttp.TraceConfig()
        leaving.on_connection_create_end.append(_note_leaving)
        leaving.on_connection_reuseconn.append(_note_leaving)
        return aiohttp.ClientSession(
            connector=connector,
            # The whole is timed by the client, alike for every transport.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trace_configs=[leaving],
            middlewares=(_send_once,),
        )

    def _guarded_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """The second look, at the very address to be connected to, whichever way it came here."""
        family, kind, protocol, _, place = info
        if not self._allow_private:
            judge(place[0], [ip_address(place[0])])
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


class _PinnedResolver(AbstractResolver):
    """aiohttp connects to what this returns and to nothing else."""

    def __init__(self, resolve: Resolve, allow_private: bool) -> None:
        self._resolve = resolve
        self._allow_private = allow_private

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
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


async def _resolve_by_system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


async def _note_leaving(session: aiohttp.ClientSession, context: SimpleNamespace, details: object) -> None:
    attempt: Attempt = context.trace_request_ctx
    attempt.may_have_left = True


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp sends a GET, PUT or DELETE again when a kept connection drops; here nothing is ever sent twice."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as problem:
        raise Broken(_in_words(problem)) from None


def _in_words(problem: Exception) -> str:
    match problem:
        case aiohttp.ClientConnectorCertificateError():
            detail = getattr(problem.certificate_error, "verify_message", "")
            return f"the certificate was not accepted: {detail or 'not valid for this host'}"
        case aiohttp.ClientConnectorSSLError():
            return "TLS could not be agreed"
        case aiohttp.ClientConnectorDNSError():
            return "the host's name is not known"
        case aiohttp.ConnectionTimeoutError():
            return "no connection in time"
        case aiohttp.ClientConnectorError():
            number = problem.os_error.errno
            return f"no connection: {os.strerror(number) if number else 'no address of the host could be reached'}"
        case aiohttp.ClientPayloadError():
            return "the answer was cut short"
        case aiohttp.ClientResponseError():
            return "the answer was not HTTP"
        case aiohttp.ServerDisconnectedError() | ConnectionError():
            return "the connection dropped before an answer"
        case _:
            return f"the connection failed ({type(problem).__name__})"
