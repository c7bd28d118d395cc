"""Every route that a document names is served, with the method that it names."""

import re

from starlette.routing import Route

from tests.docs.documents import DOCUMENTS, name_of, routes
from tests.http.conftest import OpenWeb

INTERNAL_ERROR = [path for path in DOCUMENTS if "vendors" not in path.parts]
"""The page of a vendor tells of the vendor's routes."""


async def test_every_route_is_served(web: OpenWeb) -> None:
    async with web() as ask:
        described = (await ask.get("/openapi.json")).json["paths"]
        # Some answer without being described: what vendors and our own other process post, and the description.
        hidden = {route.path: route.methods or () for route in ask.web.routes if isinstance(route, Route)}
    shapes = {
        re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)): {*map(str.upper, methods)}
        for path, methods in (*described.items(), *hidden.items())
    }
    for path in INTERNAL_ERROR:
        for method, named in routes(path.read_text(encoding="utf-8")):
            bare = re.sub(r"\$\{?\w+\}?|\{[^}]*\}|…", "x", named.partition("?")[0])
            found = [methods for shape, methods in shapes.items() if shape.fullmatch(bare)]
            below = [shape for shape in shapes if _begins_with(shape, bare)]
            assert found or (method is None and below), f"{name_of(path)}: there is no {named}"
            assert method is None or any(method in methods for methods in found), f"{name_of(path)}: {method} {named}"


def _begins_with(shape: re.Pattern[str], path: str) -> bool:
    parts = path.rstrip("/").split("/")
    patterns = shape.pattern.replace("[^/]+", "\0").split("/")
    return len(patterns) > len(parts) and all(
        pattern in (part, "\0") for pattern, part in zip(patterns, parts, strict=False)
    )
