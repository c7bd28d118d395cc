"""Tasks as received, stored and shown by the API, and the rules for refusing them."""

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from asyncpg import Record
from google.cloud import tasks_v2
from yarl import URL

from payonce.kit.http.headers import is_name
from payonce.taskserver import names
from payonce.taskserver.queues import retrying_of, write_time
from payonce.taskserver.refusals import Refusal, invalid, unimplemented

TaskPb: Final[Any] = tasks_v2.Task.pb()
HttpRequestPb: Final[Any] = tasks_v2.HttpRequest.pb()

TASK_MAX_BYTES: Final = 1024 * 1024
HEADERS_MAX_BYTES: Final = 80 * 1024
URL_MAX_LENGTH: Final = 2_083
"""Google's limit, for the encoded URL."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_NO_HOST: Final = re.compile(r"\s|^\.|\.\.|[^.]{64}|^.{254}")
"""Encoded hosts that no resolver accepts."""
DEADLINE_DEFAULT_MS: Final = 600_000
DEADLINE_LEAST_MS: Final = 15_000
DEADLINE_MAX_MS: Final = 1_800_000
SCHEDULE_MAX_DAYS: Final = 30
USER_AGENT: Final = "Google-Cloud-Tasks"
BASIC: Final = 1
FULL: Final = 2
_POST: Final = 1
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
METHODS: Final = {1: "POST", 2: "GET", 3: "HEAD", 4: "PUT", 5: "DELETE", 6: "PATCH", 7: "OPTIONS"}
_TASK_ID_DIGITS: Final = 20
_CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True)
class NewTask:
    """A valid task; its queue may be missing, or its name taken."""

    queue: str
    id: str
    named: bool
    request: bytes
    retry: bytes | None
    deadline_ms: int
    wanted: datetime | None
    """When to dispatch it; None for now."""


def new_task(parent: str, task: Any) -> NewTask:
    """Checks and converts a task. Raises a Refusal, with the value and the rule, for what Google refuses."""
    if task.ByteSize() > TASK_MAX_BYTES:
        raise invalid(f"Task size too large: {task.ByteSize()} bytes; it must be at most {TASK_MAX_BYTES}.")
    task_id = _task_id(parent, task.name) if task.name else ""
    kind = task.WhichOneof("message_type")
    if kind == "app_engine_http_request":
        unimplemented("An App Engine task (app_engine_http_request)")
    if kind != "http_request":
        raise invalid("Task.http_request must be set: the task has no request to send.")
    retry = None
    if task.HasField("retry_config"):
        retrying_of(task.retry_config)
        retry = task.retry_config.SerializeToString()
    return NewTask(
        parent,
        task_id or generated_id(),
        bool(task_id),
        _checked_request(task.http_request).SerializeToString(),
        retry,
        _deadline_ms(task),
        _time(task) if task.HasField("schedule_time") else None,
    )


def generated_id() -> str:
    return str(secrets.randbelow(9 * 10 ** (_TASK_ID_DIGITS - 1)) + 10 ** (_TASK_ID_DIGITS - 1))


def _task_id(parent: str, name: str) -> str:
    queue, task_id = names.split_task(name)
    if queue != parent:
        raise invalid(
            f"The queue name from request ('{parent}') must be the same as the queue name in the named task "
            f"('{queue}')."
        )
    return task_id


def _checked_request(request: Any) -> Any:
    if request.WhichOneof("authorization_header") == "oauth_token":
        unimplemented("An OAuth token of Google's (oauth_token)")
    if request.HasField("oidc_token") and not request.oidc_token.service_account_email:
        raise invalid("OidcToken.service_account_email must be set: the token is issued for it.")
    _check_url(request.url)
    if request.http_method == 0:
        request.http_method = _POST
    if request.http_method not in METHODS:
        raise invalid(f"HttpRequest.http_method is {request.http_method}, which is not a known method.")
    method = METHODS[request.http_method]
    if request.body and method not in _METHODS_WITH_BODY:
        raise invalid(f"HttpRequest.body is set for {method}; a body is allowed only for POST, PUT and PATCH.")
    size = sum(len(name) + len(value) for name, value in request.headers.items())
    if size >= HEADERS_MAX_BYTES:
        raise invalid(f"HttpRequest.headers have {size} bytes; they must have less than {HEADERS_MAX_BYTES}.")
    for name, value in request.headers.items():
        if not is_name(name) or any(character in value for character in "\r\n\0"):
            raise invalid(f"HttpRequest.headers has {names.shown(name)}, which is not a valid header.")
    for name in [each for each in request.headers if each.lower() == "user-agent"]:
        del request.headers[name]
    request.headers["User-Agent"] = USER_AGENT
    return request


def _check_url(url: str) -> None:
    """Raises a Refusal for a URL that can never be requested: the task would be retried until it is given up."""
    if not url.startswith(("http://", "https://")):
        raise invalid(f"HttpRequest.url must start with http:// or https://, not {names.shown(url)}.")
    if _CONTROL.search(url):
        raise invalid(f"HttpRequest.url must have no control characters, as {names.shown(url)} has.")
    try:
        sent = URL(url)
    except ValueError as error:
        raise invalid(f"HttpRequest.url must have a valid host and port, not {names.shown(url)}.") from error
    if not sent.raw_host or _NO_HOST.search(sent.raw_host):
        raise invalid(f"HttpRequest.url must name a host, not {names.shown(url)}.")
    if sent.port == 0:
        raise invalid(f"HttpRequest.url must name a port from 1 to 65535, not {names.shown(url)}.")
    if len(str(sent)) > URL_MAX_LENGTH:
        raise invalid(
            f"HttpRequest.url has {len(str(sent))} characters once encoded; it must have at most {URL_MAX_LENGTH}, "
            f"not {names.shown(url)}."
        )


def _deadline_ms(task: Any) -> int:
    if not task.HasField("dispatch_deadline"):
        return DEADLINE_DEFAULT_MS
    deadline = task.dispatch_deadline
    asked_ms = int(deadline.seconds) * 1_000 + int(deadline.nanos) // 1_000_000
    if asked_ms == 0:
        return DEADLINE_DEFAULT_MS
    if not DEADLINE_LEAST_MS <= asked_ms <= DEADLINE_MAX_MS:
        raise invalid(
            f"Task.dispatch_deadline is {asked_ms / 1_000:g}s; it must be in the interval "
            f"[{DEADLINE_LEAST_MS // 1_000}s, {DEADLINE_MAX_MS // 1_000}s]."
        )
    return asked_ms


def _time(task: Any) -> datetime:
    try:
        moment: datetime = task.schedule_time.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise invalid("Task.schedule_time is not a valid timestamp.") from error
    return moment


def too_late(wanted: datetime) -> Refusal:
    return invalid(
        f"The Task.schedule_time, {wanted.isoformat()}, is too far in the future. "
        f"Must be no more than {SCHEDULE_MAX_DAYS} days from now."
    )


def shown_new_task(task: NewTask, created_at: datetime, view: int) -> Any:
    """The google.cloud.tasks.v2.Task of a task just added."""
    shown = TaskPb(name=names.task_name(task.queue, task.id), view=FULL if view == FULL else BASIC)
    _write_request(shown, task.request, view)
    if task.retry is not None:
        shown.retry_config.ParseFromString(task.retry)
    write_time(shown.schedule_time, max(task.wanted or created_at, created_at))
    write_time(shown.create_time, created_at.replace(microsecond=0))
    _write_deadline(shown, task.deadline_ms)
    return shown


def shown_task(queue: str, row: Record, view: int) -> Any:
    """The google.cloud.tasks.v2.Task of a stored row."""
    shown = TaskPb(
        name=names.task_name(queue, row["id"]),
        view=FULL if view == FULL else BASIC,
        dispatch_count=row["dispatches"],
        response_count=row["responses"],
    )
    _write_request(shown, row["request"], view)
    if row["retry"] is not None:
        shown.retry_config.ParseFromString(row["retry"])
    write_time(shown.schedule_time, row["schedule_at"])
    write_time(shown.create_time, row["created_at"].replace(microsecond=0))
    _write_deadline(shown, row["deadline_ms"])
    if row["first_dispatched_at"] is not None:
        write_time(shown.first_attempt.dispatch_time, row["first_dispatched_at"])
        write_time(shown.last_attempt.schedule_time, row["last_scheduled_at"])
        write_time(shown.last_attempt.dispatch_time, row["last_dispatched_at"])
    if row["last_answered_at"] is not None:
        write_time(shown.last_attempt.response_time, row["last_answered_at"])
        shown.last_attempt.response_status.code = row["last_code"]
        shown.last_attempt.response_status.message = row["last_reason"]
    return shown


def code_of(status: int) -> grpc.StatusCode:
    """The google.rpc.Code for an HTTP status."""
    return _CODES.get(status, grpc.StatusCode.UNKNOWN)


def _write_request(shown: Any, request: bytes, view: int) -> None:
    shown.http_request.ParseFromString(request)
    if view != FULL:
        shown.http_request.ClearField("body")


def _write_deadline(shown: Any, deadline_ms: int) -> None:
    shown.dispatch_deadline.seconds, rest_ms = divmod(deadline_ms, 1_000)
    shown.dispatch_deadline.nanos = rest_ms * 1_000_000
