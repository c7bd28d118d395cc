"""The lines of a request's head: each part of a request stays within its own line."""

import re
from functools import lru_cache
from typing import Final

from payonce.kit.http.failures import Unsendable
from payonce.kit.http.transport import Outgoing

NAMES_KEPT: Final = 1_000
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LINE_END: Final = re.compile(r"[\r\n\0]")
_WORD_END: Final = re.compile(r"[\r\n\0 ]")


@lru_cache(maxsize=NAMES_KEPT)
def is_name(text: str) -> bool:
    """Whether a header can have this name."""
    return _NAME.fullmatch(text) is not None


def check_lines(outgoing: Outgoing) -> None:
    """Raises Unsendable for a part that would end its line early, and so begin another header or another request."""
    method, target = outgoing.method, outgoing.target
    if _WORD_END.search(method) or _WORD_END.search(target.path) or _WORD_END.search(target.query):
        raise Unsendable("the request has a method or a URL that would not be one word")
    for name, value in outgoing.headers:
        if not is_name(name) or _LINE_END.search(value):
            raise Unsendable("the request has a header that would not be a line of its own")
