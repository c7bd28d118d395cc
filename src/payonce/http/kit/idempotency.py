"""POSTs that move money: requests with the same Idempotency-Key are executed once, and the response is replayed.

    @routes.post("", status_code=201)
    async def order(body: Order, once: Annotated[Once, moves_money("transfers:write")]) -> Transfer:
        return await once.answer(lambda tx: store.request(tx, body), status=201)

The function's writes and the response commit together: after a crash there are both or neither.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Depends, Header
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from payonce.engine.messages.requests import Busy, Kept, Reused, fingerprint_of, keep, take
from payonce.engine.messages.transaction import Tx
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContext, context_of, trace_of
from payonce.http.kit.problems import (
    KEY_BUSY,
    KEY_REUSED,
    MEDIA_TYPE,
    NO_KEY,
    RETRY_AFTER_S,
    Problem,
    document,
    problem_of,
)
from payonce.kit.outcomes import PayonceError

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
KEY_MAX_LENGTH: Final = 200
KEY_PATTERN: Final = f"[!-~]{{1,{KEY_MAX_LENGTH}}}"
"""Printable ASCII without spaces."""
_KEY: Final = re.compile(KEY_PATTERN, re.ASCII)
_PASSING: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS})
"""Temporary refusals, which are not stored: a later attempt may succeed."""


@dataclass(frozen=True)
class Once:
    """One request that moves money."""

    context: AppContext
    caller: Caller
    key: str
    fingerprint: bytes
    path: str
    trace_id: str | None

    async def answer(
        self,
        act: Callable[[Tx], Awaitable[BaseModel]],
        *,
        status: int | Callable[[Any], int] = 200,
        location: Callable[[Any], str] | None = None,
    ) -> Response:
        """Executes `act` in one transaction, or replays the stored response. `act` calls no vendor; it records what is
        to be done. A final refusal is stored as well, an internal error is not."""
        try:
            async with self.context.begin(self.trace_id) as tx:
                known = await take(tx, self.caller.idempotency_scope, self.key, self.fingerprint)
                given = known or await self._execute(tx, act, status, location)
                if known is None:
                    await keep(tx, self.caller.idempotency_scope, self.key, self.fingerprint, given, self.trace_id)
        except Busy as error:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise Problem(HTTPStatus.CONFLICT, str(error), kind=KEY_BUSY, headers=headers) from error
        except Reused as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), kind=KEY_REUSED) from error
        return _response(given, replayed=known is not None)

    async def _execute(
        self,
        tx: Tx,
        act: Callable[[Tx], Awaitable[BaseModel]],
        status: int | Callable[[Any], int],
        location: Callable[[Any], str] | None,
    ) -> Kept:
        try:
            # A refusal is stored, but the writes before it are rolled back.
            async with tx.connection.transaction():
                result = await act(tx)
        except PayonceError as error:
            problem = problem_of(error)
            if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR or problem.status in _PASSING:
                raise
            refused = document(self.path, problem, self.trace_id)
            return Kept(problem.status, bytes(refused.body), MEDIA_TYPE)
        body = result.model_dump_json().encode()
        code = status(result) if callable(status) else status
        return Kept(code, body, location=None if location is None else location(result))


def moves_money(scope: str, *, tenants: bool = False) -> Any:
    """The dependency of a POST that moves money; it requires an Idempotency-Key."""
    return once_for(require(scope, tenants=tenants))


def once_for(authenticated: Any) -> Any:
    """The same for routes with authentication of their own: `authenticated` is a dependency that returns a Caller."""

    async def once(
        request: Request,
        caller: Annotated[Caller, authenticated],
        key: Annotated[
            str | None,
            Header(alias=HEADER, description="A new value for each order; the same value when you retry it."),
        ] = None,
    ) -> Once:
        if key is None:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"the header {HEADER} is missing; send a new value for each order, the same value when you retry it",
                kind=NO_KEY,
            )
        if not _KEY.fullmatch(key):
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"{HEADER} must have 1 to {KEY_MAX_LENGTH} printable ASCII characters without spaces; use a UUID",
                kind=NO_KEY,
            )
        path, query = request.url.path, request.scope["query_string"]
        fingerprint = fingerprint_of(request.method, path, query, await request.body())
        return Once(context_of(request), caller, key, fingerprint, path, trace_of(request))

    return Depends(once)


def _response(given: Kept, *, replayed: bool) -> Response:
    headers = {} if given.location is None else {"Location": given.location}
    if replayed:
        headers[REPLAYED] = "true"
    return Response(given.body, status_code=given.status, media_type=given.media_type, headers=headers)
