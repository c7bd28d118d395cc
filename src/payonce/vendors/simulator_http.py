"""HTTP for simulators: routing, and the JSON control endpoints below `/simulator`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.outcomes import Invalid


class Paths:
    """An ASGI application that finds routes without path parameters by one dictionary look-up and leaves all other
    requests to Starlette."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._endpoints = {(method, each.path): each.endpoint for each in routes for method in each.methods or ()}
        self._others = Starlette(routes=routes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        endpoint = self._endpoints.get((scope.get("method"), scope.get("path")))
        if endpoint is None:
            await self._others(scope, receive, send)
        else:
            answer = await endpoint(Request(scope, receive))
            await answer(scope, receive, send)


def control_endpoint(shape: type[Any], act: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return json_response(act(msgspec.json.decode(await request.body(), type=shape)))
        except (msgspec.MsgspecError, Invalid) as problem:
            return json_response({"error": str(problem)}, 400)

    return endpoint


def json_response(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
