"""What a service adds to the console: pages, templates, tones of states, sections of the page of vendors."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from payonce.app.registry import actions, service_pages
from payonce.console import mount
from payonce.console.mount import CONSOLE
from payonce.console.page import Page, ServicePages, VendorSection, Visit, get, navigation_of
from payonce.console.pages import PAGES
from payonce.engine.messages.ports import Admin
from payonce.testing import OpenStage, Stage
from payonce.testing.server import serving
from tests.console.visitor import TOKEN, StageContext, Visitor, every_page, visiting

SUBJECTS = {
    ("answer review", "4d"): "/effects/4d",
    ("redrive", "two words 0a1b2c3d4e5f6071"): "/queues/two words?state=parked",
    ("redrive", "two words in batches"): "/queues/two words?state=parked",
    ("write off", "4d"): "/reconcile/4d",
    ("decide payout", "p1"): "/payouts/p1",
    ("pay above limit", "u1"): "/payouts/u1",
    ("pay above limit", "u1/2"): "/payouts/u1",
    ("change wallet limit", "ETH"): "/vendors",
    ("decide subscription", "sub_1"): "/billing/subscriptions/sub_1",
    ("refund charge", "txn_1"): "/billing/invoices?reference=txn_1",
}
"""Of approvals, by action and subject: the page that shows what they are about."""

TEMPLATES = {
    "cards.html": '{% extends "layout.html" %}{% block content %}{{ ui.object_state("gift card", state) }}'
    '<p id="note">{{ note }}</p>{% endblock %}',
    "unknown.html": '{% extends "layout.html" %}{% block content %}{{ no_such_value }}{% endblock %}',
    "shop.html": "<h2>The shop of {{ section.owner }}</h2>",
    "form.html": '<form id="shop">{{ ui.csrf() }}</form>',
}


async def show_cards(visit: Visit) -> Response:
    return visit.page("giftcards/cards.html", "Gift cards", state="half_spent", note="<b>5</b>")


async def show_unknown(visit: Visit) -> Response:
    return visit.page("giftcards/unknown.html", "Unknown")


async def load_shop(visit: Visit) -> Mapping[str, Any]:
    return {"owner": visit.person.name}


async def load_nothing(visit: Visit) -> None:
    return None


def gift_cards(folder: Path) -> ServicePages:
    for name, text in TEMPLATES.items():
        (folder / name).write_text(text)
    page = Page("Gift cards", "/giftcards", (get("/giftcards", show_cards), get("/unknown", show_unknown)), "Gifts")
    sections = (
        VendorSection(load_shop, "giftcards/shop.html", "giftcards/form.html"),
        VendorSection(load_nothing, "giftcards/nowhere.html"),
    )
    return ServicePages((page,), folder, {"gift card": {"half_spent": "warn"}}, sections)


@asynccontextmanager
async def opened(stage: Stage, added: ServicePages) -> AsyncIterator[Visitor]:
    site = mount.console(
        StageContext(stage, asyncio.Event()), "127.0.0.1", lambda: TOKEN, lambda: {"giftcards": added}, keep_s=0.0
    )
    async with serving(Starlette(routes=[Mount(CONSOLE, site)])) as address, visiting(address) as visitor:
        yield visitor


async def test_a_page_of_a_service_is_rendered_from_its_own_folder_as_all_are(stage: OpenStage, tmp_path: Path) -> None:
    async with stage() as s, opened(s, gift_cards(tmp_path)) as visitor:
        page = await visitor.get("/giftcards")
        assert page.status == 200
        assert '<span class="pill warn">half spent</span>' in page.text
        assert "&lt;b&gt;5" in page.text, "values are text, never markup"
        assert '<p class="nav-group">Gifts</p>' in page.text
        assert (await visitor.get("/unknown")).status == 500, "a value that is missing is an error, not empty"
        assert (await visitor.get("/payouts")).status == 404, "only what was mounted is there"


async def test_a_service_adds_sections_to_the_page_of_vendors(stage: OpenStage, tmp_path: Path) -> None:
    async with stage() as s, opened(s, gift_cards(tmp_path)) as visitor:
        page = await visitor.get("/vendors")
        assert "The shop of operator" in page.words
        live = page.text.index('id="live"')
        assert live < page.text.index("The shop of") < page.text.index('</div>\n<form id="shop">')


def test_groups_of_services_stand_before_the_record(tmp_path: Path) -> None:
    pages = [*gift_cards(tmp_path).pages, *PAGES]
    assert [group for group, _ in navigation_of(pages)] == ["Now", "Work", "Money", "Gifts", "Record"]
    built_in = {group: [page.title for page in listed] for group, listed in navigation_of(every_page())}
    assert list(built_in) == ["Now", "Work", "Money", "Billing", "Record"]
    assert built_in["Money"][0] == "Payouts"


def test_templates_of_services_are_beside_their_pages() -> None:
    for name, added in service_pages().items():
        assert added.templates.is_dir(), name
        assert added.templates.parts[-3:] == (name, "console", "templates")


def test_an_approval_leads_to_what_it_is_about() -> None:
    known = {action.name: action for action in (make(cast(Admin, None)) for make in actions())}
    for (name, subject), expected in SUBJECTS.items():
        link = known[name].link
        assert link is not None, name
        found = link(subject)
        query = "&".join(f"{key}={value}" for key, value in found.query.items())
        assert found.path + (f"?{query}" if query else "") == expected
    assert {name for name, action in known.items() if action.link is None} == {"change threshold", "change credit"}
