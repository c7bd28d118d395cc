"""Login, logout and colour theme: the pages that need no authentication."""

from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from payonce.console.auth import checked_form, with_headers
from payonce.console.context import Context
from payonce.console.cookies import SESSION, THEME, THEMES, Cookies
from payonce.console.forms import text_of
from payonce.console.links import ROOT, link
from payonce.console.template_environment import ENVIRONMENT
from payonce.engine.operators import LoginRefused, log_in, log_out, session_status

THEME_KEPT_S = 365 * 86_400


def routes(context: Context, loopback: bool) -> list[Route]:
    async def login(request: Request) -> Response:
        cookies = Cookies.of(request)
        known = await session_status(context.read, cookies.session)
        if known.session is not None or (loopback and not known.has_people):
            return RedirectResponse(link(""), status_code=303)
        wanted = _local_target(request.query_params.get("next", ""))
        if request.method == "POST":
            return await _admit(context, request, cookies)
        return _form(cookies, wanted, known.has_people)

    async def logout(request: Request) -> Response:
        cookies = Cookies.of(request)
        await checked_form(request, cookies.csrf(logged_in=True))
        if cookies.session is not None:
            await log_out(context.database, cookies.session)
        response = RedirectResponse(link("/login"), status_code=303)
        response.delete_cookie(SESSION, path=ROOT)
        return with_headers(cookies, response)

    async def theme(request: Request) -> Response:
        cookies = Cookies.of(request)
        known = await session_status(context.read, cookies.session)
        form = await checked_form(request, cookies.csrf(logged_in=known.session is not None))
        chosen = text_of(form, "theme")
        if chosen not in THEMES:
            raise HTTPException(400, f"unknown theme {chosen[:40]!r}; choose {', '.join(THEMES)}")
        response = RedirectResponse(_local_target(text_of(form, "next")), status_code=303)
        cookies.set(response, THEME, chosen, max_age_s=THEME_KEPT_S)
        return with_headers(cookies, response)

    return [
        Route("/login", login, methods=["GET", "POST"]),
        Route("/logout", logout, methods=["POST"]),
        Route("/theme", theme, methods=["POST"]),
    ]


async def _admit(context: Context, request: Request, cookies: Cookies) -> Response:
    form = await checked_form(request, cookies.csrf(logged_in=False))
    wanted = _local_target(text_of(form, "next"))
    address = request.client.host if request.client is not None else "an unknown address"
    try:
        token = await log_in(context.database, text_of(form, "name"), text_of(form, "password"), address)
    except LoginRefused as refused:
        return _form(cookies, wanted, True, str(refused), text_of(form, "name"), 429 if refused.too_many else 403)
    response = RedirectResponse(wanted, status_code=303)
    cookies.set(response, SESSION, token)
    return with_headers(cookies, response)


def _form(
    cookies: Cookies, wanted: str, anybody: bool, refused: str = "", name: str = "", status: int = 200
) -> Response:
    text = ENVIRONMENT.get_template("login.html").render(
        title="Log in",
        theme=cookies.theme,
        csrf=cookies.csrf(logged_in=False),
        wanted=wanted,
        anybody=anybody,
        refused=refused,
        name=name,
    )
    return with_headers(cookies, HTMLResponse(text, status_code=status))


def _local_target(wanted: str) -> str:
    """The URL if it is one of the console, else its first page: no open redirects."""
    parts = urlsplit(wanted)
    inside = not parts.scheme and not parts.netloc and (parts.path == ROOT or parts.path.startswith(f"{ROOT}/"))
    return wanted if inside and "\\" not in wanted and wanted.isprintable() else link("")
