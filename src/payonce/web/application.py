"""The application behind the port: routes of the house and of the services, and the pages mounted beside them."""

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from payonce.app import App
from payonce.routes.problems import exception_handlers
from payonce.web.guard import Guard
from payonce.web.health import health_routes
from payonce.web.openapi import describe

MOUNTS: Final[Mapping[str, Callable[[App], ASGIApp]]] = {}
"""Applications with pages of their own, by the path under which they answer. They do their own logins; bodies, times
and trace ids are guarded here."""


def build_web(app: App) -> FastAPI:
    web = FastAPI(
        title="payonce",
        # A page of documents would load its scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=exception_handlers(),
        generate_unique_id_function=lambda route: route.name,
    )
    web.add_middleware(Guard)
    web.include_router(health_routes(app))
    for path, build in MOUNTS.items():
        web.mount(path, build(app))
    describe(web)
    return web
