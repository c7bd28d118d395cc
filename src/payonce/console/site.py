"""The console's application: pages behind a login, static files and error pages."""

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import asyncpg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from payonce.console import login
from payonce.console.auth import HEADERS, Auth, is_loopback, visit_of
from payonce.console.context import Context
from payonce.console.cookies import Cookies
from payonce.console.links import link
from payonce.console.page import Page, PageRoute, ServicePages, Site, Visit, get
from payonce.console.pages import PAGES
from payonce.console.template_environment import ENVIRONMENT, STATIC
from payonce.console.ticket import Ticket
from payonce.engine.database.connections import is_transient
from payonce.engine.messages.declarations import UnknownQueue
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, PayonceError, Stale
from payonce.kit.redact import redact

EXPECTED: Final = (PayonceError, OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Listed one by one, because the framework logs whatever Exception handles as a bug."""
KEEP_S: Final = 2.0
"""How long depths and alerts, which every page shows, are cached."""
PATH_SHOWN_MAX: Final = 200
STATIC_AGE_S: Final = 365 * 86_400
"""The URL of a static file changes with its content."""

INTERNAL_ERROR: Final = "internal error of payonce; see its log"

log = get_logger(__name__)


def build_console(
    context: Context,
    host: str,
    token: Callable[[], str],
    services: Mapping[str, ServicePages],
    pages: Sequence[Page] = PAGES,
    *,
    keep_s: float = KEEP_S,
) -> Starlette:
    """`host` is the listening address: beyond loopback every page needs a login. `services` has the pages of each
    service by name."""
    site = Site.of(pages, services)
    auth = Auth(context, host, site, keep_s, Ticket(token))
    routes = [
        Route(path, auth.protected(by_method), methods=["GET", "POST"])
        for path, by_method in _by_path(site.pages).items()
    ]
    return Starlette(
        routes=[
            Mount("/static", _Static(directory=STATIC)),
            *login.routes(context, is_loopback(host)),
            # Fixed paths come before parameters: /effects/freeze is not the effect "freeze".
            *sorted(routes, key=lambda route: len(re.findall(r"{", route.path))),
            # Needs a login like every page, so that the error page has the navigation.
            Route("/{rest:path}", auth.protected({"GET": get("/{rest:path}", _no_page)}), methods=["GET", "POST"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _bug, **dict.fromkeys(EXPECTED, _error)},
    )


async def _no_page(visit: Visit) -> Response:
    """Redirects from a trailing slash; otherwise raises 404."""
    path = str(visit.path["rest"])
    if path.endswith("/"):
        return RedirectResponse(link(f"/{path.rstrip('/')}", **visit.query), status_code=307)
    raise HTTPException(404)


class _Static(StaticFiles):
    def file_response(self, *arguments: Any, **named: Any) -> Response:
        response = super().file_response(*arguments, **named)
        response.headers["Cache-Control"] = f"public, max-age={STATIC_AGE_S}, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def _by_path(pages: Sequence[Page]) -> Mapping[str, dict[str, PageRoute]]:
    found: dict[str, dict[str, PageRoute]] = {}
    for page in pages:
        for route in page.routes:
            methods = found.setdefault(route.path, {})
            assert route.method not in methods, f"two pages declare {route.method} {route.path}"
            methods[route.method] = route
    return found


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.detail == HTTPStatus.NOT_FOUND.phrase:
        detail = f"There is no page {request.url.path[:PATH_SHOWN_MAX]}."
        return _error_page(request, error.status_code, detail, error.headers)
    return _error_page(request, error.status_code, error.detail, error.headers)


def _error(request: Request, error: Exception) -> Response:
    """Maps an exception to a status: bad input, a concurrent change, an unavailable database, or an internal error."""
    if isinstance(error, Invalid):
        status = HTTPStatus.NOT_FOUND if isinstance(error, UnknownQueue) else HTTPStatus.BAD_REQUEST
        return _error_page(request, status, str(error))
    if isinstance(error, Stale):
        return _error_page(request, HTTPStatus.CONFLICT, str(error))
    status = HTTPStatus.SERVICE_UNAVAILABLE if is_transient(error) else HTTPStatus.INTERNAL_SERVER_ERROR
    if isinstance(error, PayonceError):
        return _error_page(request, status, str(error))
    # Our own messages are safe to show; the driver's may contain addresses and table names.
    log.error("console_failed", path=request.url.path, method=request.method, status=int(status), exc_info=error)
    away = status is HTTPStatus.SERVICE_UNAVAILABLE
    return _error_page(request, status, "the database does not answer; try again" if away else INTERNAL_ERROR)


def _bug(request: Request, error: Exception) -> Response:
    return _error_page(request, HTTPStatus.INTERNAL_SERVER_ERROR, INTERNAL_ERROR)


def _error_page(request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """The error within the console's layout for authenticated visits, else a bare page without navigation."""
    title, said, visit = HTTPStatus(status).phrase, redact(detail), visit_of(request)
    if visit is not None:
        response = visit.page("problem.html", title, status=status, detail=said)
        response.headers.update({**HEADERS, **(headers or {})})
        return response
    text = ENVIRONMENT.get_template("error.html").render(title=title, detail=said, theme=Cookies.of(request).theme)
    return HTMLResponse(text, status_code=status, headers={**HEADERS, **(headers or {})})
