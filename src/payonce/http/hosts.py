"""Checks the Host header, against DNS rebinding.

Another site's page can point its own name at this machine and then read what the process serves on loopback. Such
requests carry that name. A process that listens on loopback therefore accepts only loopback names and those in
PAYONCE_ALLOWED_HOSTS. A process that listens elsewhere accepts all names, or only the allowed ones if any are set.
"""

import re
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from payonce.console.auth import is_loopback
from payonce.http.kit.problems import Problem

SHOWN_MAX_CHARS: Final = 200
REMEMBERED: Final = 256
"""Cached headers; most requests use the same few."""
_HOST: Final = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~-]+))(?::[0-9]{0,5})?")
"""A name or an address, with an optional port. Anything more, such as a user or a path, could be read as another
host."""


def is_host(header: bytes) -> bool:
    return _HOST.fullmatch(header) is not None


class Hosts:
    def __init__(self, listens_on: str, allowed: str | None) -> None:
        self._allowed = {name.strip().lower().rstrip(".") for name in (allowed or "").split(",") if name.strip()}
        self._all = not self._allowed and not is_loopback(listens_on)

    def check(self, host: bytes | None) -> None:
        """Raises Problem for other names. A missing header is accepted: HTTP/1.0 probes omit it, browsers never do."""
        if self._all or host is None:
            return
        name, loopback = _named(host)
        if name not in self._allowed and not loopback:
            given = host.decode("latin-1")[:SHOWN_MAX_CHARS]
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this process does not answer to the name {given!r}; if it is yours, set PAYONCE_ALLOWED_HOSTS to it",
                # The body is not read.
                headers={"Connection": "close"},
            )


@lru_cache(maxsize=REMEMBERED)
def _named(host: bytes) -> tuple[str, bool]:
    """The name in the header, and whether it is a loopback name."""
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found[1] or found[2]).decode().lower().removesuffix(".")
    return name, is_loopback(name)
