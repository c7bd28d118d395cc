"""The one line by which a process serves the console, also where its extra is not installed."""

from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from payonce.console.desk import Desk
from payonce.console.links import ROOT
from payonce.kit.outcomes import Unavailable

NEEDED = ("jinja2", "python_multipart")


def console_routes(desk: Desk, host: str, **options: Any) -> list[BaseRoute]:
    async def to_console(request: Request) -> Response:
        return RedirectResponse(ROOT, status_code=307)

    async def missing(request: Request) -> Response:
        raise Unavailable("the console is not installed here; install payonce[console]")

    if any(find_spec(name) is None for name in NEEDED):
        return [Route(ROOT, missing), Route(f"{ROOT}/{{rest:path}}", missing)]
    from payonce.console.site import build_console

    return [Route("/", to_console), Mount(ROOT, build_console(desk, host, **options))]
