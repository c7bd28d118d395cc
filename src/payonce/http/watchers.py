"""Who may see how a process and its queues are: monitors on its machine, keys for metrics, and operators who log in."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import Request

from payonce.console.auth import FORWARDED, is_loopback
from payonce.http.kit.auth import BEARER, identified
from payonce.http.kit.problems import Problem
from payonce.http.kit.scopes import METRICS_READ
from payonce.services.billing.callers import identify
from payonce.services.billing.scopes import READ
from payonce.services.billing.tokens import is_token

OPEN, KEY = "open", "key"
"""What PAYONCE_METRICS may say: only scrapers reach this port, or nobody is trusted for where they come from."""
NOT_YOURS: Final = "this is for operators and monitors; GET /v1/health/ tells everybody that the process lives"


def watcher(setting: str | None) -> Any:
    """A dependency: 401 for strangers, 403 for customers."""

    async def watching(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> None:
        await _check(request, given, setting)

    return Security(watching)


async def may_watch(request: Request, setting: str | None) -> bool:
    """For a route that tells everybody something, and watchers more."""
    try:
        await _check(request, await BEARER(request), setting)
    except Problem:
        return False
    return True


async def _check(request: Request, given: HTTPAuthorizationCredentials | None, setting: str | None) -> None:
    if setting == OPEN or (setting is None and _is_near(request)):
        return
    if given is None or not is_token(given.credentials):
        await identified(request, given, METRICS_READ)
        return
    if not (await identify(request, READ)).operator:
        raise Problem(HTTPStatus.FORBIDDEN, NOT_YOURS)


def _is_near(request: Request) -> bool:
    """From this machine itself: a proxy here would bring in whoever is in front of it."""
    if request.client is None or any(header in request.headers for header in FORWARDED):
        return False
    return is_loopback(request.client.host)
