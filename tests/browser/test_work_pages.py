"""Queues, messages and traces as an operator uses them, in a real browser."""

from playwright.async_api import Browser, Page, expect

from payonce.testing import OpenStage, eventually
from tests.browser.conftest import OpenServed, Served
from tests.browser.samples import open_samples

QUEUE = "tally-changes"
RENEWED = """() => new Promise((renewed) => {
    document.body.addEventListener("htmx:afterRequest", renewed, { once: true });
    document.body.dispatchEvent(new CustomEvent("live"));
})"""
"""Asks for the living parts at once, and waits until they came and were swapped or not."""


async def rows_of(console: Served, state: str) -> int:
    count: int = await console.app.read.fetchval(
        "select count(*) from payonce.messages where queue = $1 and state = $2", QUEUE, state
    )
    return count


async def to_the_parked_message(page: Page) -> None:
    """The way of somebody who was never here: from the first page by what stands out."""
    await page.goto("/")
    await page.get_by_role("link", name="Parked messages").click()
    await expect(page.locator("tbody tr")).to_contain_text("row 7 is not there yet")


async def test_a_parked_message_is_found_with_its_reason_and_redriven(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        message_id = await samples.parked_message()
        page = person.page
        await to_the_parked_message(page)
        await page.get_by_role("link", name=str(message_id)).click()
        await expect(page.locator("pre").first).to_contain_text("row 7 is not there yet")
        await expect(page.locator(".why")).to_contain_text("until somebody redrives it")
        await page.get_by_role("link", name="Redrive…").click()
        await page.get_by_label("Why").fill("the row is there now")
        await page.get_by_role("button", name="Redrive 1 message").click()
        await expect(page.get_by_role("status")).to_contain_text("1 message of tally-changes redriven")
        assert (await rows_of(console, "parked"), await rows_of(console, "ready")) == (0, 1)
        await page.goto("/console/audit")
        await expect(page.locator("tbody tr").first).to_contain_text("the row is there now")
        await expect(page.locator("tbody tr").first).to_contain_text("operator@localhost")


async def test_a_redriven_message_ends_while_the_page_is_open(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    """With a worker beside it; the page renews itself, and nobody loads it again."""
    async with open_samples(stage) as samples:
        await samples.parked_message()
        await samples.office.s.owner.execute("insert into tally.rows (id) values (7)")
        async with served("tally.worker") as console, console.person(browser) as person:
            page = person.page
            await page.goto(f"/console/queues/{QUEUE}?state=parked")
            await page.get_by_role("link", name="Redrive…").click()
            await page.get_by_label("Why").fill("the row is there now")
            await page.get_by_role("button", name="Redrive 1 message").click()
            await page.get_by_role("link", name="Job log").click()
            await eventually(lambda: _nothing_left(console), 40.0, "the message ends")
            await expect(page.locator("tbody tr").first).to_contain_text("success")


async def _nothing_left(console: Served) -> bool:
    left = [await rows_of(console, state) for state in ("ready", "leased", "parked")]
    return left == [0, 0, 0]


async def test_a_queue_is_paused_with_a_reason_and_resumed(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage), served() as console, console.person(browser) as person:
        page = person.page
        await page.goto("/console/queues")
        await page.get_by_role("link", name=QUEUE).first.click()
        await page.get_by_role("link", name="Pause…").click()
        await page.get_by_label("Why").fill("we look at something strange")
        await page.get_by_role("button", name=f"Pause {QUEUE}").click()
        await expect(page.locator(".notice.warn")).to_contain_text("we look at something strange")
        assert (await console.app.admin.depth(QUEUE)).paused
        await page.get_by_role("button", name="Resume").click()
        await expect(page.get_by_role("status")).to_contain_text("is running again")
        assert not (await console.app.admin.depth(QUEUE)).paused


async def test_one_payment_is_followed_from_its_message_over_its_effects_to_the_books(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.transfers(1, "12.50")
        page = person.page
        await page.goto("/console/effects?state=performed")
        await page.get_by_role("link", name="southbank.pay_in").click()
        await page.get_by_role("link", name="Follow the trace").click()
        timeline = page.locator(".timeline")
        for words in ("transfers-withdraw", "northbank.withdraw", "southbank.pay_in", "southbank/house"):
            await expect(timeline).to_contain_text(words)
        kinds = await page.locator(".timeline-entry .kind").all_inner_texts()
        assert {"run", "effect", "posting"} <= {kind.lower() for kind in kinds}
        moments = await page.locator(".timeline-entry time").evaluate_all("found => found.map(each => each.dateTime)")
        assert moments == sorted(moments)


async def test_a_link_that_is_pressed_while_the_page_renews_itself_is_followed(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    """The answer comes between pressing and letting go: a link that was swapped in between would not be followed."""
    async with open_samples(stage), served() as console, console.person(browser) as person:
        page = person.page
        await page.goto("/console/")
        link = page.get_by_role("link", name="Job log", exact=True)
        await link.hover()
        await page.mouse.down()
        await page.evaluate(RENEWED)
        await page.mouse.up()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Job log")
        await page.goto("/console/")
        first = await page.locator("[hx-trigger]").first.element_handle()
        assert first is not None
        await page.evaluate(RENEWED)
        assert not await first.evaluate("each => each.isConnected"), "with nothing pressed it is renewed"


async def test_the_focus_survives_that_the_page_renews_itself(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.parked_message()
        page = person.page
        await page.goto("/console/")
        for link in (page.locator("#queues a.name").first, page.get_by_role("link", name="Parked messages")):
            await link.focus()
            href = await link.get_attribute("href")
            # An element of the page as it was; it is gone when the page has renewed itself.
            await link.evaluate("each => { each.dataset.old = 'yes'; }")
            await page.wait_for_function("() => !document.querySelector('[data-old]')")
            await expect(page.locator(":focus")).to_have_attribute("href", str(href))


async def test_a_page_that_was_left_by_a_click_beside_its_links_takes_no_focus_back(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.parked_message()
        page = person.page
        await page.goto("/console/")
        link = page.locator("#queues a.name").first
        await link.focus()
        await page.locator("h1").click()
        await link.evaluate("each => { each.dataset.old = 'yes'; }")
        await page.wait_for_function("() => !document.querySelector('[data-old]')")
        assert await page.evaluate("() => document.activeElement === document.body")
