"""One attempt: the HTTP request of a task with Google's headers, and the meaning of the response.

Uses the connections of `payonce.kit.http`, not its client: a task names its own headers and address, also on this
machine, and may take half an hour; and each dispatch would pay for that client's guards.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import grpc

from payonce.kit.http.failures import Broken
from payonce.kit.redact import redact
from payonce.taskserver.arithmetic import counts_as_execution, is_success, next_wait_s
from payonce.taskserver.queues import RetryPb, retrying_of
from payonce.taskserver.task_store import Claim, Ending
from payonce.taskserver.tasks import METHODS, USER_AGENT, HttpRequestPb, code_of
from payonce.taskserver.tokens import TokenMaker
from payonce.taskserver.wire import Wire

REASON_MAX_LENGTH: Final = 300
_OURS: Final = ("host", "content-length", "transfer-encoding", "connection", "user-agent")
_OUR_PREFIXES: Final = ("x-google-", "x-appengine-", "x-cloudtasks-")


@dataclass(frozen=True)
class Answer:
    """The result of an attempt: a status, or a reason without one."""

    status: int | None
    code: grpc.StatusCode
    reason: str
    retry_after_s: float | None = None
    took_s: float = 0.0


class Sender:
    """Sends tasks' requests."""

    def __init__(self, wire: Wire, tokens: TokenMaker) -> None:
        self._wire = wire
        self._tokens = tokens

    @classmethod
    @asynccontextmanager
    async def open(cls, tokens: TokenMaker) -> AsyncIterator["Sender"]:
        wire = Wire()
        try:
            yield cls(wire, tokens)
        finally:
            await wire.close()

    async def send(self, claim: Claim, deadline: asyncio.Timeout) -> Answer:
        """Sends exactly one request; redirects are responses like others."""
        request = HttpRequestPb.FromString(claim.request)
        began_at = asyncio.get_running_loop().time()
        try:
            async with deadline:
                return await self._exchange(claim, request, began_at)
        except (Broken, OSError, ValueError) as error:
            if deadline.expired():
                return late_answer(claim)
            reason = redact(f"{type(error).__name__}: {error}")[:REASON_MAX_LENGTH].replace("\0", " ")
            took_s = asyncio.get_running_loop().time() - began_at
            return Answer(None, grpc.StatusCode.UNAVAILABLE, f"UNAVAILABLE(14): {reason}", took_s=took_s)

    async def _exchange(self, claim: Claim, request: Any, began_at: float) -> Answer:
        reply = await self._wire.exchange(
            METHODS[request.http_method], request.url, self._headers(claim, request), request.body
        )
        code = grpc.StatusCode.OK if is_success(reply.status) else code_of(reply.status)
        return Answer(
            reply.status,
            code,
            f"{code.name}({code.value[0]}): HTTP status code {reply.status}",
            retry_after_of(reply.retry_after),
            asyncio.get_running_loop().time() - began_at,
        )

    def _headers(self, claim: Claim, request: Any) -> list[tuple[str, str]]:
        # Keyed by the lower-case name: a header given in two spellings is sent once.
        own = {
            name.lower(): (name, value)
            for name, value in request.headers.items()
            if name.lower() not in _OURS and not name.lower().startswith(_OUR_PREFIXES)
        }
        headers = [
            ("User-Agent", USER_AGENT),
            ("X-CloudTasks-QueueName", claim.queue.name.rpartition("/")[2]),
            ("X-CloudTasks-TaskName", claim.id),
            ("X-CloudTasks-TaskRetryCount", str(claim.attempts - 1)),
            ("X-CloudTasks-TaskExecutionCount", str(claim.executions)),
            ("X-CloudTasks-TaskETA", f"{claim.schedule_at.timestamp():.6f}"),
        ]
        if claim.attempts > 1:
            if claim.previous_status is not None:
                headers.append(("X-CloudTasks-TaskPreviousResponse", str(claim.previous_status)))
            if claim.previous_reason is not None:
                headers.append(("X-CloudTasks-TaskRetryReason", _one_line(claim.previous_reason)))
        if request.HasField("oidc_token"):
            oidc = request.oidc_token
            token = self._tokens.token(oidc.service_account_email, oidc.audience or request.url)
            own["authorization"] = ("Authorization", f"Bearer {token}")
        return [*own.values(), *headers]


def late_answer(claim: Claim) -> Answer:
    deadline_s = claim.deadline_ms / 1_000
    return Answer(
        None,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        f"DEADLINE_EXCEEDED(4): no answer within {deadline_s:g}s",
        took_s=deadline_s,
    )


def ending_of(claim: Claim, answer: Answer) -> Ending:
    """The task's outcome: done, retried, or given up."""
    wait_s: float | None = None
    if not is_success(answer.status):
        retrying = claim.queue.config.retrying if claim.retry is None else retrying_of(RetryPb.FromString(claim.retry))
        wait_s = next_wait_s(claim.attempts, claim.age_s + answer.took_s, retrying, answer.retry_after_s)
    return Ending(claim, wait_s, answer.status, answer.code.value[0], answer.reason, counts_as_execution(answer.status))


def retry_after_of(value: str | None) -> float | None:
    """Parses seconds or a date; None for anything else."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:10])
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _one_line(text: str) -> str:
    return "".join(character if " " <= character <= "~" else " " for character in text)
