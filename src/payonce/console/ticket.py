"""The ticket of the local operator: until a login exists, the console's link contains its token."""

import hmac
from collections.abc import Callable
from typing import Final

from payonce.console.links import ROOT

PARAMETER: Final = "token"
TICKET_KEPT_S: Final = 30 * 86_400


class Ticket:
    """Read on first use: a process whose visitors all have logins needs none."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read

    def matches_token(self, token: str) -> bool:
        """Whether `token` is the link's."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._read().encode())

    def matches_cookie(self, cookie: str | None) -> bool:
        return hmac.compare_digest((cookie or "").encode("utf-8", "replace"), self.cookie.encode())

    @property
    def cookie(self) -> str:
        """Derived from the token, so that the browser does not store the link itself."""
        return hmac.new(self._read().encode(), b"payonce console ticket", "sha256").hexdigest()


def link_with(token: str, host: str, port: int) -> str:
    """The link to the console."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{ROOT}?{PARAMETER}={token}"
