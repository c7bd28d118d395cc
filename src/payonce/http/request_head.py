"""Rejects requests that a proxy and this server might interpret differently (request smuggling): the end of the body,
the host, the credentials.

The parser rejects malformed requests. This module rejects ambiguous ones that the parser accepts.
"""

from http import HTTPStatus
from typing import Final

import httptools

from payonce.http.hosts import is_host
from payonce.http.kit.problems import Problem

CLOSE: Final = {"Connection": "close"}
VERSIONS: Final = ("1.0", "1.1")
SINGLE: Final = frozenset({b"host", b"authorization", b"content-type", b"content-encoding", b"idempotency-key"})
"""Headers that must not repeat: some readers use the first value, others the last."""

Headers = list[tuple[bytes, bytes]]


def check_head(version: str, url: bytes, headers: Headers) -> int | None:
    """Returns the length of the body; None if it is chunked. Raises Problem, after which the connection is closed."""
    if version not in VERSIONS:
        raise Problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "use HTTP/1.1", headers=CLOSE)
    found: dict[bytes, bytes] = {}
    coded: list[bytes] = []
    for name, value in headers:
        if name == b"transfer-encoding":
            coded.append(value)
        elif name in found and name in SINGLE:
            raise _bad(f"the header {name.decode()} is repeated; send it once")
        else:
            found[name] = value
    _check_host(version, url, found.get(b"host"))
    if b"upgrade" in found and (coded or found.get(b"content-length", b"0") != b"0"):
        # The parser treats the rest of the connection as another protocol.
        raise _bad("protocol upgrades are not supported; send a request with a body without the header Upgrade")
    if coded:
        if version == "1.0" or [value.strip().lower() for value in coded] != [b"chunked"]:
            raise Problem(
                HTTPStatus.NOT_IMPLEMENTED, "the only supported transfer coding is chunked, in HTTP/1.1", headers=CLOSE
            )
        return None
    return int(found.get(b"content-length", b"0"))


def _check_host(version: str, url: bytes, host: bytes | None) -> None:
    """HTTP/1.0 probes may omit the header."""
    if host is None:
        if version == "1.1":
            raise _bad("the header Host is missing; send it")
    elif not is_host(host):
        raise _bad("the header Host is invalid; it must be a name or an address, with an optional port")
    if url.startswith((b"/", b"*")):
        return
    # An absolute URL names the host a second time.
    target = httptools.parse_url(url)
    named = target.host or b""
    named = b"[%b]" % named if b":" in named else named
    named += b"" if target.port is None else b":%d" % target.port
    if target.userinfo or named.lower() != (host or b"").lower():
        raise _bad("the URL and the header Host name different hosts")


def _bad(why: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, why, headers=CLOSE)
