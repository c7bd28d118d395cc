"""The pictures of the documents, made from a day that the real handlers had; again with
`./dev test tests/browser/test_pictures.py --pictures docs/pictures`."""

from typing import Any

import pytest
from playwright.async_api import Browser

from payonce.engine.monitoring.history import RunCounts, sample_depths
from payonce.testing import OpenStage
from tests.browser.conftest import OpenServed, TakePicture
from tests.browser.samples import SampleData, open_samples

MINUTES, FEW_MINUTES = 40, 5
"""For a picture, and to see that it would show the right things."""
WINDOW: Any = {"width": 1280, "height": 1060}
BUSY = (3, 5, 4, 8, 12, 9, 7, 6, 10, 14, 11, 8, 6, 5, 4, 3)
"""Transfers in one minute, over and over."""


async def a_busy_hour(samples: SampleData, minutes: int) -> None:
    """Transfers minute by minute; at the end one that nobody knows the end of, and a message that gave up."""
    s = samples.office.s
    counts = RunCounts(s.database)
    await samples.transfer_in_review("420.00")
    for minute in range(minutes):
        await s.clock.advance(60)
        samples.office.clock.now = await s.clock.now()
        await samples.transfers(BUSY[minute % len(BUSY)], f"{10 + minute}.50", settle=False)
        await sample_depths(s.database, [await s.admin.depth(queue) for queue in await s.admin.queues()])
        await samples.office.drain()
        if minute == minutes - 3:
            await samples.parked_message()
        await counts.tick()
    await sample_depths(s.database, [await s.admin.depth(queue) for queue in await s.admin.queues()])


async def test_the_pictures_show_what_the_documents_say(
    stage: OpenStage, served: OpenServed, browser: Browser, take_picture: TakePicture, request: pytest.FixtureRequest
) -> None:
    async with (
        open_samples(stage) as samples,
        served() as console,
        console.person(browser, viewport=WINDOW, color_scheme="light") as person,
    ):
        await a_busy_hour(samples, MINUTES if request.config.getoption("--pictures") else FEW_MINUTES)
        page = person.page
        for name, path, words in (
            ("console-overview", "/", ("Parked messages", "Effects in review", "EUR")),
            ("console-queue", "/queues/tally-changes?state=parked", ("row 7 is not there yet", "Redrive…")),
            ("console-effects", "/effects", ("In review", "southbank.pay_in", "Answer")),
        ):
            await page.goto(f"/console{path}", wait_until="load")
            shown = await page.locator("main").inner_text()
            for word in words:
                assert word in shown, f"{name} does not show {word!r}"
            await take_picture(page, name)
