"""aiohttp's connection with stricter rules: which answers count, and when another request may follow.

aiohttp reads bytes that no request asked for as the answer to the next request, reuses a connection whose request has
not left entirely, takes a reset for the end of a body without a length, and does not bound a head as a whole.
"""

import asyncio
import re
from typing import Any, Final

from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from payonce.kit.http.failures import Broken

HEAD_MAX_BYTES: Final = 64 * 1024
FRAMING_MAX: Final = 8
"""Bytes of framing that one byte of a body may cost: a chunk of one byte takes six."""
HEAD_END: Final = b"\r\n\r\n"
MALFORMED: Final = re.compile(rb"\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""In a head: a line continued on the next one, or a control character. aiohttp lets both pass."""
SWITCHING_PROTOCOLS: Final = 101
DROPPED: Final = "the connection dropped before an answer"
CUT: Final = "the answer was cut short"
NO_HTTP: Final = "the answer was not HTTP"


class Connection(ResponseHandler):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._expect(is_asked=False)

    def _expect(self, *, is_asked: bool) -> None:
        self._is_asked = is_asked
        self._body: StreamReader | None = None
        self._has_second_answer = False
        self._received_bytes = 0
        self._last_of_head = b""

    @property
    def _is_complete(self) -> bool:
        """Whether the answer is complete, or no request is under way."""
        return not self._is_asked or (self._body is not None and self._body.is_eof())

    @property
    def should_close(self) -> bool:
        """Also while a part of the request has not left: the server would take it for the next one."""
        return super().should_close or (self.transport is not None and self.transport.get_write_buffer_size() > 0)

    def close(self) -> None:
        """Closes at once. aiohttp would first send the rest of a request that its caller has given up."""
        self.abort()

    def set_response_params(self, **options: Any) -> None:
        """Called by aiohttp before each request."""
        self._expect(is_asked=True)
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        if data and self._is_complete:
            self.abort()
            return
        rest = data
        # Head and body are parsed separately: the parser drops an answer with unreadable bytes after it.
        while rest and self._body is None and self.exception() is None:
            length = self._length_of_head(rest)
            self._parse(rest[:length])
            rest = rest[length:]
        if not self._is_complete and (rest or not data) and self.exception() is None:
            self._parse(rest)
            rest = b""
        if self._is_complete and (rest or self._has_more()):
            self.abort()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called by the parser with the head of each answer and the stream of its body."""
        message, body = data
        if self._body is not None:
            self._has_second_answer = True
            return
        if not 100 <= message.code < 200 or message.code == SWITCHING_PROTOCOLS:
            self._body = body
        super().feed_data(data, size)

    def connection_lost(self, problem: BaseException | None) -> None:
        if problem is not None and self._body is not None and not self._body.is_eof():
            # A body without a length ends with its connection, but not with a reset.
            self._body.set_exception(Broken(CUT))
        super().connection_lost(problem)

    def _parse(self, data: bytes) -> None:
        self._received_bytes += len(data)
        super().data_received(data)
        if self._is_complete:
            return
        body_bytes = 0 if self._body is None else self._body.total_bytes
        if self.exception() is not None or self._received_bytes > HEAD_MAX_BYTES + FRAMING_MAX * body_bytes:
            self._refuse()

    def _refuse(self) -> None:
        self.abort()
        self.set_exception(Broken(NO_HTTP))
        if self._body is not None:
            self._body.set_exception(Broken(NO_HTTP))

    def _length_of_head(self, data: bytes) -> int:
        """How many of these bytes belong to the head that is under way; all of them if it goes on."""
        seen = self._last_of_head + data
        end = seen.find(HEAD_END) + len(HEAD_END)
        head = seen[:end] if end >= len(HEAD_END) else seen
        if MALFORMED.search(head):
            self._refuse()
        length = len(head) - len(self._last_of_head)
        self._last_of_head = b"" if len(head) == end else seen[1 - len(HEAD_END) :]
        return length

    def _has_more(self) -> bool:
        """Whether the parser has read beyond the end of the answer."""
        if self._has_second_answer or self.exception() is not None:
            return True
        try:
            return self._parser is not None and self._parser.feed_eof() is not None
        except Exception:
            return True
