"""Connections for short commands: no pool to ask, no task for a write. One takes a third of the driver's CPU time.

What else is asked of a server (transactions, what it says of itself) goes through the driver, and so does everything
over TLS.
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

Word = str | bytes | int | float

_pack: Final[Callable[[tuple[Word, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment]


class Lines:
    """Some connections to one server, opened as they are needed. Answers to one command at a time on each, while
    there are enough of them."""

    def __init__(self, url: str, *, most: int, connect_timeout_s: float, timeout_s: float) -> None:
        self._place: dict[str, Any] = dict(parse_url(url))
        self._most = most
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._open: list[_Line] = []
        self._begun: set[asyncio.Task[_Line]] = set()
        """Connections that are being made; they count as well."""

    @staticmethod
    def fit(url: str) -> bool:
        return urlsplit(url).scheme in PLAIN_SCHEMES

    async def execute_command(self, *words: Word) -> Any:
        return await self._ask(await self.line(), words)

    async def line(self) -> "_Line":
        """One connection, for several commands behind each other. Who gives up waiting for an answer has to close."""
        return self._free() or await self._another()

    async def aclose(self) -> None:
        for line in list(self._open):
            line.cut()

    def _free(self) -> "_Line | None":
        return next((each for each in self._open if not each.waiting), None)

    async def _ask(self, line: "_Line", words: Sequence[Word]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await line.send(words)
        except TimeoutError as error:
            # What it answers later would be taken for the answer to something else.
            line.cut()
            raise exceptions.TimeoutError(f"no answer within {self._timeout_s:g} s") from error

    async def _another(self) -> "_Line":
        """A new connection while there may be more of them, else the least busy one."""
        deadline = time.monotonic() + self._connect_timeout_s
        while len(self._open) + len(self._begun) >= self._most:
            if self._open:
                return min(self._open, key=_how_busy)
            await asyncio.wait(self._begun, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() >= deadline:
                raise self._no_connection()
        begun = asyncio.create_task(self._connected())
        self._begun.add(begun)
        begun.add_done_callback(self._begun.discard)
        return await begun

    def _no_connection(self) -> exceptions.TimeoutError:
        return exceptions.TimeoutError(f"no connection within {self._connect_timeout_s:g} s")

    async def _connected(self) -> "_Line":
        loop, place = asyncio.get_running_loop(), self._place
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if "path" in place:
                    _, line = await loop.create_unix_connection(lambda: _Line(self._open), place["path"])
                else:
                    _, line = await loop.create_connection(
                        lambda: _Line(self._open), place.get("host", "localhost"), place.get("port", 6379)
                    )
        except TimeoutError as error:
            raise self._no_connection() from error
        try:
            if place.get("password"):
                await self._ask(line, ["AUTH", *filter(None, (place.get("username"), place["password"]))])
            if place.get("db"):
                await self._ask(line, ["SELECT", place["db"]])
        except BaseException:
            line.cut()
            raise
        self._open.append(line)
        return line


class _Line(asyncio.Protocol):
    """One connection. The server answers in the order in which it is asked."""

    def __init__(self, among: list["_Line"]) -> None:
        self._among = among
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=_reply_error, protocolError=exceptions.InvalidResponse)
        self.waiting: deque[asyncio.Future[Any]] = deque()

    def send(self, words: Sequence[Word]) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            answer.set_exception(exceptions.ConnectionError("the server closed the connection"))
            return answer
        self.waiting.append(answer)
        self._transport.write(_pack(tuple(words)))
        return answer

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                asked = self.waiting.popleft()
                if asked.done():
                    continue
                if isinstance(answer, Exception):
                    asked.set_exception(answer)
                else:
                    asked.set_result(answer)
        except (exceptions.InvalidResponse, IndexError) as error:
            self._fail(exceptions.ConnectionError(f"the server answers what is no answer: {error}"))
            self.cut()

    def connection_lost(self, error: Exception | None) -> None:
        self._forget()
        self._fail(exceptions.ConnectionError(str(error) if error else "the server closed the connection"))

    def _fail(self, error: Exception) -> None:
        while self.waiting:
            asked = self.waiting.popleft()
            if not asked.done():
                asked.set_exception(error)

    def _forget(self) -> None:
        if self in self._among:
            self._among.remove(self)


def _how_busy(line: _Line) -> int:
    return len(line.waiting)


def _reply_error(text: str) -> exceptions.ResponseError:
    """As the driver tells them apart, where somebody here does."""
    if text.startswith("NOSCRIPT "):
        return exceptions.NoScriptError(text)
    if text.startswith(("WRONGPASS ", "NOAUTH ")):
        return exceptions.AuthenticationError(text)  # type: ignore[return-value]
    return exceptions.ResponseError(text)
