"""Billing as people see to it: a failed renewal is found, charged again and paid; and pages fit their window."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from payonce.console.cookies import TICKET
from payonce.console.ticket import Ticket
from payonce.testing import OpenStage
from tests.browser.chromium import NARROW, WIDE, Watched, open_person, overflow_px
from tests.browser.conftest import TakePicture
from tests.console.billing_samples import fill, notify
from tests.console.test_billing_decisions import ACTIONS, past_due
from tests.console.visitor import TOKEN, console
from tests.services.billing.billing_stage import House, open_house

LONG = "x" * 190
"""A name without a place to break it."""


@asynccontextmanager
async def open_site(stage: OpenStage, browser: Browser, **options: Any) -> AsyncIterator[tuple[House, Watched]]:
    """The console beside the handlers, so that what a person decides is worked on in the same process."""
    async with (
        open_house(stage) as house,
        console(house.s, also=ACTIONS) as address,
        open_person(browser, address, **options) as person,
    ):
        cookie = Ticket(lambda: TOKEN).cookie
        await person.context.add_cookies([{"name": TICKET, "value": cookie, "url": f"{address}/console/"}])
        yield house, person


async def test_an_operator_finds_a_customer_sees_the_failed_renewal_retries_it_and_sees_it_paid(
    stage: OpenStage, browser: Browser
) -> None:
    async with open_site(stage, browser) as (house, person):
        [subscription] = await past_due(house)
        page = person.page
        await page.goto("/console/")
        await page.get_by_role("link", name="Customers", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Customers")
        await page.get_by_label("E-mail, external id or any id").fill("acc-1@")
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("link", name="acc-1@example.com").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("past due")
        await expect(page.locator("#live")).to_contain_text("insufficient_funds")
        await page.get_by_role("link", name=subscription.id).click()
        await expect(page.locator(".timeline-entry.charge").last).to_contain_text("failed: insufficient_funds")
        await page.get_by_role("radio", name="Charge it now").check()
        await page.get_by_label("Why").fill("they say that there is money now")
        await page.get_by_role("button", name="Preview").click()
        await expect(page.locator("main")).to_contain_text("29.00 AED")
        await page.get_by_role("button", name="Charge it now").click()
        await expect(page.get_by_role("status")).to_contain_text("The amount owed is being charged.")
        await house.run()
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("active")
        await expect(page.locator(".timeline-entry.note").last).to_contain_text("they say that there is money now")
        await page.get_by_role("link", name="INV-2026-000002").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("paid")
        [_, renewal] = await house.invoices(subscription)
        assert house.captures(renewal) == 1


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        pytest.param("light", WIDE, id="light-wide"),
        pytest.param("dark", NARROW, id="dark-narrow", marks=pytest.mark.full),
    ],
)
async def test_the_pages_of_billing_fit_their_window(
    stage: OpenStage, browser: Browser, take_picture: TakePicture, width: Any, scheme: Any
) -> None:
    async with open_site(stage, browser, viewport=width, color_scheme=scheme) as (house, person):
        await past_due(house)
        await fill(house.s, 60)
        await notify(house.s, "evt-1", "t-2-0", delivered=False)
        await house.s.owner.execute(
            "update subscriptions.accounts set email = $1 || '@example.com', name = $1 where id = 'c-2'", LONG
        )
        for name, path in (
            ("customers", "customers"),
            ("customer", "customers/c-2"),
            ("subscription", "subscriptions/s-10"),
            ("invoices", "invoices"),
            ("invoice", "invoices/i-10-3"),
            ("dunning", "dunning"),
            ("deliveries", "deliveries"),
            ("delivery", "deliveries/evt-1"),
            ("figures", "figures"),
            ("nothing", "customers?reference=nobody"),
        ):
            await person.page.goto(f"/console/billing/{path}", wait_until="load")
            assert await overflow_px(person.page) <= 0, f"{path} is wider than {width['width']} px"
            await take_picture(person.page, f"billing-{name}-{width['width']}-{scheme}", full_page=True)
        await person.page.goto("/console/billing/figures", wait_until="load")
        await expect(person.page.locator(".u-over")).to_have_count(4)
