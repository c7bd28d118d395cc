"""What a page is made of: routes that name the role they need, and the visit that their handlers are given."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from payonce.console.cache import Board
from payonce.console.context import Desk
from payonce.console.cookies import NOTICE, Cookies
from payonce.console.links import ROOT, link
from payonce.console.summary import Glance
from payonce.console.templating import ENVIRONMENT
from payonce.engine.operators import Person, Role

NOTICE_MAX_LENGTH: Final = 600

Group = Literal["Now", "Work", "Money", "Billing", "Record"]


@dataclass(frozen=True)
class PageRoute:
    method: Literal["GET", "POST"]
    path: str
    handler: "Handler"
    role: Role


@dataclass(frozen=True)
class Page:
    """One entry of the navigation, or, without a group, a page that only links lead to."""

    title: str
    path: str
    routes: tuple[PageRoute, ...]
    group: Group | None = None
    badge: str | None = None
    """The name of the count in `Alerts` that is shown beside its title."""


@dataclass(frozen=True)
class Visit:
    """One request of one person."""

    desk: Desk
    request: Request
    person: Person
    now: datetime
    """By the store's clock, as all times on a page are."""
    csrf: str
    cookies: Cookies
    local: bool
    """Nobody logged in: this is whoever sits at the machine."""
    glance: Glance
    board: Board
    form: FormData = field(default_factory=FormData)
    pages: tuple[Page, ...] = ()

    @property
    def path(self) -> Mapping[str, Any]:
        return self.request.path_params

    @property
    def asked(self) -> Mapping[str, str]:
        """The query of the address."""
        return self.request.query_params

    @property
    def renews(self) -> bool:
        """The page is open already and asks for its living parts alone."""
        return "hx-request" in self.request.headers

    def has(self, path: str) -> bool:
        """Whether there is such a page to link to."""
        return any(page.path == path for page in self.pages)

    def may(self, role: Role | str) -> bool:
        return self.person.role.may(Role(role))

    def page(self, template: str, title: str, *, status: int = 200, **context: Any) -> Response:
        text = ENVIRONMENT.get_template(template).render(
            visit=self,
            title=title,
            person=self.person,
            csrf=self.csrf,
            now=self.now,
            notice=self.cookies.notice(self.csrf),
            theme=self.cookies.theme,
            here=self.request.url.path,
            here_with_query=self.request.url.path + (f"?{self.request.url.query}" if self.request.url.query else ""),
            pages=self.pages,
            alerts=self.glance.alerts,
            **context,
        )
        response = HTMLResponse(text, status_code=status)
        if self.cookies.sealed_notice:
            response.delete_cookie(NOTICE, path=ROOT)
        return response

    def done(self, path: str, notice: str) -> Response:
        """After a change: to the page that shows it, with a sentence on what happened."""
        response = RedirectResponse(link(path), status_code=303)
        self.cookies.set_notice(response, self.csrf, notice[:NOTICE_MAX_LENGTH])
        return response

    def left_to_another(self, approval_id: int) -> Response:
        """After a change that waits for somebody else: to the page where it is granted."""
        text = f"Asked. Nothing is done until a second person grants approval {approval_id}."
        return self.done(f"/approvals/{approval_id}", text)


Handler = Callable[[Visit], Awaitable[Response]]


def get(path: str, handler: Handler, role: Role = Role.VIEWER) -> PageRoute:
    return PageRoute("GET", path, handler, role)


def post(path: str, handler: Handler, role: Role = Role.OPERATOR) -> PageRoute:
    return PageRoute("POST", path, handler, role)
