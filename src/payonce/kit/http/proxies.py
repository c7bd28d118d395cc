"""HTTPS_PROXY and NO_PROXY: which requests leave through a proxy, and which targets it must not be asked for."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from payonce.kit.http.failures import NotPublic
from payonce.kit.http.target import Target
from payonce.kit.outcomes import Invalid

_PRIVATE_DOMAINS: Final = (".localhost", ".local", ".internal", ".home.arpa")
"""Reserved for private networks by RFC 6761, RFC 6762, ICANN (2024) and RFC 8375."""


@dataclass(frozen=True, slots=True)
class Proxy:
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    """Its login."""


@dataclass(frozen=True, slots=True)
class Proxies:
    https: Proxy | None
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def of_environment(cls) -> Self:
        """HTTP_PROXY and ALL_PROXY are not used. Raises Invalid for an HTTPS_PROXY that is not a proxy's address."""
        environment = getproxies_environment()
        address = environment.get("https")
        return cls(_parse(address) if address else None, environment)

    def of(self, target: Target) -> Proxy | None:
        """None for a target that is reached directly: by plain HTTP, on this machine, or because NO_PROXY names it."""
        if self.https is None or target.scheme != "https" or _is_this_machine(target):
            return None
        return None if proxy_bypass(target.authority, self.environment) else self.https


def judge_name(target: Target) -> None:
    """Raises NotPublic for an address or a name that can only be private. Any other name is resolved by the proxy, so
    its addresses cannot be judged here."""
    target.must_be_public()
    if target.address is None and ("." not in target.host or target.host.endswith(_PRIVATE_DOMAINS)):
        raise NotPublic(f"{target.host} is a name in a private network: requests go to public addresses only")


def _parse(text: str) -> Proxy:
    try:
        url = URL(text if "://" in text else f"http://{text}")
        is_usable = url.scheme in ("http", "https") and bool(url.raw_host) and url.port is not None
    except ValueError:
        is_usable = False
    if not is_usable:
        # Its value may hold a login.
        raise Invalid(
            "HTTPS_PROXY is not the address of a proxy: write http://host:port or http://user:password@host:port"
        )
    login = f"{url.user or ''}:{url.password or ''}"
    headers = {} if login == ":" else {"Proxy-Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    return Proxy(URL.build(scheme=url.scheme, host=url.raw_host or "", port=url.port), headers)


def _is_this_machine(target: Target) -> bool:
    if target.address is not None:
        return target.address.is_loopback
    return target.host == "localhost" or target.host.endswith(".localhost")
