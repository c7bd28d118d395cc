"""An operator's terminal: a line is typed, sent to the server as it is, and the answer is read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hiredis

READ_BYTES = 1 << 16


class Terminal:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers: Any = hiredis.Reader(encoding="utf-8")

    @classmethod
    @asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator["Terminal"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()

    async def type(self, line: str) -> Any:
        """The line ends where the person presses Enter; the server splits it into words, quotes and all."""
        self._writer.write(f"{line}\r\n".encode())
        while (answer := self._answers.gets()) is False:
            self._answers.feed(await self._reader.read(READ_BYTES))
        assert not isinstance(answer, hiredis.ReplyError), f"{line}: {answer}"
        return answer
