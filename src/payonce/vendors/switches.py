"""What is below `/simulator` at every vendor: an act for each thing that may be told, answered in JSON."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from payonce.kit.outcomes import Invalid


def told(shape: type[Any], act: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return said(act(msgspec.json.decode(await request.body(), type=shape)))
        except (msgspec.MsgspecError, Invalid) as problem:
            return said({"error": str(problem)}, 400)

    return endpoint


def said(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
