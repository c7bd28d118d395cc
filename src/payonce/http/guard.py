"""Middleware of every request: limits of body size and time, a trace id, and a response to every error."""

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from payonce.engine.monitoring.metrics import HTTP_REQUESTS
from payonce.http.body import refuse_many_values
from payonce.http.held_bodies import OF_THIS_PROCESS, HeldBodies, HeldBody
from payonce.http.hosts import Hosts
from payonce.http.kit.problems import EXPECTED, Problem, bug, document, problem_of
from payonce.kit.ids import new_id
from payonce.kit.log import get_logger

BODY_MAX_BYTES: Final = 1024 * 1024
"""Four times the limit of a message, whose own error can then name that limit."""
BODY_LIMIT_S: Final = 10.0
"""For a body to arrive in full, so that a slow sender cannot hold a connection for longer."""
ANSWER_LIMIT_S: Final = 30.0
"""Until a response begins; a stream may then take longer."""

FORWARDED_FOR: Final = (b"x-forwarded-for", b"forwarded")
TRACE_HEADER: Final = b"trace-id"
REQUEST_HEADER: Final = b"x-request-id"
CACHE_HEADER: Final = b"cache-control"
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = get_logger(__name__)


class Guard:
    """The outermost middleware: an exception that it does not catch would become the server's plain-text 500."""

    def __init__(
        self,
        app: ASGIApp,
        body_max_bytes: int = BODY_MAX_BYTES,
        body_limit_s: float = BODY_LIMIT_S,
        answer_limit_s: float = ANSWER_LIMIT_S,
        answer_limits_s: Mapping[str, float] | None = None,
        proxies_named: bool = True,
        hosts: Hosts | None = None,
        many_values: bool = False,
        bodies: HeldBodies = OF_THIS_PROCESS,
    ) -> None:
        self._app = app
        self._body_max_bytes = body_max_bytes
        self._body_limit_s = body_limit_s
        self._answer_limit_s = answer_limit_s
        self._answer_limits_s = answer_limits_s or {}
        """By path, for routes that respond when a run ends."""
        self._warn_of_proxy = not proxies_named
        self._hosts = hosts
        self._bodies = bodies
        self._many_values = many_values
        """Whether a JSON body may have any number of values, as messages in tasks may."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        answer = _Responder(scope, headers, send)
        if self._warn_of_proxy:
            self._warn_of_proxy_once(scope)
        body = None
        try:
            if self._hosts is not None:
                self._hosts.check(headers.get(b"host"))
            # One timer serves both limits, since every request pays for it.
            with HeldBody(self._bodies) as held:
                async with asyncio.timeout(self._body_limit_s) as limit:
                    body = await self._read_body(headers, receive, held)
                    if not self._many_values:
                        refuse_many_values(headers.get(b"content-type", b"").decode("latin-1"), body)
                    limit_s = self._answer_limits_s.get(scope["path"], self._answer_limit_s)
                    limit.reschedule(asyncio.get_running_loop().time() + limit_s)
                    answer.limit = limit
                    await self._app(scope, _receive_once(body, receive), answer.send)
        except _Disconnected:
            return
        except Exception as error:
            if answer.started:
                # Half a response is sent: the server closes the connection, so that no client takes it as complete.
                raise
            answer.limit = None
            late = body is None and isinstance(error, TimeoutError)
            problem = self._body_late() if late else _problem_of(error, scope)
            await document(scope["path"], problem, answer.trace_id)(scope, receive, answer.send)

    def _warn_of_proxy_once(self, scope: Scope) -> None:
        """Logs once that requests come through a proxy that the settings do not name."""
        if any(name in FORWARDED_FOR for name, _ in scope["headers"]):
            self._warn_of_proxy = False
            address = (scope.get("client") or ("unknown",))[0]
            log.warning(
                "proxy_not_trusted",
                address=address,
                name_it_in="PAYONCE_TRUSTED_PROXIES",
                until_then="limits on logins, API keys and connections treat all its clients as one address",
            )

    async def _read_body(self, headers: Mapping[bytes, bytes], receive: Receive, held: HeldBody) -> bytes:
        """Returns the whole body; raises Problem if it is too large."""
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._body_max_bytes:
            raise self._too_large()
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Disconnected
            parts += message.get("body", b"")
            if len(parts) > self._body_max_bytes:
                raise self._too_large()
            held.grow(len(parts))
            if not message.get("more_body", False):
                return bytes(parts)

    def _body_late(self) -> Problem:
        return Problem(
            HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {self._body_limit_s:g} s", headers=CLOSE
        )

    def _too_large(self) -> Problem:
        # The rest of the body would be read as the next request.
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {self._body_max_bytes:,} bytes", headers=CLOSE
        )


CLOSE: Final = {"Connection": "close"}


class _Disconnected(Exception):
    """The client disconnected before its request was complete."""


class _Responder:
    """Sends a response, with the headers that every response has."""

    def __init__(self, scope: Scope, headers: Mapping[bytes, bytes], send: Send) -> None:
        self._scope = scope
        self._send = send
        self.started = False
        self.limit: asyncio.Timeout | None = None
        # Never the client's: it could otherwise write into the trace of another payment.
        self.trace_id = str(new_id())
        given = headers.get(REQUEST_HEADER, b"")
        self._request_id = given if _REQUEST_ID.fullmatch(given) else None
        scope.setdefault("state", {})["trace_id"] = self.trace_id

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if self.limit is not None:
                self.limit.reschedule(None)
            headers = [*message.get("headers", []), (TRACE_HEADER, self.trace_id.encode())]
            if self._request_id is not None:
                headers.append((REQUEST_HEADER, self._request_id))
            if not any(name.lower() == CACHE_HEADER for name, _ in headers):
                # Responses contain keys, tokens, amounts and names: by default no browser or proxy may store them.
                headers.append((CACHE_HEADER, b"no-store"))
            message = {**message, "headers": headers}
            self._count(message["status"])
        await self._send(message)

    def _count(self, status: int) -> None:
        method = self._scope["method"]
        route = getattr(self._scope.get("route"), "path", "other")
        HTTP_REQUESTS.labels(method if method in _METHODS else "other", route, str(status)).inc()


def _receive_once(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _problem_of(error: Exception, scope: Scope) -> Problem:
    if isinstance(error, TimeoutError):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the request timed out; it may have been executed")
    if isinstance(error, EXPECTED) and (problem := problem_of(error)).status is not HTTPStatus.INTERNAL_SERVER_ERROR:
        return problem
    log.error("http_bug", path=scope["path"], method=scope["method"], trace=scope["state"]["trace_id"], exc_info=error)
    return bug()
