"""What a person acts on lies inside the window: on a phone and on a small screen."""

from playwright.async_api import Browser, Locator, expect

from payonce.testing import OpenStage
from tests.browser.chromium import NARROW, WIDE
from tests.browser.conftest import OpenServed
from tests.browser.samples import SampleData, open_samples

REASON = "refused 3 times: the receiver answered 422, no such topic"


async def inside(found: Locator, width: int) -> bool:
    """Nothing of it is beside the window, or beside the box that it would have to be scrolled in."""
    box = await found.bounding_box()
    assert box is not None, "it is not shown"
    cut: bool = await found.evaluate(
        "each => { const box = each.closest('.table-box'); return Boolean(box) && box.scrollWidth > box.clientWidth }"
    )
    return not cut and box["x"] >= 0 and box["x"] + box["width"] <= width


async def test_on_a_phone_the_parked_number_its_reason_and_the_button_are_beside_nothing(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with (
        open_samples(stage) as samples,
        served() as console,
        console.person(browser, viewport=NARROW, java_script_enabled=False) as person,
    ):
        await samples.parked_message()
        page, width = person.page, NARROW["width"]
        for path in ("/", "/queues"):
            await page.goto(f"/console{path}")
            number = page.locator("#queues, #live").locator("td strong.bad")
            assert await inside(number, width), path
        await page.goto("/console/")
        await page.get_by_role("link", name="Parked messages").click()
        assert page.url.endswith("/queues/tally-changes?state=parked"), "the card leads to the parked list"
        assert await inside(page.get_by_text("row 7 is not there yet"), width)
        assert await inside(page.get_by_role("link", name="Redrive…"), width)


async def test_on_a_phone_every_page_can_be_reached_and_the_current_one_is_marked(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with (
        open_samples(stage),
        served() as console,
        console.person(browser, viewport=NARROW, java_script_enabled=False) as person,
    ):
        await person.page.goto("/console/audit")
        links = person.page.locator("#pages a")
        for link in await links.all():
            assert await inside(link, NARROW["width"]), await link.inner_text()
        await expect(person.page.locator("#pages [aria-current]")).to_be_in_viewport()


async def test_errors_and_traces_are_not_cut_on_a_small_screen(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with (
        open_samples(stage) as samples,
        served() as console,
        console.person(browser, viewport=WIDE) as person,
    ):
        await samples.transfer_in_review()
        await samples.parked_message()
        await _parked_entry(samples)
        await person.page.goto("/console/jobs")
        assert await inside(person.page.get_by_text("gave up after 5 of 5"), WIDE["width"])
        await person.page.goto("/console/outbox/events")
        assert await inside(person.page.locator("tbody td").last, WIDE["width"])


async def _parked_entry(samples: SampleData) -> None:
    await samples.office.s.owner.execute(
        """
        insert into payonce.outbox (relay, id, state, ready_at, try_at, first_tried_at, tries, last_error, queue,
                                    action, trace_id, created_at, payload)
        select 'events', gen_random_uuid(), 'parked', due, due, due, 3, $1, 'transfers-events', 'settled',
               gen_random_uuid()::text, due, '{}' from payonce.due_now() as due
        """,
        REASON * 3,
    )
