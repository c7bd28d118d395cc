"""One connection to a server: HTTP/1.1, one request at a time, and whether another may follow."""

import asyncio
import re
from functools import lru_cache
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from payonce.kit.http.failures import BodyTooLarge, Broken, Unsendable
from payonce.kit.http.response import Attempt
from payonce.kit.http.transport import Outgoing

HEAD_MAX_BYTES: Final = 64 * 1024
FRAMING_MAX: Final = 8
"""With a body there comes at most so many times as much around it: a chunk of one byte takes six."""
WITHOUT_LENGTH: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""A request of these has no body unless it says so; of any other the length is said, also of none."""
INTERIM: Final = range(100, 200)
NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NAMES_KEPT: Final = 1_000
DROPPED: Final = "the connection dropped before an answer"
NO_HTTP: Final = "the answer was not HTTP"


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: Any = None
        self._parser = HttpResponseParser(self)
        self._end: asyncio.Future[None] | None = None
        self._expect(Attempt(0), "")

    def _expect(self, attempt: Attempt, method: str) -> None:
        self._attempt = attempt
        self._has_body = method != "HEAD"
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._is_begun = self._is_complete = self._may_go_on = self._is_spoilt = False
        self._received_bytes = self._body_bytes = 0

    async def exchange(self, request: bytes, method: str, attempt: Attempt) -> None:
        """Sends, and tells the attempt what comes back. Raises Broken, or what the attempt does; after that, as after
        a cancellation, the connection is of no use any more."""
        if not self.is_open:
            raise Broken(DROPPED)
        self._expect(attempt, method)
        self._end = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._end
        finally:
            self._end = None

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Asked after an exchange: whether it ended where the next one can begin."""
        return self._may_go_on and not self._is_spoilt and self.is_open and self._transport.get_write_buffer_size() == 0

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, problem: Exception | None) -> None:
        told = self._attempt.headers
        if not self._status:
            self._finish(Broken(DROPPED))
        elif problem is None and "Content-Length" not in told and "Transfer-Encoding" not in told:
            self._finish()
        else:
            self._finish(Broken("the answer was cut short"))

    def data_received(self, data: bytes) -> None:
        if self._end is None:
            # Nobody asked: whatever it is, it must not pass for the answer to the next request.
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade):
            if not self._is_complete:
                self._finish(Broken(NO_HTTP))
                return
            self._is_spoilt = True
        self._received_bytes += len(data)
        try:
            self._pass_on()
        except (Broken, BodyTooLarge) as failure:
            self._finish(failure)

    def on_message_begin(self) -> None:
        self._is_spoilt = self._is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:
            self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() in INTERIM:
            self._headers = []
        elif not self._status:
            self._status = self._parser.get_status_code()

    def on_body(self, chunk: bytes) -> None:
        if not self._is_complete:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        if self._status and not self._is_complete:
            self._is_complete = True
            # A moment later the parser has forgotten.
            self._may_go_on = bool(self._parser.should_keep_alive())

    def _pass_on(self) -> None:
        """What the parser found, outside of it: it swallows what its callbacks raise."""
        if self._status and not self._is_begun:
            self._is_begun = True
            self._attempt.begin(self._status, self._headers)
        for chunk in self._chunks:
            self._body_bytes += len(chunk)
            if self._has_body:
                self._attempt.feed(chunk)
        self._chunks.clear()
        is_enough = (self._is_begun and not self._has_body) or (self._body_bytes and not self._attempt.wants_body)
        if self._is_complete or is_enough:
            self._finish()
        elif self._received_bytes > HEAD_MAX_BYTES + FRAMING_MAX * self._body_bytes:
            raise Broken(NO_HTTP)

    def _finish(self, failure: Exception | None = None) -> None:
        if self._end is None or self._end.done():
            return
        if failure is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(failure)


def written(outgoing: Outgoing) -> bytes:
    """As it goes over the wire. Its parts were checked before; that each is a line and a line alone is looked at once
    more: whatever ends one too early begins a header, or a request, of somebody else's."""
    target, body = outgoing.target, outgoing.body
    place = f"{target.path}?{target.query}" if target.query else target.path
    lines = [f"{outgoing.method} {place} HTTP/1.1", f"Host: {target.authority}"]
    lines += [f"{name}: {value}" for name, value in outgoing.headers]
    if body is not None or outgoing.method not in WITHOUT_LENGTH:
        lines.append(f"Content-Length: {len(body or b'')}")
    head = "\r\n".join([*lines, "", ""])
    ends = len(lines) + 1
    if (
        head.count("\r") != ends
        or head.count("\n") != ends
        or "\0" in head
        or lines[0].count(" ") != 2
        or not all(is_name(name) for name, _ in outgoing.headers)
    ):
        raise Unsendable("the request has a part that would not be a line of its own")
    return head.encode() + (body or b"")


@lru_cache(maxsize=NAMES_KEPT)
def is_name(text: str) -> bool:
    """Whether a header can have it."""
    return NAME.fullmatch(text) is not None
