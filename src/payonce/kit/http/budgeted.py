"""A request within a vendor's budget. A vendor's Retry-After holds for everyone who shares the budget."""

import time
from collections.abc import Callable
from typing import Any, Final

from payonce.kit.budget import Budget
from payonce.kit.http.client import HttpClient
from payonce.kit.http.response import Response

RESTING: Final = (429, 503)
"""Too many requests, and out of service: both may have a Retry-After."""
NO_ANSWER: Final = "no_answer"

Observe = Callable[[str, float], None]
"""Receives the kind of answer (ok, refused, resting, error, no_answer) and its seconds, without the wait for a turn."""

Watch = Callable[[str, str, float], None]
"""The same, with the name of the call first."""


async def request_within(
    budget: Budget, http: HttpClient, method: str, path: str, *, observe: Observe | None = None, **options: Any
) -> Response:
    """Waits for a turn and sends. After a Retry-After no process calls the vendor until then."""
    await budget.wait_turn()
    began_at, answered = time.monotonic(), NO_ANSWER
    try:
        answer = await http.request(method, path, **options)
        answered = kind_of(answer.status)
    finally:
        if observe is not None:
            observe(answered, time.monotonic() - began_at)
    if answer.status in RESTING and (rest_s := answer.retry_after_s) is not None:
        await budget.penalise(rest_s)
    return answer


def kind_of(status: int) -> str:
    if 200 <= status < 300:
        return "ok"
    if status == 429:
        return "resting"
    return "refused" if 400 <= status < 500 else "error"
