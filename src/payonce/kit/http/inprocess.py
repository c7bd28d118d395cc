"""The transport of tests and demos: an ASGI application in this process, without sockets.

A vendor's simulator runs under the production client this way, as behind a real server: it continues after the
client has given up, and its exceptions become a 500. A `Fault` simulates a network failure. An answer counts once the
application has returned, for frameworks answer 500 before they raise a `Fault` further.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import Context
from typing import Any, Final
from urllib.parse import unquote

from payonce.kit.http.failures import AnswerLost, BodyTooLarge, Broken, ConnectionRefused, Fault, TimedOut
from payonce.kit.http.response import Attempt
from payonce.kit.http.transport import Outgoing, Resolve, resolve_once
from payonce.kit.log import get_logger

Event = MutableMapping[str, Any]
Application = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]
]

CHUNK_BYTES: Final = 64 * 1024

log = get_logger(__name__)


class InProcessTransport:
    def __init__(self, application: Application, *, allow_private: bool, resolve: Resolve | None) -> None:
        """Names are resolved and checked only if `resolve` is given: there are no sockets to connect."""
        self._application = application
        self._allow_private = allow_private
        self._resolve = resolve
        self._running: set[asyncio.Task[None]] = set()

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        target = outgoing.target
        address = target.host
        if self._resolve is not None and target.address is None:
            found = await resolve_once(self._resolve, target.host, target.port, allow_private=self._allow_private)
            address = str(found[0])
        attempt.may_have_left = True
        conversation = _Conversation(outgoing, attempt)
        task = self._start(_scope(outgoing, address), conversation)
        try:
            ends: set[asyncio.Future[Any]] = {task, conversation.refused}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            conversation.hang_up()
        if conversation.refused.done():
            raise conversation.refused.result()
        _conclude(task, conversation, attempt)

    async def close(self) -> None:
        """Cancels the applications that still run for clients that gave up."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, scope: MutableMapping[str, Any], conversation: "_Conversation") -> asyncio.Task[None]:
        async def run() -> None:
            await self._application(scope, conversation.receive, conversation.send)

        # A context of its own: a server does not see its caller's context variables.
        task = asyncio.create_task(run(), context=Context())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Retrieved, or asyncio logs it when the client has gone.
            task.exception()


class _ClientGone(OSError):
    """Raised by `send` after the client has disconnected, as ASGI defines it."""


class _Conversation:
    """`receive` and `send` of one request."""

    def __init__(self, outgoing: Outgoing, attempt: Attempt) -> None:
        body = outgoing.body or b""
        self._parts = [body[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)] or [b""]
        self._without_body = outgoing.method == "HEAD"
        self._attempt = attempt
        self._over = asyncio.Event()
        self._received_bytes = 0
        self.is_started = False
        self.is_complete = False
        self.refused: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Why the client stopped reading this answer."""

    def hang_up(self) -> None:
        self._over.set()

    async def receive(self) -> Event:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Event) -> None:
        # Otherwise an application that only sends would block the event loop.
        await asyncio.sleep(0)
        if self.is_complete:
            raise RuntimeError(f"{message['type']} after the answer was complete")
        if self._over.is_set() or self.refused.done():
            raise _ClientGone("the client is gone")
        try:
            self._take(message)
        except (Broken, BodyTooLarge) as failure:
            self.refused.set_result(failure)
            raise _ClientGone("the client is gone") from None

    def _take(self, message: Event) -> None:
        kind = message["type"]
        if kind == "http.response.start" and not self.is_started:
            self.is_started = True
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
            self._attempt.begin(message["status"], headers)
        elif kind == "http.response.body" and self.is_started:
            chunk = b"" if self._without_body else message.get("body", b"")
            self._received_bytes += len(chunk)
            self._attempt.feed(chunk)
            if not message.get("more_body", False):
                self._complete()
        else:
            raise RuntimeError(f"unexpected {kind}")

    def _complete(self) -> None:
        stated = self._attempt.headers.get("Content-Length", "")
        if stated.isdigit() and int(stated) != self._received_bytes and not self._without_body:
            raise Broken("the answer was cut short")
        self.is_complete = True
        self._over.set()


def _conclude(task: asyncio.Task[None], conversation: _Conversation, attempt: Attempt) -> None:
    problem = Broken("the connection dropped before an answer") if task.cancelled() else task.exception()
    match _fault_in(problem):
        case ConnectionRefused():
            attempt.may_have_left = False
            raise Broken("no connection: Connection refused")
        case AnswerLost():
            raise Broken("the connection dropped before an answer")
        case TimedOut():
            raise Broken("no answer in time")
        case Broken() as dropped:
            raise dropped
    if problem is not None:
        log.error("http_application_failed", exc_info=problem)
    if not conversation.is_started:
        attempt.begin(500, [("Content-Type", "text/plain; charset=utf-8")])
        attempt.feed(b"Internal Server Error")
    elif not conversation.is_complete:
        raise Broken("the answer was cut short")


def _fault_in(problem: BaseException | None) -> BaseException | None:
    """Task groups of frameworks wrap the exceptions of their children."""
    if isinstance(problem, BaseExceptionGroup):
        return next((fault for each in problem.exceptions if isinstance(fault := _fault_in(each), Fault)), problem)
    return problem


def _scope(outgoing: Outgoing, address: str) -> MutableMapping[str, Any]:
    target = outgoing.target
    headers = [("host", target.origin.partition("://")[2]), *outgoing.headers]
    if outgoing.body is not None:
        headers.append(("content-length", str(len(outgoing.body))))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": outgoing.method,
        "scheme": target.scheme,
        "path": unquote(target.path),
        "raw_path": target.path.encode(),
        "query_string": target.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        "client": ("127.0.0.1", 0),
        "server": (address, target.port),
    }
