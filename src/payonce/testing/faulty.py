"""Applies a fault plan to a simulator: an ASGI application that behaves like a failing vendor.

It runs behind the in-process transport of `payonce.kit.http` and, with `over_sockets`, behind a real server. There an
open connection cannot be refused: it is dropped, and the client cannot know that nothing was carried out.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from payonce.kit.http import AnswerLost, Application, ConnectionRefused, TimedOut
from payonce.testing.faults import Fault

SILENCE_MAX_S: Final = 60.0
"""How long a client behind a socket waits for a response, unless it disconnects before."""
RETRY_AFTER_S: Final = 1
DIGITS: Final = bytes.maketrans(b"0123456789", b"1234567890")

SLOW_S: Final = 0.1
LATE_S: Final = 1.0

Event = dict[str, Any]


class Draws(Protocol):
    """Draws faults: a FaultPlan, or a Script."""

    def draw(self, route: str, call: str, number: int) -> Fault | None: ...


@dataclass(frozen=True)
class Request:
    scope: Any
    body: bytes

    @property
    def route(self) -> str:
        return f"{self.scope['method']} {self.scope['path']}"

    @property
    def identity(self) -> str:
        """Equal for repeated calls. Of the headers it includes only the vendor's idempotency key."""
        key = next((value for name, value in self.scope["headers"] if name == b"idempotency-key"), b"")
        parts = (self.scope["query_string"], key, self.body)
        return hashlib.blake2b(b"\x00".join(parts), digest_size=16).hexdigest()


@dataclass
class Answer:
    status: int = 500
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""


class Faulty:
    """A simulator with faults. `enacted` counts them; late calls are in `held` until `late_s` have passed or deliver()
    is called."""

    def __init__(
        self,
        application: Application,
        plan: Draws,
        *,
        over_sockets: bool = False,
        slow_s: float = SLOW_S,
        retry_after_s: int = RETRY_AFTER_S,
        late_s: float | None = None,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._application = application
        self._plan = plan
        self._over_sockets = over_sockets
        self._slow_s = slow_s
        self._retry_after = str(retry_after_s).encode()
        self._late_s = late_s
        self._wait = wait
        self._calls: Counter[str] = Counter()
        self._timers: set[asyncio.Task[None]] = set()
        self.enacted: Counter[Fault] = Counter()
        self.held: list[Request] = []
        self.silent = asyncio.Event()
        """Set when a client behind a socket gets no response; the waiting test clears it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request = Request(scope, await _body(receive))
        call = f"{request.route} {request.identity}"
        self._calls[call] += 1
        fault = self._plan.draw(request.route, request.identity, self._calls[call])
        if fault is None:
            await _respond(send, await self._carry_out(request))
            return
        self.enacted[fault] += 1
        await self._enact(fault, request, receive, send)

    async def deliver(self) -> int:
        """Carries out delayed calls in the order of arrival; returns their number."""
        count = 0
        while self.held:
            await self._carry_out(self.held.pop(0))
            count += 1
        return count

    async def close(self) -> None:
        """Carries out all delayed calls."""
        for timer in list(self._timers):
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        await self.deliver()

    async def _enact(self, fault: Fault, request: Request, receive: Any, send: Any) -> None:
        match fault:
            case Fault.REFUSED_CONNECTION:
                await self._drop(send, ConnectionRefused())
            case Fault.TOO_MANY_REQUESTS:
                await _respond(send, Answer(429, ((b"retry-after", self._retry_after),), b"slow down"))
            case Fault.ERROR_BEFORE:
                await _respond(send, Answer(503, (), b"out of order"))
            case Fault.TIMEOUT_BEFORE:
                await self._be_silent(receive)
            case Fault.LATE:
                self._hold(request)
                await self._drop(send, AnswerLost())
            case Fault.SLOW:
                await self._wait(self._slow_s)
                await _respond(send, await self._carry_out(request))
            case Fault.DUPLICATE:
                answer = await self._carry_out(request)
                await self._carry_out(request)
                await _respond(send, answer)
            case _:
                await self._enact_after(fault, await self._carry_out(request), receive, send)

    async def _enact_after(self, fault: Fault, answer: Answer, receive: Any, send: Any) -> None:
        match fault:
            case Fault.ERROR_AFTER:
                await _respond(send, Answer(502, (), b"bad gateway"))
            case Fault.TIMEOUT_AFTER:
                await self._be_silent(receive)
            case Fault.ANSWER_LOST:
                await self._drop(send, AnswerLost())
            case Fault.WRONG_ANSWER:
                await _respond(send, Answer(answer.status, answer.headers, answer.body.translate(DIGITS)))
            case Fault.MALFORMED_ANSWER:
                await _respond(send, Answer(answer.status, answer.headers, answer.body[: len(answer.body) // 2]))
            case _:
                raise AssertionError(f"{fault} is not enacted")

    async def _carry_out(self, request: Request) -> Answer:
        """Calls the application and captures its response; the fault decides whether the client gets it."""
        answer, parts = Answer(), []
        body = [{"type": "http.request", "body": request.body, "more_body": False}]

        async def receive() -> Event:
            return body.pop() if body else {"type": "http.disconnect"}

        async def send(event: Any) -> None:
            if event["type"] == "http.response.start":
                kept = [(name, value) for name, value in event.get("headers", ()) if name.lower() != b"content-length"]
                answer.status, answer.headers = event["status"], tuple(kept)
            else:
                parts.append(event.get("body", b""))

        await self._application(dict(request.scope), receive, send)
        answer.body = b"".join(parts)
        return answer

    def _hold(self, request: Request) -> None:
        self.held.append(request)
        if self._late_s is not None:
            timer = asyncio.create_task(self._deliver_later(request, self._late_s))
            self._timers.add(timer)
            timer.add_done_callback(self._timers.discard)

    async def _deliver_later(self, request: Request, late_s: float) -> None:
        await self._wait(late_s)
        if request in self.held:
            self.held.remove(request)
            await self._carry_out(request)

    async def _drop(self, send: Any, fault: Exception) -> None:
        if not self._over_sockets:
            raise fault
        # A server closes the connection when an application sends less than it declared.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})

    async def _be_silent(self, receive: Any) -> None:
        if not self._over_sockets:
            raise TimedOut
        self.silent.set()
        try:
            async with asyncio.timeout(SILENCE_MAX_S):
                while (await receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return


def faulty_over_sockets(application: Application, plan: Draws) -> Faulty:
    """A faulty simulator for other processes: late calls arrive by themselves, and refused clients may retry at
    once."""
    return Faulty(application, plan, over_sockets=True, retry_after_s=0, late_s=LATE_S)


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        event = await receive()
        parts.append(event.get("body", b""))
        if not event.get("more_body", False):
            return b"".join(parts)


async def _respond(send: Any, answer: Answer) -> None:
    headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
