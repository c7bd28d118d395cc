"""How a process serves the console, also where its extra is not installed."""

from importlib.util import find_spec
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from payonce.console.desk import Desk
from payonce.console.links import ROOT

NEEDED: Final = ("jinja2", "python_multipart")


def console_routes(desk: Desk, host: str, **options: Any) -> list[BaseRoute]:
    """The console, and the ways to it: from the bare address, and from its own without the last slash. `host` is where
    the process listens."""
    if any(find_spec(name) is None for name in NEEDED):
        return [Route(ROOT, _missing), Route(f"{ROOT}/{{rest:path}}", _missing)]
    from payonce.console.site import build_console

    return [Route("/", _enter), Route(ROOT, _enter), Mount(ROOT, build_console(desk, host, **options))]


async def _enter(request: Request) -> Response:
    return RedirectResponse(f"{ROOT}/", status_code=307)


async def _missing(request: Request) -> Response:
    return PlainTextResponse("the console is not installed here; install payonce[console]\n", status_code=503)
