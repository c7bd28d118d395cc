"""Refuses requests that a proxy in front and this server may read differently: where the body ends, which host is
meant, whose request it is.

The parser refuses what is malformed. This module refuses what the parser lets pass.
"""

from http import HTTPStatus
from typing import Final

import httptools

from payonce.http.hosts import is_host
from payonce.http.kit.problems import Problem

CLOSE: Final = {"Connection": "close"}
VERSIONS: Final = ("1.0", "1.1")
SINGLE: Final = frozenset({b"host", b"authorization", b"content-type", b"content-encoding", b"idempotency-key"})
"""Headers of which readers take the first or the last one."""

Headers = list[tuple[bytes, bytes]]


def check_head(version: str, url: bytes, headers: Headers) -> int | None:
    """The length of the body, None where it comes in chunks. Raises Problem; the connection is then closed."""
    if version not in VERSIONS:
        raise Problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "speak HTTP/1.1", headers=CLOSE)
    found: dict[bytes, bytes] = {}
    coded: list[bytes] = []
    for name, value in headers:
        if name == b"transfer-encoding":
            coded.append(value)
        elif name in found and name in SINGLE:
            raise _bad(f"the header {name.decode()} is there twice")
        else:
            found[name] = value
    _check_host(version, url, found.get(b"host"))
    if b"upgrade" in found and (coded or found.get(b"content-length", b"0") != b"0"):
        # The parser takes what follows for another protocol's.
        raise _bad("no request is upgraded; send one with a body without the header Upgrade")
    if coded:
        if version == "1.0" or [value.strip().lower() for value in coded] != [b"chunked"]:
            raise Problem(HTTPStatus.NOT_IMPLEMENTED, "the only transfer coding is chunked, in HTTP/1.1", headers=CLOSE)
        return None
    return int(found.get(b"content-length", b"0"))


def _check_host(version: str, url: bytes, host: bytes | None) -> None:
    """Without the header come probes with HTTP/1.0 alone."""
    if host is None:
        if version == "1.1":
            raise _bad("the header Host is missing")
    elif not is_host(host):
        raise _bad("the header Host is a name or an address, and a port if need be")
    if url.startswith((b"/", b"*")):
        return
    # With the whole URL a request names its host twice.
    target = httptools.parse_url(url)
    named = target.host or b""
    named = b"[%b]" % named if b":" in named else named
    named += b"" if target.port is None else b":%d" % target.port
    if target.userinfo or named.lower() != (host or b"").lower():
        raise _bad("the URL and the header Host name different hosts")


def _bad(why: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, why, headers=CLOSE)
