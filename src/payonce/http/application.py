"""The ASGI application: the platform's routes, the services' routes, and the console and other mounted applications."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from payonce.app.process import App
from payonce.app.registry import service_pages
from payonce.console.mount import CONSOLE, console, entry_routes
from payonce.http.approvals import approval_routes
from payonce.http.body import refuse_repeated_names
from payonce.http.effects import effect_routes
from payonce.http.guard import Guard
from payonce.http.health import health_routes
from payonce.http.hosts import Hosts
from payonce.http.jobs import job_routes
from payonce.http.kit.attempts import attempts_by_kind
from payonce.http.kit.problems import exception_handlers
from payonce.http.openapi import describe
from payonce.http.query import refuse_unknown_query
from payonce.http.queues import queue_routes
from payonce.http.webhooks import webhook_routes

GUARD_MARGIN_S: Final = 5.0
"""Added to a push endpoint's own time limit: the endpoint answers first when a run does not end."""

FOR_ALL: Final = (Depends(refuse_unknown_query), Depends(refuse_repeated_names))


class _Web(FastAPI):
    """Dispatches push endpoints by their path alone: the middleware would cost more than some of their answers."""

    endpoints: Mapping[str, ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if endpoint is not None:
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def build_web(app: App) -> FastAPI:
    web = _Web(
        title="payonce",
        # openapi.describe caches its bytes; the framework's documentation pages load scripts from other sites.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=exception_handlers(),
        dependencies=FOR_ALL,
        generate_unique_id_function=_id_of,
    )
    pushes = app.backend.pushes
    endpoints = [] if pushes is None else pushes.endpoints()
    slow = {path: pushed.answers_within_s + GUARD_MARGIN_S for pushed, _ in endpoints for path in pushed.paths}
    proxies_named = app.settings.trusted_proxies is not None
    hosts = Hosts(app.settings.host, app.settings.access.allowed_hosts)
    short = [
        route
        for service in app.services
        if service.short_routes is not None and app.answers(service)
        for route in service.short_routes()
    ]
    web.add_middleware(Guard, answer_limits_s=slow, proxies_named=proxies_named, hosts=hosts)
    web.endpoints = {
        route.path: Guard(_answered_by(route, web), proxies_named=proxies_named, hosts=hosts) for route in short
    } | {
        path: Guard(endpoint, answer_limits_s=slow, hosts=hosts, many_values=True)
        for pushed, endpoint in endpoints
        for path in pushed.paths
    }
    web.state.context = app
    web.state.attempts = attempts_by_kind()
    web.include_router(health_routes(app))
    web.include_router(webhook_routes(app))
    for build in _builders(app):
        web.router.routes.extend(_built(build))
    # These authenticate their callers themselves; the guard adds limits and trace ids.
    web.mount(CONSOLE, console(app, app.settings.host, app.console_token, service_pages))
    for path, build_mounted in ((path, build) for service in app.services for path, build in service.mounts.items()):
        web.mount(path, build_mounted(app))
    web.router.routes.extend(entry_routes())
    # First: a process of one role answers under the bare paths, whatever else answers there in a process of all. A POST
    # does not come to these routes; other methods learn that the endpoint accepts POST only.
    web.router.routes[:0] = [
        *(
            Route(path, endpoint, methods=["POST"], include_in_schema=False)
            for each, endpoint in endpoints
            for path in each.paths
        ),
        *short,
    ]
    describe(web)
    return web


def _answered_by(route: Route, web: FastAPI) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"], scope["route"] = web, route
        response = await route.endpoint(Request(scope, receive))
        await response(scope, receive, send)

    return answer


def _builders(app: App) -> list[Callable[[], APIRouter]]:
    """The platform's routes, and the routes of the services that this process serves."""
    answered = [service for service in app.services if app.answers(service)]
    shared = dict.fromkeys(service.shared_routes for service in answered if service.shared_routes is not None)
    own = [service.routes for service in answered if service.routes is not None]
    return [queue_routes, job_routes, effect_routes, approval_routes, *shared, *own]


@cache
def _built(build: Callable[[], APIRouter]) -> Sequence[BaseRoute]:
    """Routes that read their application from the request. Building them takes half a second, so a process that opens
    several applications, as tests do, builds them once."""
    shared = APIRouter(dependencies=FOR_ALL, generate_unique_id_function=_id_of)
    shared.include_router(build())
    return shared.routes


def _id_of(route: APIRoute) -> str:
    return route.name
