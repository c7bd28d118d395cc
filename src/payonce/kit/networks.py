"""Networks of client addresses, by which failed attempts are counted."""

import ipaddress
from functools import lru_cache
from typing import Final

IPV6_NETWORK_BITS: Final = 64
"""The network of one subscriber: counting single addresses would count nothing."""
CACHED_MAX: Final = 4_096
"""Size of the address cache: each request looks up the same one several times."""


@lru_cache(maxsize=CACHED_MAX)
def network_of(address: str) -> str:
    """The address itself, or its network for IPv6; one name for all invalid addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "elsewhere"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
