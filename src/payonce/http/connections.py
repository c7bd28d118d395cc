"""Connection limits: how many are open in all and per address, and how long an answer may stay unread.

At a limit, a connection that is idle, does not read its answers or is still sending a body is closed in favour of a new
one. A connection whose request is being carried out is never closed for a new one; then the new one is refused.
"""

import asyncio
import time
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Final, Protocol

from payonce.engine.monitoring.metrics import HTTP_CONNECTIONS_CLOSED
from payonce.kit.log import get_logger
from payonce.kit.networks import network_of

CONNECTIONS_MAX: Final = 1_000
PER_ADDRESS_MAX: Final = 500
UNREAD_LIMIT_S: Final = 15.0
"""A response is aborted if the client reads less than UNREAD_PROGRESS_BYTES of it in this time."""
UNREAD_PROGRESS_BYTES: Final = 4 * 1024
SWEEP_S: Final = 1.0
SWEEP_MAX: Final = 20
"""Connections aborted per sweep; the next sweep follows after SWEEP_AGAIN_S. A thousand connections opened together
are late together, and closing and logging them all at once would block the event loop."""
SWEEP_AGAIN_S: Final = 0.02
IDLE_LEAST_S: Final = 2.0
"""A connection used more recently is not closed for a new one."""

log = get_logger(__name__)


class Limited(Protocol):
    """What the limits need of a connection."""

    idle_since: float | None
    """When the last request was answered, or the body of the current one began; None while a request is processed."""

    drains: int
    """How often a response that waited for the client could continue."""

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def stalled(self) -> bool:
        """Whether a response waits for the client to read."""

    def abort(self) -> None: ...


class Connections:
    """The open connections of one server."""

    def __init__(
        self,
        most: int = CONNECTIONS_MAX,
        most_per_address: int = PER_ADDRESS_MAX,
        proxies: str | None = None,
        unread_limit_s: float = UNREAD_LIMIT_S,
        sweep_s: float = SWEEP_S,
        idle_least_s: float = IDLE_LEAST_S,
    ) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._proxies = [] if proxies is None else [ip_network(part.strip()) for part in proxies.split(",")]
        self._unread_limit_s = unread_limit_s
        self._sweep_s = sweep_s
        self._idle_least_s = idle_least_s
        self._address_of: dict[Limited, str] = {}
        self._by_address: dict[str, dict[Limited, None]] = {}
        self._unread: dict[Limited, tuple[int, int, float]] = {}
        """By connection: drains, unsent bytes and time at the last sufficient progress."""
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._address_of)

    def admit(self, connection: Limited, host: str) -> bool:
        """Returns False if no other connection could be closed in its favour."""
        address = network_of(host)
        if not self._has_room(address, host):
            return False
        self._address_of[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep)
        return True

    def leave(self, connection: Limited) -> None:
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        self._unread.pop(connection, None)
        of_address = self._by_address[address]
        del of_address[connection]
        if not of_address:
            del self._by_address[address]

    def _has_room(self, address: str, host: str) -> bool:
        ours = self._by_address.get(address, {})
        if len(ours) >= self._most_per_address and not self._is_proxy(host) and not self._close_one(ours, "address"):
            return False
        if len(self) < self._most:
            return True
        # The address with the most connections loses one, so a flood from one address excludes nobody else.
        most = max(self._by_address.values(), key=len)
        return (len(most) > len(ours) and self._close_one(most, "total")) or self._close_one(ours, "total")

    def _close_one(self, among: Iterable[Limited], limit: str) -> bool:
        stalled = idle = None
        before = time.monotonic() - self._idle_least_s
        for connection in among:
            if connection.stalled:
                stalled = connection
                break
            since = connection.idle_since
            if since is not None and since <= before and (idle is None or since < (idle.idle_since or 0.0)):
                idle = connection
        chosen = stalled or idle
        if chosen is None:
            HTTP_CONNECTIONS_CLOSED.labels(f"refused_{limit}").inc()
            return False
        self._give_up(chosen, "unread" if chosen is stalled else "idle")
        return True

    def _give_up(self, connection: Limited, reason: str) -> None:
        HTTP_CONNECTIONS_CLOSED.labels(reason).inc()
        self.leave(connection)
        connection.abort()

    def _is_proxy(self, host: str) -> bool:
        try:
            return any(ip_address(host) in network for network in self._proxies)
        except ValueError:
            return False

    def _sweep(self) -> None:
        now = time.monotonic()
        late = [connection for connection in self._address_of if self._is_late(connection, now)]
        for connection in late[:SWEEP_MAX]:
            address, unsent = self._address_of[connection], connection.unsent_bytes
            log.warning("http_answer_unread", address=address, unsent_bytes=unsent)
            self._give_up(connection, "unread")
        if not self._address_of:
            self._sweeping = None
            return
        after_s = SWEEP_AGAIN_S if len(late) > SWEEP_MAX else self._sweep_s
        self._sweeping = asyncio.get_running_loop().call_later(after_s, self._sweep)

    def _is_late(self, connection: Limited, now: float) -> bool:
        unsent = connection.unsent_bytes
        if not unsent:
            self._unread.pop(connection, None)
            return False
        drains, marked, since = self._unread.setdefault(connection, (connection.drains, unsent, now))
        # A stream refills the buffer as the client reads, so the unsent bytes may stay the same.
        if connection.drains != drains or unsent <= marked - UNREAD_PROGRESS_BYTES:
            self._unread[connection] = (connection.drains, unsent, now)
            return False
        return now - since > self._unread_limit_s
