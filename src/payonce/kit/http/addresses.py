"""Addresses that a request to a customer's URL must not reach."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address

# Listed here because the answers of `ipaddress` change between patch releases of Python.
# Source: the IANA special-purpose address registries.
_IPV4: Final = {
    IPv4Network("0.0.0.0/8"): "unspecified",
    IPv4Network("10.0.0.0/8"): "private",
    IPv4Network("100.64.0.0/10"): "shared by carriers",
    IPv4Network("127.0.0.0/8"): "loopback",
    IPv4Network("168.63.129.16/32"): "a cloud's own service",  # Azure: public by number, answered by the host machine
    IPv4Network("169.254.0.0/16"): "link-local",
    IPv4Network("172.16.0.0/12"): "private",
    IPv4Network("192.0.0.0/24"): "reserved",
    IPv4Network("192.0.2.0/24"): "for documentation",
    IPv4Network("192.88.99.0/24"): "reserved",
    IPv4Network("192.168.0.0/16"): "private",
    IPv4Network("198.18.0.0/15"): "for benchmarks",
    IPv4Network("198.51.100.0/24"): "for documentation",
    IPv4Network("203.0.113.0/24"): "for documentation",
    IPv4Network("224.0.0.0/4"): "multicast",
    IPv4Network("240.0.0.0/4"): "reserved",
}
_IPV6: Final = {
    IPv6Network("::/128"): "unspecified",
    IPv6Network("::1/128"): "loopback",
    IPv6Network("64:ff9b:1::/48"): "private",
    IPv6Network("2001::/23"): "reserved",
    IPv6Network("2001:db8::/32"): "for documentation",
    IPv6Network("3fff::/20"): "for documentation",
    IPv6Network("fc00::/7"): "private",
    IPv6Network("fe80::/10"): "link-local",
    IPv6Network("fec0::/10"): "private",
    IPv6Network("ff00::/8"): "multicast",
}
_IPV6_PUBLIC: Final = IPv6Network("2000::/3")
# Networks whose addresses contain an IPv4 address, with the number of bits after it.
_IPV4_INSIDE: Final = {
    IPv6Network("::ffff:0:0/96"): 0,
    IPv6Network("64:ff9b::/96"): 0,
    IPv6Network("2002::/16"): 80,
}


def why_not(address: Address) -> str | None:
    """The kind of the address; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _IPV4.items() if address in network), None)
    for network, bits_after in _IPV4_INSIDE.items():
        if address in network:
            return why_not(IPv4Address(int(address) >> bits_after & 0xFFFF_FFFF))
    kind = next((kind for network, kind in _IPV6.items() if address in network), None)
    return kind or (None if address in _IPV6_PUBLIC else "reserved")
