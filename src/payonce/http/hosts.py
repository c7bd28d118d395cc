"""Which names in the header Host a process answers to.

A page elsewhere can point a name of its own at this machine (DNS rebinding) and then read whatever the process shows to
the loopback. Its requests carry that name. A process that listens on the loopback therefore answers to names of the
loopback and to those that the settings allow; one that listens elsewhere answers to all, or to those that are allowed.
"""

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from payonce.console.auth import is_loopback
from payonce.http.kit.problems import Problem

SHOWN_MAX_CHARS: Final = 200
REMEMBERED: Final = 256
"""Headers whose name is known: most requests come with the same few."""
_HOST: Final = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::[0-9]{0,5})?")
"""A name or an address with or without a port. Whoever reads more into it, such as a user or a path, may find another
host there."""


def is_host(header: bytes) -> bool:
    return _HOST.fullmatch(header) is not None


class Hosts:
    def __init__(self, listens_on: str, allowed: str | None) -> None:
        self._allowed = {name.strip().lower().rstrip(".") for name in (allowed or "").split(",") if name.strip()}
        self._all = not self._allowed and not is_loopback(listens_on)

    def check(self, host: bytes | None) -> None:
        """Without the header, as probes with HTTP/1.0 come, nothing is refused: every browser sends it."""
        if self._all or host is None:
            return
        name, loopback = _named(host)
        if name not in self._allowed and not loopback:
            given = host.decode("latin-1")[:SHOWN_MAX_CHARS]
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this process does not answer to the name {given!r}; if it is yours, set PAYONCE_ALLOWED_HOSTS to it",
                # Its body is not read.
                headers={"Connection": "close"},
            )


@lru_cache(maxsize=REMEMBERED)
def _named(host: bytes) -> tuple[str, bool]:
    """The name in the header, and whether it is one of the loopback."""
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2]).decode().lower().removesuffix(".")
    return name, is_loopback(name)
