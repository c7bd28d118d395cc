"""The servers in a PostgreSQL URL: one, or a primary and its standbys.

postgresql://user@one:5432,two:5432/payonce, or with sockets ?host=/run/one,/run/two&port=5432,5432.
"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

DEFAULT_PORT = 5432


@dataclass(frozen=True)
class Host:
    name: str
    """A name, an address, or a socket's folder."""
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


def hosts_of(url: str) -> list[Host]:
    """The servers in the URL's order; empty if it names none. Raises ValueError for an unreadable host or port."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    ports = [_port(text) for text in query.get("port", [""])[0].split(",") if text]
    listed = parts.netloc.rpartition("@")[2] or query.get("host", [""])[0]
    if not listed:
        return []
    specs = listed.split(",")
    if len(ports) not in (0, 1, len(specs)):
        raise ValueError(f"the URL names {len(specs)} hosts and {len(ports)} ports")
    return [_host(spec, ports[place % len(ports)] if ports else DEFAULT_PORT) for place, spec in enumerate(specs)]


def _host(spec: str, port: int) -> Host:
    if spec.startswith("/"):
        return Host(spec, port)
    found = re.fullmatch(r"(?:\[(?P<address>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>[^:]*))?", spec)
    if found is None:
        raise ValueError("the URL has an unreadable host")
    return Host(unquote(found["address"] or found["name"]), _port(found["port"]) if found["port"] else port)


def _port(text: str) -> int:
    # isdecimal() accepts digits of other scripts, and int() accepts signs and spaces.
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65_536:
        raise ValueError("the URL has an invalid port")
    return int(text)
