"""The transport of production: kept connections, to addresses resolved once, judged, and judged again at the socket."""

import asyncio
import os
import socket
import ssl
import time
from functools import cache
from ipaddress import IPv4Address, ip_address
from typing import Any, Final

from aiohappyeyeballs import start_connection

from payonce.kit.http.connection import Connection, written
from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.http.target import Target, judge
from payonce.kit.http.transport import Outgoing, Resolve, resolve_once

IDLE_MAX_S: Final = 4.0
"""Node and uvicorn hang up on a connection idle for 5 s; writing to one at that moment ends as unknown."""
NEXT_ADDRESS_S: Final = 0.25
"""After so long without a connection the next address of the host is tried beside it, as RFC 8305 has it."""

Place = tuple[str, str, int]


class SocketTransport:
    def __init__(
        self,
        *,
        connect_timeout_s: float,
        connections_max: int,
        allow_private: bool,
        resolve: Resolve | None,
        tls: ssl.SSLContext | None,
        idle_max_s: float = IDLE_MAX_S,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._allow_private = allow_private
        self._resolve = resolve or _resolve_by_system
        self._tls = tls
        self._idle_max_s = idle_max_s
        self._free = asyncio.Semaphore(connections_max)
        self._kept: dict[Place, list[Connection]] = {}
        """Idle ones; the one that was used last stands last."""
        self._busy: set[Connection] = set()
        self._is_closed = False
        self._sweep: asyncio.TimerHandle | None = None

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        request, target = written(outgoing), outgoing.target
        place = (target.scheme, target.host, target.port)
        if not self._free.locked() and (connection := self._take(place)) is not None:
            await self._free.acquire()
        else:
            connection = await self._waited_for(target, place)
        if self._is_closed:
            self._free.release()
            connection.abort()
            raise Broken("the client was closed")
        attempt.may_have_left = True
        self._busy.add(connection)
        try:
            # Never a second time on another connection, whatever becomes of this one.
            await connection.exchange(request, outgoing.method, attempt)
        finally:
            self._busy.discard(connection)
            self._free.release()
            if connection.is_reusable and not self._is_closed:
                self._keep(connection, place)
            else:
                connection.abort()

    async def close(self) -> None:
        """Also for those who wait for a connection: what has not been sent is not sent any more."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self._busy, *(each for kept in self._kept.values() for each in kept)]:
            connection.abort()
        self._kept.clear()
        # Sockets are closed when the loop comes round.
        await asyncio.sleep(0)

    async def _waited_for(self, target: Target, place: Place) -> Connection:
        """One that stands, counted among those in use."""
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._free.acquire()
                try:
                    return self._take(place) or await self._connect(target)
                except BaseException:
                    self._free.release()
                    raise
        except TimeoutError:
            raise Broken("no connection in time") from None
        except OSError as problem:
            raise Broken(_in_words(problem)) from None

    def _take(self, place: Place) -> Connection | None:
        kept = self._kept.get(place, [])
        while kept:
            connection = kept.pop()
            if connection.is_open and time.monotonic() - connection.idle_since < self._idle_max_s:
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection, place: Place) -> None:
        connection.idle_since = time.monotonic()
        self._kept.setdefault(place, []).append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_max_s, self._close_idle)

    def _close_idle(self) -> None:
        self._sweep = None
        before = time.monotonic() - self._idle_max_s
        for place, kept in list(self._kept.items()):
            for connection in [each for each in kept if each.idle_since <= before or not each.is_open]:
                kept.remove(connection)
                connection.abort()
            if not kept:
                del self._kept[place]
        if self._kept:
            self._sweep = asyncio.get_running_loop().call_later(self._idle_max_s, self._close_idle)

    async def _connect(self, target: Target) -> Connection:
        """To the addresses that were judged and to nothing else."""
        addresses = (
            [target.address]
            if target.address is not None
            else await resolve_once(self._resolve, target.host, target.port, allow_private=self._allow_private)
        )
        loop = asyncio.get_running_loop()
        connected = await start_connection(
            [_info(str(each), target.port, each) for each in addresses],
            happy_eyeballs_delay=NEXT_ADDRESS_S,
            interleave=1,
            loop=loop,
            socket_factory=self._guarded_socket,
        )
        tls = (self._tls or _usual_tls()) if target.scheme == "https" else None
        try:
            _, connection = await loop.create_connection(
                Connection, sock=connected, ssl=tls, server_hostname=target.host if tls else None
            )
        except BaseException:
            connected.close()
            raise
        return connection

    def _guarded_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """The second look, at the very address to be connected to, whichever way it came here."""
        family, kind, protocol, _, place = info
        if not self._allow_private:
            judge(place[0], [ip_address(place[0])])
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made


@cache
def _usual_tls() -> ssl.SSLContext:
    """Reading the certificates of the system takes a while."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _info(address: str, port: int, of: object) -> tuple[int, int, int, str, tuple[Any, ...]]:
    if isinstance(of, IPv4Address):
        return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)
    return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, 0, 0)


async def _resolve_by_system(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


def _in_words(problem: OSError) -> str:
    """Why no connection came to stand."""
    match problem:
        case ssl.SSLCertVerificationError():
            return f"the certificate was not accepted: {problem.verify_message or 'not valid for this host'}"
        case ssl.SSLError():
            return "TLS could not be agreed"
        case _:
            number = problem.errno
            return f"no connection: {os.strerror(number) if number else 'no address of the host could be reached'}"
