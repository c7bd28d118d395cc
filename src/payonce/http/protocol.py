"""HTTP/1.1 on one connection: limits on head, body and time; one request at a time."""

import asyncio
import time
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from payonce.engine.monitoring.metrics import HTTP_REQUESTS
from payonce.http.connections import Connections
from payonce.http.kit.problems import Problem, document
from payonce.http.request_head import check_head
from payonce.http.turns import Turns
from payonce.kit.log import get_logger
from payonce.kit.networks import network_of

HEAD_LIMIT_S: Final = 10.0
"""For the head of a request to arrive, from the connection or its first byte: a silent client must not hold one."""
HELD_LOOK_S: Final = 1.0
HEAD_MAX_BYTES: Final = 64 * 1024
"""Of everything before the body, and of trailers: it is held in memory before a key is checked."""
URL_MAX_BYTES: Final = 8 * 1024
HEADERS_MAX: Final = 200
HEAD_PART_BYTES: Final = 512
"""Parsed at once: usually one request, at most about twenty. The rest waits until these are answered."""
BODY_PART_BYTES: Final = 64 * 1024
"""Parsed at once of a body of known length, never beyond its end, where further requests may follow."""
CHUNKS_PART_BYTES: Final = 4 * 1024
"""Parsed in one turn of a chunked body: every chunk, however small, costs a call."""
CHUNKS_FIRST_BYTES: Final = 16 * 1024
"""The part of a chunked body that takes turns with requests; the rest is parsed when no other request waits."""
HEAD_END: Final = b"\r\n\r\n"

log = get_logger(__name__)


