"""A door between a worker and PostgreSQL that loses, withholds and delays what passes, at the statement it is told to.

It reads just enough of the protocol to know which statement a request runs and where its answer ends.
"""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from payonce.queues.postgres import statements

READY_FOR_QUERY = b"Z"
SOCKET_NAME = ".s.PGSQL.5432"

COMMIT = "COMMIT"
CLAIM = statements.SETTLE_AND_CLAIM
FENCE = statements.SETTLE_WITHIN
SWEEP = statements.DEAD


class Fate(StrEnum):
    """What becomes of one statement."""

    PASSED = "passed"
    """Only counted."""
    REQUEST_LOST = "request lost"
    """The connection breaks before the server hears of it."""
    ANSWER_LOST = "answer lost"
    """The server has done it; the connection breaks before the client hears of that."""
    ANSWER_HELD = "answer held"
    """The server has done it; the client hears of it when the answers are let through."""


@dataclass
class Rule:
    """For the next `times` statements that hold `words`, or consist of them in whatever case."""

    words: str
    fate: Fate
    times: int = 1
    met: int = 0
    let_through: asyncio.Event = field(default_factory=asyncio.Event)

    def is_used_up(self) -> bool:
        return self.met >= self.times

    def is_for(self, statement: str) -> bool:
        return self.words in statement or statement.rstrip(";").lower() == self.words.lower()


class Proxy:
    """Listens on a socket of its own; `url` leads through it."""

    def __init__(self, upstream: Path, url: str) -> None:
        self._upstream = upstream
        self.url = url
        self._rules: list[Rule] = []
        self._wires: set[Wire] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.passable = asyncio.Event()
        self.passable.set()
        self.refusing = False

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["Proxy"]:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        upstream = Path(query["host"][0], f".s.PGSQL.{query['port'][0]}")
        # Short, because the path of a socket is at most 107 bytes long.
        folder = Path(tempfile.mkdtemp(prefix="payonce-proxy-"))
        proxy = cls(upstream, f"postgresql://{parts.netloc}{parts.path}?host={folder}&port=5432")
        server = await asyncio.start_unix_server(proxy._accept, folder / SOCKET_NAME)
        try:
            yield proxy
        finally:
            server.close()
            await proxy._close()
            shutil.rmtree(folder)

    def expect(self, words: str, fate: Fate, times: int = 1) -> Rule:
        rule = Rule(words, fate, times)
        self._rules.append(rule)
        return rule

    def freeze(self) -> None:
        """From now on nothing passes in either direction, and no connection breaks: a network that is gone."""
        self.passable.clear()

    def thaw(self) -> None:
        self.passable.set()

    def break_all(self) -> None:
        for wire in list(self._wires):
            wire.cut()

    def rule_for(self, statement: str) -> Rule | None:
        for rule in self._rules:
            if not rule.is_used_up() and rule.is_for(statement):
                rule.met += 1
                return rule
        return None

    async def _close(self) -> None:
        self.refusing = True
        self.passable.set()
        for rule in self._rules:
            rule.let_through.set()
        self.break_all()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._remember(asyncio.current_task())
        await self.passable.wait()
        if self.refusing:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_unix_connection(self._upstream)
        wire = Wire(self, reader, writer, server_reader, server_writer)
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

    proxy: Proxy
    client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    rule: Rule | None = None
    _texts: dict[bytes, str] = field(default_factory=dict)

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
        # The first message has no type byte.
        length = await self.client.readexactly(4)
        self.to_server.write(length + await self.client.readexactly(int.from_bytes(length, "big") - 4))
        while True:
            kind, body = await read_message(self.client)
            statement = self._statement(kind, body)
            if statement is not None and (rule := self.proxy.rule_for(statement)):
                if rule.fate is Fate.REQUEST_LOST:
                    return
                self.rule = None if rule.fate is Fate.PASSED else rule
            await self.proxy.passable.wait()
            self.to_server.write(framed(kind, body))
            await self.to_server.drain()

    async def carry_answers(self) -> None:
        while True:
            kind, body = await read_message(self.server)
            if self.rule is not None and self.rule.fate is Fate.ANSWER_LOST:
                if kind == READY_FOR_QUERY:
                    return
                continue
            if self.rule is not None and self.rule.fate is Fate.ANSWER_HELD:
                await self.rule.let_through.wait()
                self.rule = None
            await self.proxy.passable.wait()
            self.to_client.write(framed(kind, body))
            await self.to_client.drain()

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The text that this message runs: of a simple query, or of the prepared statement that it binds."""
        if kind == b"Q":
            query = body.rstrip(b"\0").decode()
            named = re.search(r"EXECUTE (\w+)", query)
            return query if named is None else query + self._texts.get(named[1].encode(), "")
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text.decode()
        if kind == b"B":
            return self._texts.get(body.split(b"\0", 2)[1], "")
        return None


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


def framed(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body
