"""Rejects unknown query parameters, since a misspelt filter would match everything, and duplicate parameters, since all
but the last would be ignored."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin

from fastapi.dependencies.models import Dependant
from starlette.requests import Request

from payonce.http.kit.values import no_such_parameters, wrong_query

OPEN_ENDED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Probes and scrapers add their own parameters."""


async def refuse_unknown_query(request: Request) -> None:
    route: Any = request.scope["route"]
    if route.path in OPEN_ENDED or not request.query_params:
        return
    known = dict(_parameters(route.dependant))
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = no_such_parameters(given.keys() - known, known) or {
        name: "it is given more than once; give one value"
        for name, count in sorted(given.items())
        if count > 1 and not known[name]
    }
    if wrong:
        raise wrong_query(wrong)


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yields each name, and whether it may be repeated."""
    yield from ((field.alias, _is_list(field.field_info.annotation)) for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(_is_list(part) for part in get_args(kind))