class _Flow(FlowControl):
    """Resumes reading when neither the server nor the protocol has a reason to wait."""

    _server_waits = False
    holding = False
    """Whether received data waits to be parsed."""

    def pause_reading(self) -> None:
        self._server_waits = True
        self._apply()

    def resume_reading(self) -> None:
        self._server_waits = False
        self._apply()

    def hold(self, holding: bool) -> None:
        self.holding = holding
        self._apply()

    def _apply(self) -> None:
        if self.holding or self._server_waits:
            super().pause_reading()
        else:
            super().resume_reading()


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection if the head of a request is late or too long; the server itself would wait and buffer without
    limit. Requests take turns with those of other connections."""

    head_limit_s: float = HEAD_LIMIT_S
    idle_since: float | None = None
    drains: int = 0
    _address = ""
    _head_due: asyncio.TimerHandle | None = None
    _in_head = False
    _heads_begun = 0
    _received_bytes = 0
    """Of an incomplete head, without the data in which it began, which may contain a whole body before it."""
    _read_bytes = 0
    """Of the head, as far as it is parsed."""
    _refusal: Problem | None = None
    _held = b""
    """Received data that is not yet parsed."""
    _in_body = False
    _body_begun = False
    _body_left_bytes: int | None = None
    """None for a chunked body, whose end only the parser knows."""
    _chunks_bytes = 0
    """Of a chunked body, as far as it is parsed."""
    _refused = False
    """Nothing more is parsed; earlier requests are still answered."""
    _queued = False
    """Whether this connection is waiting for its turn."""
    _current: RequestResponseCycle | None = None
    _begun_in_turn = False
    """Whether the request being parsed began in this turn."""
    _continuing = False
    """Set while a response ends and the next request of the connection starts."""

    def __init__(self, *, limits: Connections, turns: Turns, **server: Any) -> None:
        super().__init__(**server)
        self._limits = limits
        self._turns = turns

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def stalled(self) -> bool:
        return self.flow.write_paused or (self.transport.is_closing() and self.unsent_bytes > 0)

    def abort(self) -> None:
        self._disconnect()
        self.transport.abort()

    def resume_writing(self) -> None:
        self.drains += 1
        super().resume_writing()

    def _disconnect(self) -> None:
        """Notifies the request in progress; the server itself notifies only the last one it parsed."""
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._held += data
        if self._in_body and self._body_left_bytes is None:
            self._queue_chunks()
        elif self._in_body:
            self._parse_held()
        elif self._is_answering:
            self._flow.hold(True)
        else:
            # Connections that wait for a response before the next request have priority over pipelining ones.
            self._queue(pipelined=self._held.count(HEAD_END, 0, BODY_PART_BYTES) > 1)

    @property
    def _is_answering(self) -> bool:
        """Whether a complete request is being answered; data behind it waits unparsed."""
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _answering_earlier(self) -> RequestResponseCycle | None:
        """The request in progress, if it is not the one being parsed."""
        current = self._current
        if current is None or current.response_complete or (self.cycle is current and not self._in_head):
            return None
        return current

    def _queue(self, *, pipelined: bool) -> None:
        """Parses received data and starts its request when it is this connection's turn."""
        self._flow.hold(True)
        if not self._queued:
            self._queued = True
            self._turns.request(self._address, self._take_turn, pipelined=pipelined)

    def _queue_chunks(self) -> None:
        self._queue(pipelined=self._chunks_bytes >= CHUNKS_FIRST_BYTES)

    def _take_turn(self) -> None:
        self._queued = False
        if not self.transport.is_closing():
            self._parse_held()

    def _parse_held(self) -> None:
        """Parses in small parts up to the next complete request, since one read may contain thousands, and no more of a
        chunked body than one turn allows."""
        data, at, chunks_left = self._held, 0, CHUNKS_PART_BYTES
        while at < len(data) and not (self.transport.is_closing() or self._refused):
            if self._in_body:
                left = self._body_left_bytes
                if left is None:
                    if chunks_left <= 0:
                        break
                    chunks_left -= HEAD_PART_BYTES
                    self._chunks_bytes += HEAD_PART_BYTES
                size = HEAD_PART_BYTES if left is None else max(1, min(left, BODY_PART_BYTES))
            elif self._is_answering:
                break
            else:
                size = HEAD_PART_BYTES
            self._parse(data[at : at + size])
            at += size
        self._begun_in_turn = False
        self._held = b"" if self.transport.is_closing() or self._refused else data[at:]
        self._flow.hold(bool(self._held) or self._refused)
        if self._held and self._in_body:
            self._queue_chunks()

    def _parse(self, data: bytes) -> None:
        waiting_for = self._heads_begun if self._head_due is not None else 0
        super().data_received(data)
        if waiting_for and self._head_due is not None and self._heads_begun == waiting_for:
            self._received_bytes += len(data)
            if self._received_bytes > HEAD_MAX_BYTES:
                self._refusal = _HEAD_TOO_LONG
                self.send_400_response("")

    def on_response_complete(self) -> None:
        self._continuing = True
        super().on_response_complete()
        self._continuing = False
        if self._is_answering or self.transport.is_closing():
            return
        self.idle_since = time.monotonic()
        if self._held:
            self._queue(pipelined=True)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # Nothing is processed while the body is still arriving.
        self.idle_since = time.monotonic() if self._in_body and cycle is self.cycle else None
        self._current = cycle
        if not self._continuing:
            # It is this connection's turn.
            self._begun_in_turn = True
            super()._start_asgi_task(cycle, app)
            return

        def start() -> None:
            if not self.transport.is_closing():
                HttpToolsProtocol._start_asgi_task(self, cycle, app)

        self._turns.request(self._address, start, pipelined=True)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_MAX_BYTES:
            self._refuse(_URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._read_bytes += len(name) + len(value) + len(b": \r\n")
        if self._read_bytes + len(self.url) > HEAD_MAX_BYTES:
            self._refuse(_HEAD_TOO_LONG)
        if self._in_body:
            # A trailer, ignored: among the headers it would bypass proxies that set or remove them.
            return
        if len(self.headers) == HEADERS_MAX:
            self._refuse(_TOO_MANY_HEADERS)
        super().on_header(name, value)

    def _refuse(self, problem: Problem) -> None:
        """Raises: the parser stops at an exception and reports an unreadable request."""
        self._refusal = problem
        raise problem

    def send_400_response(self, msg: str) -> None:
        """Called by the server for a request that it cannot read."""
        if self.transport.is_closing() or self._refused:
            return
        if (earlier := self._answering_earlier()) is not None:
            # The client would take the refusal for the response to that request.
            self._refused = True
            earlier.keep_alive = False
            return
        problem = self._refusal or _UNREADABLE
        HTTP_REQUESTS.labels("other", "other", str(int(problem.status))).inc()
        answer = document("", problem)
        lines = [f"HTTP/1.1 {problem.status.value} {problem.status.phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self.idle_since = time.monotonic()
        host = self.client[0] if self.client is not None else ""
        self._address = network_of(host)
        if self._limits.admit(self, host):
            self._await_head()
        else:
            self._refusal = _TOO_MANY
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._heads_begun += 1
        self._received_bytes = self._read_bytes = 0
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_came()
        try:
            length = check_head(self.parser.get_http_version(), self.url, self.headers)
        except Problem as problem:
            self._refuse(problem)
        self._in_head, self._in_body, self._body_begun = False, True, False
        self._body_left_bytes, self._chunks_bytes = length, 0
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # Upgrades are not supported, and the parser reads no further request on this connection.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._body_begun = True
        if self._body_left_bytes is not None:
            self._body_left_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if self.cycle is self._current and not self.cycle.response_complete:
            self.idle_since = None
        if not self._body_begun or self._begun_in_turn or self.cycle is not self._current:
            super().on_message_complete()
            return
        # The request began in an earlier turn; processing its body waits for another.
        self._turns.request(self._address, partial(_end_body, self.cycle), pipelined=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.leave(self)
        self._disconnect()
        self._head_came()
        super().connection_lost(exc)
        # They refer to this connection and would keep it alive until the garbage collector runs.
        self.cycle, self._current = None, None  # type: ignore[assignment]
        self.pipeline.clear()
        self._held = b""

    def _await_head(self) -> None:
        if self._head_due is None:
            self._head_due = self.loop.call_later(self.head_limit_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._flow.holding:
            # The rest may be among the received data that waits for its turn.
            self._head_due = self.loop.call_later(HELD_LOOK_S, self._head_is_late)
        else:
            self.transport.close()

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


def _end_body(cycle: RequestResponseCycle) -> None:
    if not cycle.response_complete:
        cycle.more_body = False
        cycle.message_event.set()


_CLOSE: Final = {"Connection": "close"}
_UNREADABLE: Final = Problem(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP", headers=_CLOSE)
_URL_TOO_LONG: Final = Problem(
    HTTPStatus.REQUEST_URI_TOO_LONG, f"a URL has at most {URL_MAX_BYTES:,} bytes", headers=_CLOSE
)
_HEAD_TOO_LONG: Final = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"the head of a request has at most {HEAD_MAX_BYTES:,} bytes",
    headers=_CLOSE,
)
_TOO_MANY_HEADERS: Final = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a request has at most {HEADERS_MAX} headers", headers=_CLOSE
)
_TOO_MANY: Final = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too many connections are open, in all or from this address; try again later",
    headers=_CLOSE | {"Retry-After": "5"},
)
