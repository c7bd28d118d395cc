"""Targets of requests. URLs are parsed strictly, so that the checked host is the one that is connected to."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus, unquote

import idna

from payonce.kit.http.addresses import Address, why_not
from payonce.kit.http.failures import NotPublic, Unsendable

URL_MAX_CHARS: Final = 8192
PATHS_KEPT: Final = 256

QueryValue = str | int
Query = Mapping[str, QueryValue] | Iterable[tuple[str, QueryValue]]

_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#]+)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?", re.IGNORECASE
)
_AUTHORITY: Final = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?", re.ASCII)
_HOST: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_LOOKS_LIKE_A_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*")
_UNWANTED: Final = re.compile(r"[\x00-\x20\x7f\\]")
_STRAY_PERCENT: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_PATH_SAFE: Final = "/%:@!$&'()*+,;=~-._"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]*")
_QUERY_SAFE: Final = _PATH_SAFE + "?[]"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HOST_MAX_CHARS: Final = 253


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    """ASCII, lower case, without brackets or a last dot."""
    port: int
    path: str
    """As sent: percent-encoded."""
    query: str = ""
    address: Address | None = None
    """The host, if it is an address."""

    def __repr__(self) -> str:
        # Paths and queries of webhooks are secrets to many receivers.
        return f"Target({self.origin})"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def at(self, path: str, query: Query | None) -> "Target":
        """This target with `path` appended, which can neither name another host nor leave this target's path."""
        if path and not path.startswith("/"):
            raise Unsendable("the path of a request begins with / and names no host")
        if "?" in path or "#" in path:
            raise Unsendable("the path of a request holds no ? or #: pass query=, and quote names")
        whole, asked = _vendors_path(self.path.rstrip("/") + path) or "/", self._with(query)
        return Target(self.scheme, self.host, self.port, whole, asked, self.address)

    def asking(self, query: Query | None) -> "Target":
        """This target with further parameters."""
        return self if query is None else replace(self, query=self._with(query))

    def _with(self, query: Query | None) -> str:
        parts = [self.query] if self.query else []
        for name, value in query.items() if isinstance(query, Mapping) else query or ():
            if not isinstance(name, str) or type(value) not in (str, int):
                raise Unsendable("query parameters are text or whole numbers")
            parts.append(f"{_quoted(name)}={_quoted(str(value))}")
        return "&".join(parts)

    def must_be_public(self) -> None:
        if self.address is not None:
            judge(self.host, [self.address])


def parse_url(url: str) -> Target:
    """Parses an http or https URL. Raises Unsendable also for odd URLs, which other parsers may read differently."""
    if len(url) > URL_MAX_CHARS or _UNWANTED.search(url):
        raise Unsendable(f"a URL has at most {URL_MAX_CHARS} characters and no spaces, controls or backslashes")
    match = _URL.fullmatch(url)
    if match is None:
        raise Unsendable("the URL does not read http(s)://host/path, without a fragment")
    if "@" in match["authority"]:
        raise Unsendable("the URL names a user before its host: send credentials in a header")
    authority = _AUTHORITY.fullmatch(match["authority"])
    if authority is None:
        raise Unsendable("the host or port of the URL cannot be read")
    scheme = match["scheme"].lower()
    port = int(authority["port"] or _DEFAULT_PORTS[scheme])
    if not 1 <= port <= 65535:
        raise Unsendable(f"there is no port {port}")
    host, address = _host_of(authority["ipv6"], authority["name"])
    query = quote(_without_stray_percent(match["query"] or ""), safe=_QUERY_SAFE)
    return Target(scheme, host, port, _checked_path(match["path"] or "/"), query, address)


def judge(host: str, addresses: Iterable[Address]) -> None:
    """Raises NotPublic if any address of the name is not public: a mixed answer is an attack."""
    for address in addresses:
        kind = why_not(address)
        if kind is not None:
            raise NotPublic(f"{host} is at {address}, which is {kind}: requests go to public addresses only")


def _host_of(ipv6: str | None, name: str | None) -> tuple[str, Address | None]:
    try:
        if ipv6 is not None:
            six = ipaddress.IPv6Address(ipv6)
            return str(six), six
        host = _ascii(name or "")
        if _LOOKS_LIKE_A_NUMBER.fullmatch(host.rpartition(".")[2]):
            # 2130706433, 0x7f.1 and 0177.0.0.1 are all 127.0.0.1 to a socket; four plain numbers are the one spelling.
            four = ipaddress.IPv4Address(host)
            return str(four), four
    except ValueError:
        raise Unsendable("the address in the URL is not written as four plain numbers or in brackets") from None
    return host, None


def _ascii(name: str) -> str:
    """The host in ASCII. Normalised before the check, for ①②⑦.⓪.⓪.① is an address too."""
    host = name.lower()
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except (idna.IDNAError, UnicodeError):
            raise Unsendable("the host of the URL is not a valid international name") from None
    host = host.removesuffix(".")
    if len(host) > _HOST_MAX_CHARS or not _HOST.fullmatch(host):
        raise Unsendable("the host of the URL is not a valid name")
    return host


def _checked_path(path: str) -> str:
    quoted = quote(_without_stray_percent(path), safe=_PATH_SAFE)
    if _UNWANTED.search(unquote(path).replace(" ", "")) or {".", ".."} & set(unquote(path).split("/")):
        raise Unsendable("the path holds control characters, backslashes or the segments . and ..")
    return quoted


_vendors_path = lru_cache(maxsize=PATHS_KEPT)(_checked_path)
"""Cached, because a vendor has few paths."""


def _quoted(text: str) -> str:
    # Most parameters need no quoting, and quoting is slow.
    return text if _PLAIN.fullmatch(text) else quote_plus(text)


def _without_stray_percent(text: str) -> str:
    if _STRAY_PERCENT.search(text):
        raise Unsendable("a % in a URL is followed by two hexadecimal digits")
    return text
