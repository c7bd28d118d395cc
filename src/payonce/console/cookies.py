"""The console's cookies: session, ticket, browser id for login forms, colour theme, notice."""

import hmac
import secrets
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from payonce.console.links import ROOT

SESSION: Final = "payonce_session"
TICKET: Final = "payonce_ticket"
VISIT: Final = "payonce_visit"
THEME: Final = "payonce_theme"
NOTICE: Final = "payonce_notice"
THEMES: Final = ("auto", "light", "dark")
VISIT_BYTES: Final = 32
NOTICE_KEPT_S: Final = 60
COOKIE_MAX_LENGTH: Final = 4_000


@dataclass(frozen=True)
class Cookies:
    session: str | None
    ticket: str | None
    visit: str
    theme: str
    sealed_notice: str
    secure: bool
    new_visit: bool

    @classmethod
    def of(cls, request: Request) -> "Cookies":
        said = {name: value[:COOKIE_MAX_LENGTH] for name, value in request.cookies.items()}
        theme = said.get(THEME, "auto")
        known = said.get(VISIT, "")
        fresh = len(known) < VISIT_BYTES
        return cls(
            session=said.get(SESSION) or None,
            ticket=said.get(TICKET) or None,
            visit=secrets.token_urlsafe(VISIT_BYTES) if fresh else known,
            theme=theme if theme in THEMES else "auto",
            sealed_notice=said.get(NOTICE, ""),
            secure=request.url.scheme == "https",
            new_visit=fresh,
        )

    def csrf(self, logged_in: bool) -> str:
        """A token that only our own pages contain, derived from secrets that only the browser and we know."""
        # Another port of this machine could set the browser id, but does not know the ticket.
        key = self.session if logged_in and self.session else f"{self.ticket or ''}{self.visit}"
        return hmac.new(key.encode("utf-8", "replace"), b"payonce console form", "sha256").hexdigest()

    def notice(self, csrf: str) -> str:
        """The notice of a change in this session; empty for a cookie that anybody else set, such as another port."""
        given, _, text = self.sealed_notice.partition(".")
        notice = unquote(text)
        return notice if hmac.compare_digest(given.encode("utf-8", "replace"), _seal(csrf, notice).encode()) else ""

    def set_notice(self, response: Response, csrf: str, notice: str) -> None:
        self.set(response, NOTICE, f"{_seal(csrf, notice)}.{quote(notice)}", max_age_s=NOTICE_KEPT_S)

    def set(
        self,
        response: Response,
        name: str,
        value: str,
        max_age_s: int | None = None,
        samesite: Literal["lax", "strict"] = "lax",
    ) -> None:
        response.set_cookie(
            name, value, max_age=max_age_s, path=ROOT, secure=self.secure, httponly=True, samesite=samesite
        )


def _seal(csrf: str, notice: str) -> str:
    return hmac.new(csrf.encode(), f"payonce console notice {notice}".encode("utf-8", "replace"), "sha256").hexdigest()
