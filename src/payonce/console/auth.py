"""Authentication and authorisation: loopback access by ticket, sessions, CSRF checks, and the role of each route."""

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import unquote, urlsplit

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from payonce.console.cache import Cache
from payonce.console.context import Context
from payonce.console.cookies import TICKET, VISIT, Cookies
from payonce.console.links import ROOT, link
from payonce.console.page import PageRoute, Site, Visit
from payonce.console.ticket import PARAMETER, TICKET_KEPT_S, Ticket
from payonce.engine.operators import LOCAL_OPERATOR, Person, session_status

FORM_MAX_BYTES: Final = 256 * 1024
FORM_MAX_FIELDS: Final = 1_000
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers that proxies add. Through a proxy, anybody could pass for the local operator."""

_VISIT: Final = "console_visit"
"""The request state that holds the visit, for error pages."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


class Auth:
    """Authenticates and authorizes the requests of every page."""

    def __init__(self, context: Context, host: str, site: Site, keep_s: float, ticket: Ticket) -> None:
        self._context = context
        self._cache = Cache(context, keep_s)
        self._loopback = is_loopback(host)
        self._site = site
        self._ticket = ticket

    def protected(self, routes: Mapping[str, PageRoute]) -> Callable[[Request], "object"]:
        """One endpoint for the methods of one path."""

        async def endpoint(request: Request) -> Response:
            route = routes.get("GET" if request.method == "HEAD" else request.method)
            if route is not None and route.method == "GET" and PARAMETER in request.query_params:
                return await self._take_ticket(request)
            visit = await self.visit(request)
            if visit is None:
                return _to_login(request)
            if route is None:
                # Checked after the visit, so that the error page has the navigation.
                raise HTTPException(405, f"this page does not support {request.method}", {"Allow": ", ".join(routes)})
            if not visit.may(route.role):
                raise HTTPException(
                    403,
                    f"{visit.person.name} is {visit.person.role}, but this needs the role {route.role}; "
                    f"an administrator can run: payonce users role {visit.person.name} {route.role}",
                )
            _check_readable(visit)
            response = await route.handler(visit)
            if route.method == "POST":
                self._cache.forget()
            return with_headers(visit.cookies, response)

        return endpoint

    async def visit(self, request: Request) -> Visit | None:
        """Returns the authenticated visit; None if a login is needed."""
        cookies = Cookies.of(request)
        known = await session_status(self._context.read, cookies.session, active=not _is_automatic(request))
        person: Person | None = None if known.session is None else known.session.person
        local = person is None and not known.has_people and self._loopback
        if local:
            _check_is_local(request)
            if not self._ticket.matches_cookie(cookies.ticket):
                raise _ticket_required()
            person = LOCAL_OPERATOR
        if person is None:
            return None
        csrf = cookies.csrf(logged_in=not local)
        summary = await self._cache.summary()
        visit = Visit(self._context, request, person, known.now, csrf, cookies, local, summary, self._cache, self._site)
        # Set before the request is checked, so that the error page has the navigation.
        setattr(request.state, _VISIT, visit)
        if request.method in ("GET", "HEAD"):
            return visit
        return replace(visit, form=await checked_form(request, csrf))

    async def _take_ticket(self, request: Request) -> Response:
        """Redirects to the same page without the token, which must not stay in addresses or the browser's history."""
        cookies = Cookies.of(request)
        rest = {name: value for name, value in request.query_params.items() if name != PARAMETER}
        path = unquote(request.url.path).removeprefix(ROOT).removesuffix("/")
        response = RedirectResponse(link(path, **rest), status_code=303)
        known = await session_status(self._context.read, cookies.session)
        if self._loopback and not known.has_people:
            _check_is_local(request)
            if not self._ticket.matches_token(request.query_params[PARAMETER]):
                raise _ticket_required()
            cookies.set(response, TICKET, self._ticket.cookie, TICKET_KEPT_S, "strict")
        return with_headers(cookies, response)


def visit_of(request: Request) -> Visit | None:
    """The visit of this request; None if it was not authenticated."""
    found: Visit | None = getattr(request.state, _VISIT, None)
    return found


async def checked_form(request: Request, csrf: str) -> FormData:
    """Returns the form. Raises HTTPException if its origin, size or CSRF token is wrong."""
    check_origin(request)
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > FORM_MAX_BYTES or "transfer-encoding" in request.headers:
        raise HTTPException(413, f"a form must have a Content-Length of at most {FORM_MAX_BYTES:,} bytes")
    form = await request.form(max_files=0, max_fields=FORM_MAX_FIELDS, max_part_size=FORM_MAX_BYTES)
    given = form.get("csrf")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "replace"), csrf.encode()):
        raise HTTPException(403, "the form's token is not of your session; reload the page and submit it again")
    return form


def check_origin(request: Request) -> None:
    """Rejects forms of other sites, and of other ports of this machine."""
    origin = request.headers.get("origin")
    if origin is not None:
        parts = urlsplit(origin)
        if parts.netloc.lower() != request.headers.get("host", "").lower() or parts.scheme not in ("http", "https"):
            raise HTTPException(
                403,
                f"the form comes from {origin[:200]}, which is not this console; "
                "a proxy in front of it must pass the Host header",
            )
    elif request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "the form comes from another site")


def with_headers(cookies: Cookies, response: Response) -> Response:
    if cookies.new_visit:
        cookies.set(response, VISIT, cookies.visit)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _check_is_local(request: Request) -> None:
    """Rejects other host names (DNS rebinding) and proxies: without logins both would let strangers in. The ticket
    protects against proxies that do not reveal themselves."""
    host = request.headers.get("host", "")
    name = urlsplit(f"//{host}").hostname or ""
    if not is_loopback(name):
        raise HTTPException(
            421,
            f"without logins the console answers only as localhost, not as {host[:200]!r}; "
            "add one with: payonce users add NAME",
        )
    for header in FORWARDED:
        if header in request.headers:
            raise HTTPException(
                403,
                f"the request came through a proxy ({header}), and no login exists yet; "
                "add the first with: payonce users add NAME --role approver",
            )


def _ticket_required() -> HTTPException:
    return HTTPException(
        403,
        "no login exists yet, so the console opens only with its link; print it with `payonce console` on the machine "
        "that runs this process",
    )


def _check_readable(visit: Visit) -> None:
    """Rejects NUL characters, which PostgreSQL cannot store, and blank names in the path."""
    if not all(str(value).strip() for value in visit.path.values()):
        raise HTTPException(404, "the address has a blank name or id; copy one from a list")
    given = (*visit.path.values(), *visit.query.values(), *visit.form.values())
    if any(isinstance(value, str) and "\x00" in value for value in given):
        raise HTTPException(400, "the address or the form contains a NUL character; remove it")


def _is_automatic(request: Request) -> bool:
    """Whether an open page refreshes itself, without action of the person."""
    return "hx-request" in request.headers or request.url.path == f"{ROOT}/live"


def _to_login(request: Request) -> Response:
    wanted = str(request.url.replace(scheme="", netloc="")) if request.method == "GET" else ""
    if _is_automatic(request):
        # A fragment or stream cannot show the login form, so the page is reloaded.
        return Response(status_code=401, headers={"HX-Refresh": "true"})
    return RedirectResponse(link("/login", next=wanted if wanted.startswith(ROOT) else None), status_code=303)
