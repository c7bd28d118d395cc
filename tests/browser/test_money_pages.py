"""Effects, approvals and brakes as people use them, each in a browser of their own."""

from playwright.async_api import Browser, expect

from payonce.engine.operators import Role
from payonce.testing import OpenStage
from tests.browser.conftest import OpenServed
from tests.browser.samples import log_in, open_samples


async def test_an_effect_in_review_is_answered_with_a_second_persons_approval(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console:
        await samples.transfers(1)
        effect_id = await samples.transfer_in_review("420.00")
        await samples.person("ann", Role.OPERATOR)
        await samples.person("bob", Role.APPROVER)
        async with console.person(browser) as ann, console.person(browser) as bob:
            await log_in(ann, "ann")
            await log_in(bob, "bob")
            await bob.page.goto("/console/approvals")
            await bob.page.get_by_label("Asset").fill("EUR")
            await bob.page.get_by_label("Above").fill("100.00")
            await bob.page.get_by_role("button", name="Set the threshold").click()
            await expect(bob.page.get_by_role("status")).to_have_text(
                "Above 100.00 EUR a second person must now agree."
            )

            await ann.page.goto("/console/effects")
            await ann.page.get_by_role("link", name="Answer").click()
            await expect(ann.page.get_by_role("heading", level=2).first).to_contain_text("Did southbank.pay_in for t-2")
            offered = await ann.page.get_by_role("radio").count()
            assert offered == 4, "a payment that can be found may also be looked for and sent again"
            example = await ann.page.locator("details pre").inner_text()
            assert "payment_id" in example
            booked = samples.office.southbank.books.under("t-2/pay-in:1")
            stated = f'{{"payment_id": "SB{booked[0].number:08}", "reference": "t-2/pay-in:1", "booked_ms": 1}}'
            await ann.page.get_by_role("radio", name="It happened").check()
            await ann.page.get_by_label("The vendor's response, as JSON").fill(stated)
            await ann.page.get_by_label("How you know").fill("in their statement of today")
            await ann.page.get_by_role("button", name="Preview").click()
            await expect(ann.page.locator(".notice.warn")).to_contain_text("420.00 EUR is above the threshold")
            await ann.page.get_by_role("button", name="Ask a second person").click()
            await expect(ann.page.locator(".notice.warn")).to_contain_text("You made this request")
            assert await ann.page.get_by_role("button", name="Grant").count() == 0

            await bob.page.goto("/console/approvals")
            await bob.page.get_by_role("link", name="Decide").click()
            await bob.page.get_by_role("link", name="The effect").click()
            await bob.page.get_by_role("link", name="Open approval").click()
            await bob.page.get_by_label("What you checked").fill("I saw it there, too")
            await bob.page.get_by_role("button", name="Grant and execute").click()
            await expect(bob.page.get_by_role("status")).to_contain_text("is granted and executed")

            await ann.page.goto(f"/console/effects/{effect_id}")
            await expect(ann.page.get_by_role("heading", level=1)).to_contain_text("performed")
        await samples.office.run()
        assert await samples.office.state("t-2") == "paid"


async def test_a_vendor_is_frozen_and_the_freeze_lifted(stage: OpenStage, served: OpenServed, browser: Browser) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.transfers(1)
        page = person.page
        await page.goto("/console/freezes")
        await page.get_by_role("textbox", name="Vendor").fill("southbank")
        await page.get_by_label("Why").fill("they pay twice")
        await page.get_by_role("button", name="Freeze now").click()
        await expect(page.get_by_role("status").first).to_contain_text("of vendor southbank is in force")
        await page.get_by_role("link", name="Freezes", exact=True).first.click()
        await expect(page.locator("tbody tr")).to_contain_text("they pay twice")
        await page.get_by_role("link", name="Lift").click()
        await page.get_by_label("Reason").fill("they mended it")
        await page.get_by_role("button", name="Lift the freeze").click()
        await expect(page.get_by_role("status")).to_contain_text("is lifted")
        await expect(page.locator(".empty")).to_contain_text("Nothing is frozen.")
