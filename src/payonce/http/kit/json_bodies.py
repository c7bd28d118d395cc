"""Checks of JSON bodies that routes read themselves."""

from http import HTTPStatus

from payonce.http.kit.problems import Problem
from payonce.kit.duplicate_names import repeated_name


def refuse_repeated(body: bytes) -> None:
    """Raises Problem for a JSON body with a duplicate name in one object."""
    name = repeated_name(body)
    if name is not None:
        raise Problem(
            HTTPStatus.BAD_REQUEST, f"the body has a duplicate name, {name}, in one object; send each name once"
        )
