"""The seam below the client: one request handed to whatever carries it."""

from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import NamedTuple, Protocol, runtime_checkable

from payonce.kit.http.addresses import Address
from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import Target, judge

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a host name and a port to its addresses; OSError when there are none."""


class Outgoing(NamedTuple):
    """A request whose every part has been checked. No repr of headers or body: they hold the credentials."""

    method: str
    target: Target
    headers: Sequence[tuple[str, str]]
    body: bytes | None

    def __repr__(self) -> str:
        return f"Outgoing({self.method} {self.target.origin})"


@runtime_checkable
class Transport(Protocol):
    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        """Sends once and tells `attempt` what happens; raises `Broken` when the connection fails."""
        ...

    async def close(self) -> None: ...


async def resolve_once(resolve: Resolve, host: str, port: int, *, allow_private: bool) -> list[Address]:
    """The addresses to connect to, judged. Nobody asks for the name again: a second answer could be another."""
    try:
        addresses = [ip_address(text) for text in await resolve(host, port)]
    except OSError:
        raise Broken("the host's name is not known") from None
    if not addresses:
        raise Broken("the host's name has no address")
    if not allow_private:
        judge(host, addresses)
    return addresses
