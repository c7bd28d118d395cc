"""JSON bodies that have a name twice, or so many values that reading them would hold the process up, are refused on
every route."""

from http import HTTPStatus
from typing import Final

from starlette.requests import Request

from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import Problem

BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
VALUES_MAX: Final = 5_000
"""Of a JSON body. A megabyte holds 90,000 names that no route knows: to list them as errors takes a second, in which
no lease is renewed."""


def refuse_many_values(content_type: str, body: bytes) -> None:
    """Before anything reads it. Commas inside texts count too: what has thousands of them is no request of ours."""
    if _is_json(content_type) and body.count(b",") >= VALUES_MAX:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a JSON body has at most {VALUES_MAX:,} values")


async def refuse_repeated_names(request: Request) -> None:
    if request.method in BODILESS or not _is_json(request.headers.get("content-type", "")):
        return
    refuse_repeated(await request.body())


def _is_json(content_type: str) -> bool:
    """Whoever reads the body compares without regard to case."""
    return "json" in content_type.lower()
