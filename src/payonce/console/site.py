"""The site: every page behind a login, static files, and errors as pages for a person."""

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
"""For how long what every page shows (depths, alerts) is not asked for again, however many look."""
PATH_SHOWN_MAX: Final = 200
STATIC_AGE_S: Final = 365 * 86_400
"""The address of a static file changes with its content."""

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
    """`host` is where the process listens: beyond loopback nobody comes in without a login. `services` has what each
    service adds, by its name."""
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
            # What is written out comes before what matches anything: /effects/freeze is not the effect "freeze".
            *sorted(routes, key=lambda route: len(re.findall(r"{", route.path))),
            # Needs a login like every page: a wrong address keeps the navigation.
            Route("/{rest:path}", auth.protected({"GET": get("/{rest:path}", _no_page)}), methods=["GET", "POST"]),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _bug, **dict.fromkeys(EXPECTED, _error)},
    )


async def _no_page(visit: Visit) -> Response:
    """An address with a slash too many is taken for the one without it."""
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
    """Bad input is the visitor's; what changed meanwhile is looked at again; a database that is away is for later."""
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
    """Within the console's frame for whoever has come in; bare for others, who see no page's name."""
    title, said, visit = HTTPStatus(status).phrase, redact(detail), visit_of(request)
    if visit is not None:
        response = visit.page("problem.html", title, status=status, detail=said)
        response.headers.update({**HEADERS, **(headers or {})})
        return response
    text = ENVIRONMENT.get_template("error.html").render(title=title, detail=said, theme=Cookies.of(request).theme)
    return HTMLResponse(text, status_code=status, headers={**HEADERS, **(headers or {})})
