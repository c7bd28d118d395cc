"""Problem documents (RFC 9457): every HTTP error says why it happened and what to do."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import asyncpg
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from payonce.engine.database.connections import is_transient
from payonce.engine.messages.declarations import UnknownQueue
from payonce.kit.outcomes import Invalid, PayonceError, Refused, Retry, Stale
from payonce.kit.redact import redact

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""The Retry-After of temporary errors."""
ERRORS_MAX: Final = 20
"""Invalid fields listed in one response."""
WHERE_MAX_LENGTH: Final = 200
PATH_MAX_LENGTH: Final = 200
DETAIL_MAX_LENGTH: Final = 4_000
"""Of a text that may quote the request."""

NO_KEY, KEY_REUSED, KEY_BUSY = (
    f"urn:payonce:problem:{name}" for name in ("no-idempotency-key", "idempotency-key-reused", "idempotency-key-busy")
)
"""The problem types that clients have to distinguish."""

# Listed one by one, because the framework logs whatever Exception handles as a bug.
EXPECTED: Final = (PayonceError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class FieldError(BaseModel):
    where: str = Field(description="Such as body.amount or query.limit.")
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457. Quote `trace_id` in support requests."""

    model_config = ConfigDict(title="Problem")

    type: str = "about:blank"
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    instance: str
    trace_id: str | None = None
    errors: list[FieldError] | None = Field(None, description="The invalid values, for validation errors.")


class Problem(PayonceError):
    """An error response: raised by routes, rendered in one place."""

    def __init__(
        self, status: int, detail: str, *, kind: str = "about:blank", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = HTTPStatus(status)
        self.kind = kind
        self.headers = dict(headers or {})


def not_found(what: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no {what}")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route's declaration: the problems that it may return."""
    return {
        int(status): {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def problem_of(error: Exception) -> Problem:
    """Maps an exception: bad input to 4xx, an unavailable database to 503, anything else to 500."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UnknownQueue):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, Invalid):
        return Problem(HTTPStatus.BAD_REQUEST, str(error))
    if isinstance(error, Stale):
        return Problem(HTTPStatus.CONFLICT, str(error))
    if isinstance(error, Refused):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, error.reason)
    if isinstance(error, Retry) or is_transient(error):
        # Our own messages are safe to show; the driver's may contain addresses and table names.
        detail = str(error) if isinstance(error, PayonceError) else "the database does not answer; try again"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": str(RETRY_AFTER_S)})
    return bug()


def bug() -> Problem:
    """The problem of an internal error, without details."""
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error of payonce; see its log")


def document(
    path: str, problem: Problem, trace_id: str | None = None, errors: Sequence[FieldError] | None = None
) -> Response:
    body = ProblemDocument(
        type=problem.kind,
        title=problem.status.phrase,
        status=problem.status,
        detail=redact(str(problem), max_chars=DETAIL_MAX_LENGTH),
        instance=redact(path, max_chars=PATH_MAX_LENGTH),
        trace_id=trace_id,
        errors=None if errors is None else list(errors),
    )
    return JSONResponse(
        body.model_dump(exclude_none=True), status_code=problem.status, headers=problem.headers, media_type=MEDIA_TYPE
    )


Handle = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def exception_handlers() -> dict[Any, Handle]:
    return {
        HTTPException: _http_problem,
        RequestValidationError: _validation_problem,
        **dict.fromkeys(EXPECTED, _expected_problem),
    }


async def _expected_problem(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status is HTTPStatus.INTERNAL_SERVER_ERROR:
        # The guard logs it as a bug.
        raise error
    return document(request.url.path, problem, _trace_id(request))


async def _http_problem(request: Request, error: HTTPException) -> Response:
    problem = Problem(error.status_code, error.detail, headers=error.headers)
    return document(request.url.path, problem, _trace_id(request))


async def _validation_problem(request: Request, error: RequestValidationError) -> Response:
    """Names the fields, never their values, which may be secret or long."""
    found = [
        FieldError(where=".".join(map(str, each["loc"]))[:WHERE_MAX_LENGTH], message=str(each["msg"]))
        for each in error.errors()[:ERRORS_MAX]
    ]
    unreadable = any(each["type"] == "json_invalid" for each in error.errors())
    status = HTTPStatus.BAD_REQUEST if unreadable else HTTPStatus.UNPROCESSABLE_ENTITY
    detail = "; ".join(f"{each.where}: {each.message}" for each in found)
    return document(request.url.path, Problem(status, detail), _trace_id(request), found)


def _trace_id(request: Request) -> str | None:
    trace_id: str | None = request.scope.get("state", {}).get("trace_id")
    return trace_id
