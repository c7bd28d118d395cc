"""The application behind the port: routes of the house and of the services, and the pages mounted beside them."""

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import Depends, FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp

from payonce.app import SERVICES, App
from payonce.console.mounting import CONSOLE, console, ways_in
from payonce.routes.attempts import Attempts
from payonce.routes.problems import exception_handlers
from payonce.web.approvals import approval_routes
from payonce.web.effects import effect_routes
from payonce.web.guard import Guard
from payonce.web.health import health_routes
from payonce.web.jobs import job_routes
from payonce.web.openapi import describe
from payonce.web.query import refuse_unknown_query
from payonce.web.queues import queue_routes
from payonce.web.webhooks import webhook_routes

MOUNTS: Final[Mapping[str, Callable[[App], ASGIApp]]] = {
    CONSOLE: lambda app: console(app, app.settings.host, app.console_token)
}
"""Applications with pages of their own, by the path under which they answer. They do their own logins; bodies, times
and trace ids are guarded here."""


GUARD_MARGIN_S: Final = 5.0
"""Beyond the patience of a door, which answers for itself when a run does not end."""


def build_web(app: App) -> FastAPI:
    web = FastAPI(
        title="payonce",
        # A page of documents would load its scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=exception_handlers(),
        dependencies=[Depends(refuse_unknown_query)],
        generate_unique_id_function=lambda route: route.name,
    )
    pushes = app.backend.pushes
    doors = [] if pushes is None else pushes.doors()
    slow = {path: pushed.answers_within_s + GUARD_MARGIN_S for pushed, _ in doors for path in pushed.paths}
    web.add_middleware(Guard, answer_limits_s=slow)
    web.state.desk = app
    web.state.attempts = Attempts()
    web.include_router(health_routes(app))
    for build in (queue_routes, job_routes, effect_routes, approval_routes):
        web.include_router(build())
    web.include_router(webhook_routes(app))
    for service in SERVICES:
        if service.routes is not None:
            web.include_router(service.routes())
    for path, mounted in MOUNTS.items():
        web.mount(path, mounted(app))
    web.router.routes.extend(ways_in())
    # First: a process of one role answers under the bare paths, whatever else answers there in a process of all.
    web.router.routes[:0] = [
        Route(path, door, methods=["POST"], include_in_schema=False) for pushed, door in doors for path in pushed.paths
    ]
    describe(web)
    return web
