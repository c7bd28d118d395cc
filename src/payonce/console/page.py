"""Pages: their routes with the roles they need, and the visit that handlers receive."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from jinja2 import Environment
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from payonce.console.cache import Cache
from payonce.console.context import Context
from payonce.console.cookies import NOTICE, Cookies
from payonce.console.links import ROOT, link
from payonce.console.summary import Summary
from payonce.console.template_environment import environment_with
from payonce.engine.operators import Person, Role

NOTICE_MAX_LENGTH: Final = 600

FIRST_GROUPS: Final = ("Now", "Work", "Money")
LAST_GROUP: Final = "Record"
"""Groups of the navigation; services' groups are between them."""


@dataclass(frozen=True)
class PageRoute:
    method: Literal["GET", "POST"]
    path: str
    handler: "Handler"
    role: Role


@dataclass(frozen=True)
class Page:
    """A page: an entry of the navigation, or, without a group, reachable by links only."""

    title: str
    path: str
    routes: tuple[PageRoute, ...]
    group: str | None = None
    badge: str | None = None
    """The count in `Alerts` shown beside the title."""


@dataclass(frozen=True)
class VendorSection:
    """A service's section of the vendors page."""

    load: Callable[["Visit"], Awaitable[Mapping[str, Any] | None]]
    """Loads what the templates use as `section`; None if there is nothing to show."""
    template: str
    """Refreshed while the page is open."""
    form: str | None = None
    """Shown below all sections and not refreshed, so that typed text is not lost."""


@dataclass(frozen=True)
class ServicePages:
    """What a service adds to the console."""

    pages: Sequence[Page]
    templates: Path
    """The folder of its templates. Their names begin with the service's: `giftcards/list.html`."""
    tones: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The tone of each state by kind of object: good, bad, warn, calm or plain."""
    vendor_sections: Sequence[VendorSection] = ()


@dataclass(frozen=True)
class Site:
    """All pages of the platform and the services, and the template environment."""

    pages: Sequence[Page]
    navigation: Sequence[tuple[str, Sequence[Page]]]
    """The groups in order, each with its pages."""
    vendor_sections: Sequence[VendorSection]
    templates: Environment

    @classmethod
    def of(cls, platform: Sequence[Page], services: Mapping[str, ServicePages]) -> "Site":
        """Within a group, the pages of services come first."""
        added = services.values()
        pages = (*(page for each in added for page in each.pages), *platform)
        return cls(
            pages,
            navigation_of(pages),
            [section for each in added for section in each.vendor_sections],
            environment_with(
                {name: each.templates for name, each in services.items()},
                {kind: tones for each in added for kind, tones in each.tones.items()},
            ),
        )


def navigation_of(pages: Sequence[Page]) -> list[tuple[str, Sequence[Page]]]:
    """The groups that have pages, in order."""
    found: dict[str, list[Page]] = {group: [] for group in FIRST_GROUPS}
    for page in pages:
        if page.group is not None:
            found.setdefault(page.group, []).append(page)
    last = found.pop(LAST_GROUP, [])
    return [(group, listed) for group, listed in (*found.items(), (LAST_GROUP, last)) if listed]


@dataclass(frozen=True)
class Visit:
    """An authenticated request."""

    context: Context
    request: Request
    person: Person
    now: datetime
    """The database's clock, like all times on a page."""
    csrf: str
    cookies: Cookies
    local: bool
    """Whether this is the local operator, without a login."""
    summary: Summary
    cache: Cache
    site: Site
    form: FormData = field(default_factory=FormData)

    @property
    def path(self) -> Mapping[str, Any]:
        return self.request.path_params

    @property
    def query(self) -> Mapping[str, str]:
        """The query parameters."""
        return self.request.query_params

    @property
    def is_refresh(self) -> bool:
        """Whether an open page requests its live parts."""
        return "hx-request" in self.request.headers

    def has(self, path: str) -> bool:
        """Whether the console has a page at this path."""
        return any(page.path == path for page in self.site.pages)

    def may(self, role: Role | str) -> bool:
        return self.person.role.may(Role(role))

    def page(self, template: str, title: str, *, status: int = 200, **context: Any) -> Response:
        text = self.site.templates.get_template(template).render(
            visit=self,
            title=title,
            person=self.person,
            csrf=self.csrf,
            now=self.now,
            notice=self.cookies.notice(self.csrf),
            theme=self.cookies.theme,
            here=self.request.url.path,
            here_with_query=self.request.url.path + (f"?{self.request.url.query}" if self.request.url.query else ""),
            navigation=self.site.navigation,
            alerts=self.summary.alerts,
            **context,
        )
        response = HTMLResponse(text, status_code=status)
        if self.cookies.sealed_notice:
            response.delete_cookie(NOTICE, path=ROOT)
        return response

    def done(self, path: str, notice: str) -> Response:
        """Redirects after a change to the page that shows it, with a notice."""
        response = RedirectResponse(link(path), status_code=303)
        self.cookies.set_notice(response, self.csrf, notice[:NOTICE_MAX_LENGTH])
        return response

    def awaiting_approval(self, approval_id: int) -> Response:
        """Redirects after a request that needs approval to the page of the approval."""
        text = f"Requested. Nothing is changed until a second person grants approval {approval_id}."
        return self.done(f"/approvals/{approval_id}", text)


Handler = Callable[[Visit], Awaitable[Response]]


def get(path: str, handler: Handler, role: Role = Role.VIEWER) -> PageRoute:
    return PageRoute("GET", path, handler, role)


def post(path: str, handler: Handler, role: Role = Role.OPERATOR) -> PageRoute:
    return PageRoute("POST", path, handler, role)
