"""Mounts the console in a process, with a 503 if its extra is not installed."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from payonce.console.context import Context
from payonce.console.links import ROOT as CONSOLE

if TYPE_CHECKING:
    from payonce.console.page import ServicePages

__all__ = ["CONSOLE", "console", "entry_routes"]

NEEDED: Final = ("jinja2", "python_multipart")


def console(
    context: Context,
    host: str,
    token: Callable[[], str],
    services: Callable[[], Mapping[str, "ServicePages"]],
    **options: Any,
) -> ASGIApp:
    """The application to mount at CONSOLE. `host` is the listening address, `token` returns the token of the console's
    link, and `services` the pages of each service by name."""
    if any(find_spec(name) is None for name in NEEDED):
        return Starlette(routes=[Route("/{rest:path}", _missing)])
    from payonce.console.site import build_console

    return build_console(context, host, token, services(), **options)


def entry_routes() -> list[BaseRoute]:
    """Redirects from / and from the console's path without a trailing slash."""
    return [Route("/", _enter), Route(CONSOLE, _enter)]


async def _enter(request: Request) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{CONSOLE}/{query}", status_code=307)


async def _missing(request: Request) -> Response:
    return PlainTextResponse("the console is not installed; run: pip install 'payonce[console]'\n", status_code=503)
