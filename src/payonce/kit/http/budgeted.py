"""A request within a vendor's budget, whose rests are told to everybody who shares it."""

from typing import Any, Final

from payonce.kit.budget import Budget
from payonce.kit.http.client import HttpClient
from payonce.kit.http.response import Response

RESTING: Final = (429, 503)
"""Too many requests, and out of service: both may say in Retry-After when to come again."""


async def request_within(budget: Budget, http: HttpClient, method: str, path: str, **options: Any) -> Response:
    """Waits for a turn and asks. A vendor that says when to come again is left alone until then, by all processes."""
    await budget.wait_turn()
    answer = await http.request(method, path, **options)
    if answer.status in RESTING and (rest_s := answer.retry_after_s) is not None:
        await budget.penalise(rest_s)
    return answer
