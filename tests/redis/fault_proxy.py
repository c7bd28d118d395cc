"""A proxy between a Redis client and its server that closes, or stops forwarding, after the k-th command."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import hiredis

PLUMBING = frozenset({"AUTH", "CLIENT", "COMMAND", "HELLO", "INFO", "PING", "SCRIPT", "SELECT"})
"""Commands by which a client introduces itself: they change no message and are not counted."""
WORD_MAX_LENGTH = 20
READ_BYTES = 1 << 16


class FaultKind(StrEnum):
    """What happens behind the k-th command, once the server has carried it out."""

    NONE = "none"
    DEATH = "death"
    """The client never hears of it, nor of anything else: its process is gone."""
    STOP = "stop"
    """The client hears of it when it is woken: its process stood still."""


class FaultProxy:
    """Listens on a port of its own; `url` leads through it. One proxy stands for the connections of one process."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._wires: set[Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.fault = FaultKind.NONE
        self.behind = 0
        self.carried: list[str] = []
        """The first words of the commands that the server was given, plumbing left out."""
        self.accepted = 0
        """Connections that were begun, also those that led nowhere."""
        self.struck = asyncio.Event()
        self.passable = asyncio.Event()
        self.passable.set()
        self.closed = False

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def upstream_url(self) -> str:
        return f"redis://127.0.0.1:{self._upstream_port}/0"

    @classmethod
    @asynccontextmanager
    async def open(cls, upstream_port: int) -> AsyncIterator["FaultProxy"]:
        proxy = cls(upstream_port)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            await proxy._close()

    def strike(self, fault: FaultKind, behind: int) -> None:
        """From now on `behind` commands pass, and then the fault falls."""
        self.fault, self.behind = fault, behind
        self.carried.clear()

    def wake(self) -> None:
        self.fault = FaultKind.NONE
        self.passable.set()

    def freeze(self) -> None:
        """Nothing passes in either direction, and no connection breaks: a network that is gone."""
        self.passable.clear()

    def fall(self) -> None:
        """The fault itself."""
        if self.fault is FaultKind.DEATH:
            self.closed = True
            self.break_all()
        self.passable.clear()
        self.struck.set()

    def break_all(self) -> None:
        for wire in list(self._wires):
            wire.cut()

    @property
    def is_due(self) -> bool:
        return self.fault is not FaultKind.NONE and len(self.carried) >= self.behind and not self.struck.is_set()

    async def _close(self) -> None:
        self.closed = True
        self.passable.set()
        self.break_all()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._remember(asyncio.current_task())
        self.accepted += 1
        try:
            if self.closed:
                raise ConnectionError
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.transport.abort()
            return
        wire = Wire(self, reader, writer, server_reader, server_writer)
        if self.closed:  # meanwhile: nobody would cut this one any more
            wire.cut()
            return
        self._wires.add(wire)
        for pump in (wire.carry_requests(), wire.carry_answers()):
            self._remember(asyncio.create_task(wire.guarded(pump)))

    def forget(self, wire: "Wire") -> None:
        self._wires.discard(wire)

    def _remember(self, task: "asyncio.Task[None] | None") -> None:
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(eq=False)
class Wire:
    """One connection through the proxy."""

    proxy: FaultProxy
    client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    _unanswered: deque[bool] = field(default_factory=deque)
    """One per command that the server has not answered: whether the fault falls behind it."""
    _answers: Any = field(default_factory=hiredis.Reader)

    def cut(self) -> None:
        self.to_client.transport.abort()
        self.to_server.transport.abort()

    async def guarded(self, pump: Coroutine[Any, Any, None]) -> None:
        # The last is what uvloop says of a transport that was cut.
        with suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
            await pump
        self.cut()
        self.proxy.forget(self)

    async def carry_requests(self) -> None:
        while True:
            request, word = await read_command(self.client)
            counted = word not in PLUMBING
            if counted and self.proxy.is_due:
                # Only behind nothing at all: every other fault falls with the answer.
                self.proxy.fall()
            await self.proxy.passable.wait()
            if counted:
                self.proxy.carried.append(word)
            self._unanswered.append(counted and self.proxy.is_due)
            self.to_server.write(request)
            await self.to_server.drain()
            if self._unanswered and self._unanswered[-1]:
                # Whatever comes behind it in one write waits for the fault.
                await self.proxy.struck.wait()

    async def carry_answers(self) -> None:
        while part := await self.server.read(READ_BYTES):
            self._answers.feed(part)
            while self._answers.gets() is not False:
                if self._unanswered.popleft():
                    self.proxy.fall()
            await self.proxy.passable.wait()
            self.to_client.write(part)
            await self.to_client.drain()


async def read_command(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """One command as it came, and its first word: an array of strings, or a line that a person typed."""
    head = await reader.readuntil(b"\r\n")
    if not head.startswith(b"*"):
        return head, head.split()[0].decode().upper() if head.split() else ""
    parts, word = [head], ""
    for place in range(int(head[1:])):
        length = await reader.readuntil(b"\r\n")
        value = await reader.readexactly(int(length[1:]) + 2)
        parts += [length, value]
        if place == 0:
            word = value[:WORD_MAX_LENGTH].strip().decode().upper()
    return b"".join(parts), word
