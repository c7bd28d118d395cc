"""The incident: the exchange is away, 40 outcomes are unknown and 60 payouts wait for a person. Found from the
overview, with its cause in view before any message is opened."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from playwright.async_api import Browser, Page, expect

from payonce.engine.effects.model import State as EffectState
from payonce.engine.effects.queries import open_counts
from payonce.engine.monitoring.history import RunCounts
from payonce.engine.monitoring.vendor_calls import CallCounts
from payonce.services.payouts.model import State
from payonce.services.payouts.policies import ESTIMATE, GIVE_UP_AFTER_S, SWAP
from payonce.services.payouts.store.payouts import counts
from payonce.testing import OpenStage
from payonce.testing.faults import Fault
from tests.browser.conftest import TakePicture
from tests.browser.test_payouts_pages import Site
from tests.console.payouts_samples import open_console, order
from tests.services.payouts.hostpay_stage import House

UNKNOWN, HELD = 40, 60
REFUSED = "connection"
TIMED_OUT = re.compile("(?i)time")

pytestmark = pytest.mark.timeout(300)


@dataclass
class Exchange:
    """Away: nobody listens for questions, and orders get no answer."""

    questions: bool = True
    orders: bool = True

    def draw(self, route: str, call: str, number: int) -> Fault | None:
        if route.startswith("POST"):
            return None if self.orders else Fault.TIMEOUT_BEFORE
        return None if self.questions else Fault.REFUSED_CONNECTION


@asynccontextmanager
async def incident(stage: OpenStage) -> AsyncIterator[tuple[House, Site]]:
    """Made by the real handlers: what could not be priced within a day waits for a person, and what was ordered since
    has no known end."""
    exchange = Exchange(questions=False, orders=False)
    async with open_console(stage, at_exchange=exchange) as (house, address):
        runs = RunCounts(house.s.database)
        for number in range(HELD):
            await order(house, number)
        await house.drain()
        await house.s.clock.advance(GIVE_UP_AFTER_S)
        await house.drain()
        exchange.questions = True
        for number in range(HELD, HELD + UNKNOWN):
            await order(house, number)
        await house.drain()
        exchange.questions = False
        calls = CallCounts(house.s.database)
        await house.s.clock.advance(120.0)
        await house.drain()
        await calls.tick()
        await runs.tick()
        assert (await counts(house.s.read))[State.REVIEW] == HELD
        assert (await open_counts(house.s.read))[EffectState.UNKNOWN].count == UNKNOWN
        yield house, Site(address)


async def read_card(page: Page, name: str) -> str:
    card = page.get_by_role("link", name=name)
    await expect(card).to_be_in_viewport()
    return await card.inner_text()


async def test_an_outage_of_the_exchange_is_found_from_the_overview_with_its_cause(
    stage: OpenStage, browser: Browser, take_picture: TakePicture
) -> None:
    async with incident(stage) as (_, site), site.person(browser) as person:
        page, visited = person.page, list[str]()
        page.on("framenavigated", lambda frame: visited.append(frame.url))
        await page.goto("/console/")
        await take_picture(page, "incident-overview")

        vendor = await read_card(page, "changenow fails")
        assert re.search(r"100 %\s+of \d+ calls within 5 min: \d+ got no answer", vendor)
        assert REFUSED in (await read_card(page, "Payouts held or in review")).lower()
        assert TIMED_OUT.search(await read_card(page, "Unknown effects"))
        first = page.locator("#queues tbody tr").first
        await expect(first).to_contain_text(ESTIMATE.queue)
        errors = first.locator("[data-label=Errors]")
        await expect(errors).to_have_text(str(HELD))
        # In one step: the page renews itself, and an element that is waited for may be replaced meanwhile.
        await page.evaluate("() => document.querySelector('#queues').scrollIntoView()")
        await expect(errors).to_be_in_viewport(ratio=1)
        cut = "found => found.filter((each) => each.scrollHeight > each.clientHeight + 1).map((each) => each.innerText)"
        assert await page.locator(".card .cause").evaluate_all(cut) == [], "every cause is in view as a whole"

        await page.get_by_role("link", name="Payouts held or in review").click()
        tab = page.get_by_role("navigation", name="States").locator("[aria-current]")
        await expect(tab).to_have_text(f"Held or in review {HELD}")
        await expect(page.locator("#rows tbody tr").first.locator("[data-label=State]")).to_contain_text(REFUSED)
        await page.get_by_role("link", name="Next page").click()
        await expect(page.locator("#rows tbody tr")).to_have_count(HELD - 50)

        await page.goto("/console/")
        await page.get_by_role("link", name="Unknown effects").click()
        await expect(page.locator("#live .tabs [aria-current]")).to_have_text(f"Unknown {UNKNOWN}")
        await expect(page.locator("#rows tbody tr")).to_have_count(UNKNOWN)
        assert TIMED_OUT.search(await page.locator("#rows tbody tr").first.inner_text())

        for name, reason in ((ESTIMATE.queue, REFUSED), (SWAP.queue, "time")):
            for path in (f"/jobs?queue={name}&status=retry", f"/queues/{name}"):
                await page.goto(f"/console{path}")
                said = page.locator("tbody .clamp")
                assert all(reason in each.lower() for each in await said.all_inner_texts()), path
                assert await said.evaluate_all(cut) == [], "nor is one in a list"

        await page.goto("/console/")
        await page.get_by_role("link", name="changenow fails").click()
        await expect(page.locator("main")).to_contain_text("got no answer")
        assert not [url for url in visited if "/messages/" in url]
