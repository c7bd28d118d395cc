"""The ticket of whoever sits at the machine: while nobody has a login, the link that `payonce up` prints carries it."""

import hmac
from collections.abc import Callable
from typing import Final

from payonce.console.links import ROOT

PARAMETER: Final = "token"
TICKET_KEPT_S: Final = 30 * 86_400


class Ticket:
    """Read when it is first asked for: a process that only people with logins visit has no use for one."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def matches_token(self, token: str) -> bool:
        """Whether this is the token of the link."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._read().encode())

    def matches_cookie(self, cookie: str | None) -> bool:
        return hmac.compare_digest((cookie or "").encode("utf-8", "replace"), self.cookie.encode())

    @property
    def cookie(self) -> str:
        """Made from the token, so that a browser's store does not have the link itself."""
        return hmac.new(self._read().encode(), b"payonce console ticket", "sha256").hexdigest()


def link_with(token: str, host: str, port: int) -> str:
    """What a person opens."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{ROOT}?{PARAMETER}={token}"
