"""Checks of JSON bodies that routes read themselves."""

from http import HTTPStatus

from payonce.http.kit.problems import Problem
from payonce.kit.duplicate_names import repeated_name


def refuse_repeated(body: bytes) -> None:
    """Raises Problem for a body that has a name twice in one object."""
    name = repeated_name(body)
    if name is not None:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body has {name} twice in one object; send each name once")
