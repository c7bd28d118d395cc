"""Whose address it is: what failed attempts are counted by."""

import ipaddress
from functools import lru_cache
from typing import Final

IPV6_NETWORK_BITS: Final = 64
"""What one subscriber has: counting single addresses there counts nothing."""
REMEMBERED: Final = 4_096
"""Addresses: each request asks for the same one several times."""


@lru_cache(maxsize=REMEMBERED)
def network_of(address: str) -> str:
    """The address itself, of IPv6 its network; one name for all that is no address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "elsewhere"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
