"""A console on a real socket, and people who visit it without JavaScript: links, forms, cookies."""

import asyncio
import html
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.applications import Starlette
from starlette.routing import Mount
from yarl import URL

from payonce.app.registry import SERVICES, service_pages
from payonce.console import mount
from payonce.console.cookies import TICKET
from payonce.console.mount import CONSOLE
from payonce.console.page import Page
from payonce.console.pages import PAGES
from payonce.console.ticket import Ticket
from payonce.engine import controls
from payonce.engine.controls import Action, Actions
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Reader, Tx, begin
from payonce.engine.monitoring.attention import AttentionSource
from payonce.engine.monitoring.lookup import Lookup
from payonce.engine.operators import Role, add_person
from payonce.testing import Stage
from payonce.testing.server import serving

TOKEN = "the-token-of-the-link"
PASSWORD = "correct horse battery"


def every_page() -> list[Page]:
    """Those of the services, and the platform's."""
    return [*(page for each in service_pages().values() for page in each.pages), *PAGES]


@dataclass(frozen=True)
class StageContext:
    """The console's view of a stage."""

    stage: Stage
    closing: asyncio.Event
    also: Sequence[Callable[[Admin], Action[Any]]] = ()
    """Actions of a service."""
    resources: Sequence[object] = ()
    """What its roles opened."""
    elsewhere: Sequence[str] = ()
    """Roles whose tables are in another database."""

    @property
    def database(self) -> Database:
        return self.stage.database

    @property
    def notifier(self) -> Notifier:
        return self.stage.notifier

    @property
    def admin(self) -> Admin:
        return self.stage.admin

    @property
    def read(self) -> Reader:
        return self.stage.read

    @property
    def actions(self) -> Actions:
        declared: Sequence[Callable[[Admin], Action[Any]]] = (
            controls.answer_review_action,
            controls.redrive_action,
            controls.write_off_action,
            controls.change_threshold_action,
            *self.also,
        )
        made = [make(self.admin) for make in declared]
        return {action.name: action for action in made}

    @property
    def lookups(self) -> Sequence[Lookup]:
        return [lookup for service in SERVICES for lookup in service.lookups]

    def holds(self, role: str) -> bool:
        return role not in self.elsewhere

    @property
    def attention(self) -> Sequence[AttentionSource]:
        return [service.attention for service in SERVICES if service.attention is not None]

    def begin(self, trace_id: str | None = None) -> AbstractAsyncContextManager[Tx]:
        return begin(self.stage.database, self.stage.feed, trace_id)


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    url: str
    headers: Mapping[str, str]

    @property
    def words(self) -> str:
        """What a person reads: the text without its markup."""
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", self.text)).split())

    def field(self, name: str) -> str:
        """The value of a hidden or filled-in field."""
        found = re.search(rf'<input[^>]*name="{re.escape(name)}"[^>]*value="([^"]*)"', self.text)
        assert found, f"no field {name} on {self.url}"
        return html.unescape(found[1])


class Visitor:
    """One browser, as far as it can be without one."""

    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self.http = http
        self.address = address

    async def get(self, path: str, **headers: str) -> Answer:
        async with self.http.get(self._url(path), headers=_named(headers)) as response:
            return await _answer(response)

    async def post(self, path: str, form: Mapping[str, str], *, follow: bool = True, **headers: str) -> Answer:
        """As a form is sent, with the origin that browsers add."""
        said = {"Origin": self.address, **_named(headers)}
        url = self._url(path)
        async with self.http.post(url, data=dict(form), headers=said, allow_redirects=follow) as response:
            return await _answer(response)

    async def submit(self, page: Answer, path: str, **form: str) -> Answer:
        """A form of a page that was loaded, with its token."""
        return await self.post(path, {"csrf": page.field("csrf"), **form})

    async def log_in(self, name: str, password: str = PASSWORD) -> Answer:
        page = await self.get("/login")
        return await self.submit(page, "/login", name=name, password=password, next=page.field("next"))

    def _url(self, path: str) -> str:
        return (
            path
            if path.startswith("http")
            else f"{self.address}{path if path.startswith('/console') else '/console' + path}"
        )


@asynccontextmanager
async def console(
    stage: Stage,
    host: str = "127.0.0.1",
    also: Sequence[Callable[[Admin], Action[Any]]] = (),
    resources: Sequence[object] = (),
    elsewhere: Sequence[str] = (),
) -> AsyncIterator[str]:
    """The console as a process that listens at `host`, and knows these actions too, would serve it."""
    context = StageContext(stage, asyncio.Event(), also, resources, elsewhere)
    routes = [
        Mount(CONSOLE, mount.console(context, host, lambda: TOKEN, service_pages, keep_s=0.0)),
        *mount.entry_routes(),
    ]
    async with serving(Starlette(routes=routes)) as address:
        try:
            yield address
        finally:
            context.closing.set()


@asynccontextmanager
async def visiting(address: str, *, with_ticket: bool = True) -> AsyncIterator[Visitor]:
    """Somebody who opened the link that the process printed, or only its bare address."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        if with_ticket:
            http.cookie_jar.update_cookies({TICKET: Ticket(lambda: TOKEN).cookie}, URL(f"{address}{CONSOLE}/"))
        yield Visitor(http, address)


async def give_login(stage: Stage, name: str, role: Role = Role.OPERATOR, password: str = PASSWORD) -> None:
    async with stage.begin() as tx:
        await add_person(tx, name, role, password, by="the test")


async def notes_of(stage: Stage, reference: str) -> list[tuple[str, str]]:
    """(actor, text) of the audit log, the oldest first."""
    rows = await stage.read.fetch(
        "select actor, text from payonce.audit_log where reference = $1 order by id", reference
    )
    return [(row["actor"], row["text"]) for row in rows]


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def _answer(response: Any) -> Answer:
    return Answer(response.status, await response.text(), str(response.url), response.headers)
