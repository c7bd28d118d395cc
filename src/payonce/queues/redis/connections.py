"""Connections for short commands, without the driver's pool and tasks: a third of its CPU time.

Everything else (transactions, server information, TLS) goes through the driver.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import hiredis
from redis import exceptions
from redis.asyncio.connection import parse_url

PLAIN_SCHEMES: Final = ("redis", "unix")

Argument = str | bytes | int | float

_pack: Final[Callable[[tuple[Argument, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment]


class ConnectionPool:
    """Connections to one server, opened as needed. While there are enough, each carries one command at a time."""

    def __init__(self, url: str, *, most: int, connect_timeout_s: float, timeout_s: float) -> None:
        self._address: dict[str, Any] = dict(parse_url(url))
        self._limit = most
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._open: list[_Connection] = []
        self._opening: set[asyncio.Task[_Connection]] = set()
        """Connections being opened; they count towards the limit."""

    @staticmethod
    def supports(url: str) -> bool:
        return urlsplit(url).scheme in PLAIN_SCHEMES

    async def execute_command(self, *arguments: Argument) -> Any:
        return await self._request(await self.connection(), arguments)

    async def connection(self) -> "_Connection":
        """Returns one connection for pipelined commands. A caller that stops waiting for a response must close it."""
        return self._free() or await self._connect_or_share()

    async def aclose(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def _free(self) -> "_Connection | None":
        return next((each for each in self._open if not each.waiting), None)

    async def _request(self, connection: "_Connection", arguments: Sequence[Argument]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await connection.send(arguments)
        except TimeoutError as error:
            # A late response would be taken for the response to a later command.
            connection.abort()
            raise exceptions.TimeoutError(f"no answer within {self._timeout_s:g} s") from error

    async def _connect_or_share(self) -> "_Connection":
        """Opens a connection if the limit allows, else returns the least busy one."""
        deadline = time.monotonic() + self._connect_timeout_s
        while len(self._open) + len(self._opening) >= self._limit:
            if self._open:
                return min(self._open, key=_load)
            await asyncio.wait(self._opening, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() >= deadline:
                raise self._no_connection()
        opening = asyncio.create_task(self._connect())
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return await opening

    def _no_connection(self) -> exceptions.TimeoutError:
        return exceptions.TimeoutError(f"no connection within {self._connect_timeout_s:g} s")

    async def _connect(self) -> "_Connection":
        loop, address = asyncio.get_running_loop(), self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if "path" in address:
                    _, connection = await loop.create_unix_connection(lambda: _Connection(self._open), address["path"])
                else:
                    _, connection = await loop.create_connection(
                        lambda: _Connection(self._open), address.get("host", "localhost"), address.get("port", 6379)
                    )
        except TimeoutError as error:
            raise self._no_connection() from error
        try:
            if address.get("password"):
                await self._request(connection, ["AUTH", *filter(None, (address.get("username"), address["password"]))])
            if address.get("db"):
                await self._request(connection, ["SELECT", address["db"]])
        except BaseException:
            connection.abort()
            raise
        self._open.append(connection)
        return connection


class _Connection(asyncio.Protocol):
    """One connection. The server responds in the order of requests."""

    def __init__(self, pool: list["_Connection"]) -> None:
        self._pool = pool
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_reply_error, protocolError=exceptions.InvalidResponse)
        self.waiting: deque[asyncio.Future[Any]] = deque()

    def send(self, arguments: Sequence[Argument]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            answer.set_exception(exceptions.ConnectionError("the server closed the connection"))
            return answer
        self.waiting.append(answer)
        self._transport.write(_pack(tuple(arguments)))
        return answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                pending = self.waiting.popleft()
                if pending.done():
                    continue
                if isinstance(answer, Exception):
                    pending.set_exception(answer)
                else:
                    pending.set_result(answer)
        except (exceptions.InvalidResponse, IndexError) as error:
            self._fail(exceptions.ConnectionError(f"the server sent an invalid response: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        self._fail(exceptions.ConnectionError(str(error) if error else "the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        while self.waiting:
            pending = self.waiting.popleft()
            if not pending.done():
                pending.set_exception(error)

    def _forget(self) -> None:
        if self in self._pool:
            self._pool.remove(self)


def _load(connection: _Connection) -> int:
    return len(connection.waiting)


def _reply_error(text: str) -> exceptions.ResponseError:
    """Maps errors to the driver's exceptions, as far as callers distinguish them."""
    if text.startswith("NOSCRIPT "):
        return exceptions.NoScriptError(text)
    if text.startswith(("WRONGPASS ", "NOAUTH ")):
        return exceptions.AuthenticationError(text)  # type: ignore[return-value]
    return exceptions.ResponseError(text)
