"""Payouts as people see to them: a new address, a second person's yes, and pages that fit whatever is in them."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from payonce.console.cookies import TICKET
from payonce.console.ticket import Ticket
from payonce.engine.controls import approvals, grant
from payonce.engine.operators import Role, add_person
from payonce.services.payouts.decisions.payouts import ACTION, decision_action
from payonce.services.payouts.model import Payout, State
from payonce.testing import OpenStage
from tests.browser.chromium import NARROW, WIDE, Watched, open_person, overflow_px
from tests.browser.conftest import TakePicture
from tests.browser.samples import PASSWORD, log_in
from tests.console.payouts_samples import OTHER_ADDRESS, above_the_limit, held, multiply, open_console, order
from tests.console.visitor import TOKEN
from tests.services.payouts.hostpay_stage import BTC_CLIENT, House, eth
from tests.services.payouts.payouts_stage import TO_BTC
from tests.services.payouts.test_decisions import XRP_CLIENT, XRP_ELSEWHERE
from tests.services.payouts.test_refunds import ONE_HASH, failed

MANY = 10_000
PAGE_LIMIT_S = 30.0
"""For one page of a list with MANY rows behind it, on a machine that tests keep busy."""
A_WHILE_S = 900.0
"""Enough for a payout to end, and less than a login lasts."""
LONG = "x" * 190
"""A name without a place to break it."""


@dataclass(frozen=True)
class Site:
    """The console beside the handlers, so that what a person decides is worked on in the same process."""

    address: str

    @asynccontextmanager
    async def person(self, browser: Browser, **options: Any) -> AsyncIterator[Watched]:
        async with open_person(browser, self.address, **options) as person:
            cookie = Ticket(lambda: TOKEN).cookie
            await person.context.add_cookies([{"name": TICKET, "value": cookie, "url": f"{self.address}/console/"}])
            yield person


@asynccontextmanager
async def open_site(stage: OpenStage) -> AsyncIterator[tuple[House, Site]]:
    async with open_console(stage) as (house, address):
        yield house, Site(address)


async def give(house: House, name: str, role: Role) -> None:
    async with house.s.begin() as tx:
        await add_person(tx, name, role, PASSWORD, by="the test")


async def test_a_held_payout_is_found_given_a_new_address_and_goes_on(stage: OpenStage, browser: Browser) -> None:
    async with open_site(stage) as (house, console), console.person(browser) as person:
        await order(house, 1)
        payout = await held(house, 2)
        await house.run()
        page = person.page
        await page.goto("/console/")
        await page.get_by_role("link", name="Payouts", exact=True).click()
        await page.get_by_role("link", name="Held 1").click()
        await page.get_by_role("link", name=payout.unique_id).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("held")
        await page.get_by_role("radio", name="Release it to another address").check()
        await page.get_by_label("New address on btc").fill(OTHER_ADDRESS)
        await page.get_by_label("Why").fill("the client wrote to us")
        await page.get_by_role("button", name="Preview").click()
        await expect(page.locator("main")).to_contain_text(f"to {OTHER_ADDRESS}, without a memo.")
        await page.get_by_role("button", name="Release it to another address").click()
        await expect(page.get_by_role("status")).to_have_text("The payout is priced.")
        await house.run()
        await expect(page.locator("#live")).to_contain_text("final")
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("finished")
        await expect(page.locator(".timeline-entry.note").last).to_contain_text("the client wrote to us")
        assert await house.state(payout) is State.FINISHED


@pytest.mark.full
async def test_what_is_typed_with_a_decision_is_what_is_decided(stage: OpenStage, browser: Browser) -> None:
    async with open_site(stage) as (house, console), console.person(browser) as person:
        page = person.page

        async def decide(payout: Payout, choice: str, **typed: str) -> None:
            await page.goto(f"/console/payouts/{payout.id}")
            await page.get_by_role("radio", name=choice).check()
            for label, text in {**typed, "Why": "their support wrote"}.items():
                await page.get_by_label(label).fill(text)
            await page.get_by_role("button", name="Preview").click()

        paid = await failed(house)
        swap = await house.swap(paid)
        house.chain.arrive(house.wallet.address, eth("0.039"), "support", transaction_hash=ONE_HASH.lower())
        typed = {"Transaction that returned it": ONE_HASH, "Swap, if several": swap.id}
        await decide(paid, "The deposit came back", **typed)
        await expect(page.locator("main")).to_contain_text(f"By transaction {ONE_HASH}.")
        await expect(page.locator("main")).to_contain_text("only when a second person agrees")
        await page.get_by_role("button", name="Ask a second person").click()
        await expect(page.get_by_role("status")).to_contain_text("Nothing is changed until a second person grants")
        async with house.s.begin() as tx:
            [waiting] = await approvals(tx)
            await grant(tx, {ACTION: decision_action(house.s.admin)}, waiting.id, "bob")
        await house.run(A_WHILE_S)
        assert (await house.payout(paid)).held_from is State.PRICED, "it was found, and waits as one that is unpaid"

        with_memo = await order(house, 5, address=XRP_CLIENT, coin="xrp", memo="777")
        await decide(with_memo, "Hold the payout")
        await page.get_by_role("button", name="Hold the payout").click()
        person.expected.add(400)
        await decide(with_memo, "Release it to another address", **{"New address on xrp": XRP_ELSEWHERE})
        await expect(page.get_by_role("alert")).to_contain_text("extra_id is missing")
        # The page that says so is the answer to a form, and renews itself all the same.
        async with page.expect_response(lambda answer: answer.url.endswith(f"/payouts/{with_memo.id}")):
            await page.evaluate("() => document.body.dispatchEvent(new CustomEvent('live'))")
        await page.get_by_role("checkbox", name="It needs no memo").check()
        await page.get_by_role("button", name="Preview").click()
        await expect(page.locator("main")).to_contain_text(f"to {XRP_ELSEWHERE}, without a memo.")
        await page.get_by_role("button", name="Release it to another address").click()
        changed = await house.payout(with_memo)
        assert (changed.wallet_address, changed.extra_id) == (XRP_ELSEWHERE, None)


@pytest.mark.full
async def test_who_waits_below_the_minimum_is_found_from_the_list(stage: OpenStage, browser: Browser) -> None:
    async with open_site(stage) as (house, console), console.person(browser) as person:
        house.changenow.set_range(TO_BTC, Decimal("0.01"), None)
        small = await order(house, 1, price="10")
        await house.drain()
        page = person.page
        await page.goto("/console/payouts")
        await page.get_by_role("link", name="Accumulating", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Accumulating by client")
        await expect(page.locator("tbody tr")).to_contain_text(BTC_CLIENT)
        await page.get_by_role("link", name="btc", exact=True).click()
        await expect(page.get_by_role("link", name=small.unique_id)).to_be_visible()


async def test_a_payment_above_the_limit_is_approved_by_a_second_person(stage: OpenStage, browser: Browser) -> None:
    async with open_site(stage) as (house, console):
        payout = await above_the_limit(house)
        await give(house, "ann", Role.OPERATOR)
        await give(house, "bob", Role.APPROVER)
        async with console.person(browser) as ann, console.person(browser) as bob:
            await log_in(ann, "ann")
            await log_in(bob, "bob")
            await ann.page.goto(f"/console/payouts/{payout.unique_id}")
            await expect(ann.page.locator(".asked").first).to_contain_text("Waits for an approver")
            assert await ann.page.get_by_role("radio").count() == 0, "nothing is decided past the one who is asked"
            await ann.page.get_by_role("link", name="Open approval").click()
            await expect(ann.page.locator(".notice.warn")).to_contain_text("You are operator; an approver")

            await bob.page.goto("/console/approvals")
            await bob.page.get_by_role("link", name="Decide").click()
            await bob.page.get_by_role("link", name="The payout").click()
            await expect(bob.page.get_by_role("heading", level=1)).to_contain_text(payout.unique_id)
            await bob.page.get_by_role("link", name="Open approval").click()
            await bob.page.get_by_label("What you checked").fill("the client is known")
            await bob.page.get_by_role("button", name="Grant and execute").click()
            await expect(bob.page.get_by_role("status")).to_contain_text("is granted and executed")
            await house.run(A_WHILE_S)
            await ann.page.goto(f"/console/payouts/{payout.unique_id}")
            await expect(ann.page.get_by_role("heading", level=1)).to_contain_text("finished")
        assert len(house.transfers()) == 1


async def test_a_decision_can_be_made_without_scripts(stage: OpenStage, browser: Browser) -> None:
    async with (
        open_site(stage) as (house, console),
        console.person(browser, java_script_enabled=False) as person,
    ):
        payout = await held(house)
        page = person.page
        await page.goto(f"/console/payouts?reference={payout.payment_id}")
        await page.get_by_role("link", name=payout.unique_id).click()
        await page.get_by_role("radio", name="Refund the payout").check()
        await page.get_by_label("Why").fill("they cannot receive it")
        await page.get_by_role("button", name="Preview").click()
        await page.get_by_role("button", name="Refund the payout").click()
        await expect(page.get_by_role("status")).to_have_text("The payout is refunded.")
        await page.goto("/console/payouts/days")
        await expect(page.locator(".spark.still").first).to_be_visible()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        pytest.param("dark", NARROW, id="dark-narrow"),
        pytest.param("light", WIDE, id="light-wide", marks=pytest.mark.full),
        pytest.param("light", NARROW, id="light-narrow", marks=pytest.mark.full),
        pytest.param("dark", WIDE, id="dark-wide", marks=pytest.mark.full),
    ],
)
async def test_the_pages_of_payouts_fit_their_window(
    stage: OpenStage, browser: Browser, take_picture: TakePicture, width: Any, scheme: Any
) -> None:
    async with (
        open_site(stage) as (house, console),
        console.person(browser, viewport=width, color_scheme=scheme) as person,
    ):
        finished = await order(house, 1)
        await house.run()
        kept, asked = await held(house, 2), await above_the_limit(house, 3)
        house.changenow.set_range(TO_BTC, Decimal("0.01"), None)
        await order(house, 4, price="10")
        await house.drain()
        await multiply(house, 40)
        await person.page.goto("/console/payouts", wait_until="load")
        cut = await person.page.evaluate(
            "() => { const box = document.querySelector('#rows .table-box'); return box.scrollWidth - box.clientWidth }"
        )
        assert cut <= 0, "usual amounts and ids lie inside the table"
        await _lengthen(house, kept.id)
        for name, path in (
            ("list", "/payouts"),
            ("held", "/payouts?state=held"),
            ("finished-one", f"/payouts/{finished.id}"),
            ("held-one", f"/payouts/{kept.id}"),
            ("asked-one", f"/payouts/{asked.id}"),
            ("days", "/payouts/days"),
            ("accumulating", "/payouts/accumulating"),
            ("vendors", "/vendors"),
            ("nothing", "/payouts?channel=nobody"),
        ):
            await person.page.goto(f"/console{path}", wait_until="load")
            assert await overflow_px(person.page) <= 0, f"{path} is wider than {width['width']} px"
            await take_picture(person.page, f"payouts-{name}-{width['width']}-{scheme}", full_page=True)


async def test_ten_thousand_payouts_are_paged(stage: OpenStage, browser: Browser) -> None:
    async with open_site(stage) as (house, console), console.person(browser) as person:
        await held(house)
        await multiply(house, MANY)
        seen: set[str] = set()
        url = "/console/payouts"
        for _ in range(3):
            began = time.monotonic()
            await person.page.goto(url, wait_until="load")
            assert time.monotonic() - began < PAGE_LIMIT_S, f"{url} took {time.monotonic() - began:.1f} s"
            names = await person.page.locator("#rows tbody tr td:first-child").all_inner_texts()
            assert (len(names), seen & set(names)) == (50, set())
            seen |= set(names)
            url = str(await person.page.get_by_role("link", name="Next page").get_attribute("href"))
        await expect(person.page.locator(".tabs")).to_contain_text(f"All {MANY + 1:,}")


async def _lengthen(house: House, payout_id: str) -> None:
    """As long as its columns let it be."""
    await house.s.owner.execute(
        """
        update payouts.payouts set payment_id = $2, closed_channel_id = left($2, 64), wallet_address = $2,
            user_id = 9223372036854775807, reason = $3, price_minor = 1e18, adjusted_minor = 1e18 - fee_minor,
            value_minor = 123456789012345678901234567 where id = $1
        """,
        payout_id,
        LONG,
        f"{LONG} " * 2,
    )
