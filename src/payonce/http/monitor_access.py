"""Access to health details: monitors on the same machine, keys with metrics:read, and operators of services."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import Security
from fastapi.security import HTTPAuthorizationCredentials
from starlette.requests import Request

from payonce.app.process import App
from payonce.console.auth import FORWARDED, is_loopback
from payonce.http.kit.auth import BEARER, authorize
from payonce.http.kit.problems import Problem
from payonce.http.kit.scopes import METRICS_READ

OPEN, KEY = "open", "key"
"""The values of PAYONCE_METRICS: no key is needed, or always one."""
MONITORS_ONLY: Final = "only operators and monitors may see this; GET /v1/health/ is open to everybody"


def require_monitor(app: App) -> Any:
    """A dependency that raises 401 without valid credentials, and 403 for a service's users who are no operators."""

    async def monitor(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]
    ) -> None:
        await _check(app, request, given)

    return Security(monitor)


def operator_schemes(app: App) -> list[Any]:
    """Dependencies that describe the credentials of services' operators; `require_monitor` checks them."""
    schemes = dict.fromkeys(each.operator_scheme() for each in app.services if each.operator_scheme is not None)
    return [Security(scheme) for scheme in schemes]


async def is_monitor(app: App, request: Request) -> bool:
    """For a route that shows monitors more than others."""
    try:
        await _check(app, request, await BEARER(request))
    except Problem:
        return False
    return True


async def _check(app: App, request: Request, given: HTTPAuthorizationCredentials | None) -> None:
    setting = app.settings.metrics
    if setting == OPEN or (setting is None and _is_local(request)):
        return
    operates = None if given is None else await _operates(app, request, given)
    if operates is None:
        await authorize(request, given, METRICS_READ)
    elif not operates:
        raise Problem(HTTPStatus.FORBIDDEN, MONITORS_ONLY)


async def _operates(app: App, request: Request, given: HTTPAuthorizationCredentials) -> bool | None:
    """Asks the first service that issues such credentials; None if none does."""
    for service in app.services:
        if service.is_operator is not None and (found := await service.is_operator(request, given)) is not None:
            return found
    return None


def _is_local(request: Request) -> bool:
    """Whether the request comes from this machine and not through a proxy on it."""
    if request.client is None or any(header in request.headers for header in FORWARDED):
        return False
    return is_loopback(request.client.host)
