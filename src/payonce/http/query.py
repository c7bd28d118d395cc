"""Queries that a route does not know are refused: a filter with a slip of the pen would otherwise match everything.

So is a value that comes twice, of which all but the last would be passed over."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin

from fastapi.dependencies.models import Dependant
from starlette.requests import Request

from payonce.http.kit.values import no_such_parameters, wrong_query

OPEN_ENDED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapers add parameters of their own."""


async def refuse_unknown_query(request: Request) -> None:
    route: Any = request.scope["route"]
    if route.path in OPEN_ENDED or not request.query_params:
        return
    known = dict(_parameters(route.dependant))
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = no_such_parameters(given.keys() - known, known) or {
        name: "it is there more than once; give one value"
        for name, count in sorted(given.items())
        if count > 1 and not known[name]
    }
    if wrong:
        raise wrong_query(wrong)


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """By name, whether it may come several times."""
    yield from ((field.alias, _is_list(field.field_info.annotation)) for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(_is_list(part) for part in get_args(kind))
