"""Rejects JSON bodies with duplicate names, or with more values than can be parsed without blocking the process."""

from http import HTTPStatus
from typing import Final

from starlette.requests import Request

from payonce.http.kit.json_bodies import refuse_repeated
from payonce.http.kit.problems import Problem

BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
VALUES_MAX: Final = 5_000
"""Of a JSON body. A megabyte holds 90,000 unknown names; listing them as errors takes a second, during which no lease
is renewed."""


def refuse_many_values(content_type: str, body: bytes) -> None:
    """Called before the body is parsed. Commas inside strings count as well: no valid request has thousands of them."""
    if _is_json(content_type) and body.count(b",") >= VALUES_MAX:
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a JSON body has at most {VALUES_MAX:,} values")


async def refuse_repeated_names(request: Request) -> None:
    if request.method in BODILESS or not _is_json(request.headers.get("content-type", "")):
        return
    refuse_repeated(await request.body())


def _is_json(content_type: str) -> bool:
    """Case-insensitive, as the parser compares."""
    return "json" in content_type.lower()
