"""The API description at /openapi.json, with the problem documents that routes actually return."""

import asyncio
import hashlib
import json
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.http.kit.idempotency import HEADER, KEY_PATTERN
from payonce.http.kit.problems import MEDIA_TYPE, ProblemDocument

PATH: Final = "/openapi.json"
ABOUT: Final = (
    "Errors are problem documents (RFC 9457). Every response has the header Trace-Id; quote it in support requests."
)
REPLACED: Final = ("HTTPValidationError", "ValidationError")
"""The framework's schemas of a 422, replaced by Problem."""


def describe(web: FastAPI) -> None:
    """Adds the route. The description is generated on the first request, since most processes never get one, and in a
    thread, since it takes a second during which the event loop must renew leases. Its bytes are cached."""

    def described() -> dict[str, Any]:
        if web.openapi_schema is None:
            web.openapi_schema = _schema(web)
        return web.openapi_schema

    def render() -> tuple[bytes, str]:
        body = json.dumps(described(), ensure_ascii=False, separators=(",", ":")).encode()
        return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    kept: list[tuple[bytes, str]] = []
    making = asyncio.Lock()

    async def answer(request: Request) -> Response:
        if not kept:
            async with making:
                if not kept:
                    kept.append(await asyncio.to_thread(render))
        body, tag = kept[0]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    web.openapi = described  # type: ignore[method-assign]
    web.router.routes.append(Route(PATH, answer, methods=["GET", "HEAD"], include_in_schema=False))


def _schema(web: FastAPI) -> dict[str, Any]:
    schema = get_openapi(title=web.title, version=version("payonce"), description=ABOUT, routes=web.routes)
    schemas: dict[str, Any] = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in REPLACED:
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    for operations in schema["paths"].values():
        for operation in operations.values():
            _correct(operation)
    return schema


def _correct(operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == HEADER:
            # Optional only for the framework, whose own error would be a bare "field required".
            parameter |= {"required": True, "schema": {"type": "string", "pattern": f"^{KEY_PATTERN}$"}}
    for status, answer in operation["responses"].items():
        if status == "422":
            answer["description"] = "Invalid values, or a refused request"
            answer["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
