"""HTTP for the dispatcher: to any address, including this machine's, reading only the response's head."""

import base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from multidict import CIMultiDict
from yarl import URL

from payonce.kit.http.failures import Unsendable
from payonce.kit.http.response import Attempt
from payonce.kit.http.sockets import SocketTransport
from payonce.kit.http.target import Target
from payonce.kit.http.transport import Outgoing

CONNECT_LIMIT_S: Final = 10.0
CONNECTIONS_MAX: Final = 10_000
"""More than the concurrent attempts of a process: none waits for another's connection."""
IDLE_MAX_S: Final = 14.0
"""Idle time of a kept connection. Our roles keep theirs for 15 s, and the writing side should close first."""
URLS_KEPT: Final = 1_000

Headers = Sequence[tuple[str, str]]


class ResponseHead(NamedTuple):
    status: int
    retry_after: str | None


class Wire:
    """Sends over reused connections."""

    def __init__(self, idle_max_s: float = IDLE_MAX_S) -> None:
        self._transport = SocketTransport(
            connect_timeout_s=CONNECT_LIMIT_S,
            connections_max=CONNECTIONS_MAX,
            allow_private=True,
            resolve=None,
            tls=None,
            idle_max_s=idle_max_s,
        )

    async def exchange(self, method: str, url: str, headers: Headers, body: bytes) -> ResponseHead:
        """Sends the request exactly once. Raises Broken, or Unsendable for an invalid request."""
        target, login = destination_of(url)
        if login is not None and not any(name.lower() == "authorization" for name, _ in headers):
            headers = [*headers, ("Authorization", login)]
        head = _Head()
        await self._transport.exchange(Outgoing(method, target, headers, body or None), head)
        return ResponseHead(head.status, head.headers.get("Retry-After"))

    async def close(self) -> None:
        await self._transport.close()


class _Head(Attempt):
    """Reads the response's head; its body is ignored, whatever its encoding and length."""

    wants_body = False

    def __init__(self) -> None:
        super().__init__(body_max_bytes=0)

    def begin(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.status, self.headers = status, CIMultiDict(headers)

    def feed(self, chunk: bytes) -> None:
        pass


@lru_cache(maxsize=URLS_KEPT)
def destination_of(text: str) -> tuple[Target, str | None]:
    """A URL's target and credentials. Parsed like the task service's clients do, less strictly than a vendor's URL."""
    url = URL(text)
    host, port = (url.raw_host or "").removesuffix("."), url.port
    if not host or port is None:
        raise Unsendable("the URL names no host")
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    login = None
    if url.user is not None or url.password is not None:
        login = "Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return Target(url.scheme, host, port, url.raw_path or "/", url.raw_query_string, address), login
