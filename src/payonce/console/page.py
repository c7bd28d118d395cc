"""What a page is made of: routes that name the role they need, and the visit that their handlers are given."""

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
"""Groups of the navigation. Groups of services stand between them."""


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
    group: str | None = None
    badge: str | None = None
    """The name of the count in `Alerts` that is shown beside its title."""


@dataclass(frozen=True)
class VendorSection:
    """A part of the page of vendors."""

    load: Callable[["Visit"], Awaitable[Mapping[str, Any] | None]]
    """What its templates show as `section`; None where there is nothing to show."""
    template: str
    """Renewed while the page is open."""
    form: str | None = None
    """Below all sections, and not renewed, so that nothing that is typed gets lost."""


@dataclass(frozen=True)
class ServicePages:
    """What a service adds to the console."""

    pages: Sequence[Page]
    templates: Path
    """The folder of its templates. Their names begin with the service's: `giftcards/list.html`."""
    tones: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The tone of each state, by the kind of object that lookups and timelines name: good, bad, warn, calm or plain."""
    vendor_sections: Sequence[VendorSection] = ()


@dataclass(frozen=True)
class Site:
    """The pages of the platform and of the services, and what they are rendered with."""

    pages: Sequence[Page]
    navigation: Sequence[tuple[str, Sequence[Page]]]
    """The groups in their order, each with its pages."""
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
    """The groups that have pages, in their order."""
    found: dict[str, list[Page]] = {group: [] for group in FIRST_GROUPS}
    for page in pages:
        if page.group is not None:
            found.setdefault(page.group, []).append(page)
    last = found.pop(LAST_GROUP, [])
    return [(group, listed) for group, listed in (*found.items(), (LAST_GROUP, last)) if listed]


@dataclass(frozen=True)
class Visit:
    """One request of one person."""

    context: Context
    request: Request
    person: Person
    now: datetime
    """By the store's clock, as all times on a page are."""
    csrf: str
    cookies: Cookies
    local: bool
    """Nobody logged in: this is whoever sits at the machine."""
    summary: Summary
    cache: Cache
    site: Site
    form: FormData = field(default_factory=FormData)

    @property
    def path(self) -> Mapping[str, Any]:
        return self.request.path_params

    @property
    def query(self) -> Mapping[str, str]:
        """The query of the address."""
        return self.request.query_params

    @property
    def is_refresh(self) -> bool:
        """The page is open already and asks for its living parts alone."""
        return "hx-request" in self.request.headers

    def has(self, path: str) -> bool:
        """Whether there is such a page to link to."""
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
        """After a change: to the page that shows it, with a sentence on what happened."""
        response = RedirectResponse(link(path), status_code=303)
        self.cookies.set_notice(response, self.csrf, notice[:NOTICE_MAX_LENGTH])
        return response

    def awaiting_approval(self, approval_id: int) -> Response:
        """After a change that waits for somebody else: to the page where it is granted."""
        text = f"Asked. Nothing is done until a second person grants approval {approval_id}."
        return self.done(f"/approvals/{approval_id}", text)


Handler = Callable[[Visit], Awaitable[Response]]


def get(path: str, handler: Handler, role: Role = Role.VIEWER) -> PageRoute:
    return PageRoute("GET", path, handler, role)


def post(path: str, handler: Handler, role: Role = Role.OPERATOR) -> PageRoute:
    return PageRoute("POST", path, handler, role)
