"""Queries that a route does not know are refused: a filter with a slip of the pen would otherwise match everything."""

from collections.abc import Iterator
from typing import Any, Final

from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request

OPEN_ENDED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapers add parameters of their own."""


async def refuse_unknown_query(request: Request) -> None:
    route: Any = request.scope["route"]
    if route.path in OPEN_ENDED or not request.query_params:
        return
    known = set(_names(route.dependant))
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        said = f"there is no such parameter; there are: {', '.join(sorted(known)) or 'none'}"
        raise RequestValidationError([{"type": "extra", "loc": ("query", name), "msg": said} for name in unknown])


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
