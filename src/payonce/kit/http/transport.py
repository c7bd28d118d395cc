"""The interface between the client and the transports below it."""

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import NamedTuple, Protocol, runtime_checkable

from payonce.kit.http.addresses import Address
from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import Target, judge

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name and port; raises OSError if there are none."""


class Outgoing(NamedTuple):
    """A checked request. Its repr omits headers and body, which contain credentials."""

    method: str
    target: Target
    headers: Sequence[tuple[str, str]]
    body: bytes | None

    def __repr__(self) -> str:
        return f"Outgoing({self.method} {self.target.origin})"


@runtime_checkable
class Transport(Protocol):
    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        """Sends once and records the progress in `attempt`. Raises Broken if the connection fails."""
        ...

    async def close(self) -> None: ...


async def resolve_once(resolve: Resolve, host: str, port: int, *, allow_private: bool) -> list[Address]:
    """The addresses to connect to, checked. The name is not resolved again, for a second answer could differ."""
    try:
        addresses = [ip_address(text) for text in await resolve(host, port)]
    except OSError:
        raise Broken("the host's name is not known") from None
    if not addresses:
        raise Broken("the host's name has no address")
    if not allow_private:
        judge(host, addresses)
    return addresses
