"""What holds for every page: readable without scripts, in both colours, on a phone, by keyboard, with much in it."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, expect

from payonce.engine.controls import (
    Approval,
    ReviewAnswer,
    answer_review_action,
    freeze,
    set_limit,
    set_threshold,
    submit,
)
from payonce.engine.effects import Answer
from payonce.engine.effects.queries import effect_details
from payonce.kit.money import Amount, well_known
from payonce.testing import OpenStage
from tests.browser.chromium import NARROW, WIDE, overflow_px
from tests.browser.conftest import OpenServed, Served
from tests.browser.samples import SampleData, open_samples
from tests.console.visitor import every_page

EUR = well_known("EUR")
LONG = "x" * 190
"""A name without a place to break it."""
MANY = 10_000
PAGE_LIMIT_S = 30.0
"""For one page of a list with MANY rows behind it, on a machine that tests keep busy."""


def plain_paths() -> list[str]:
    return [
        route.path
        for page in every_page()
        for route in page.routes
        if route.method == "GET" and "{" not in route.path and route.path != "/live"
    ]


@asynccontextmanager
async def a_day(stage: OpenStage, served: OpenServed) -> AsyncIterator[tuple[Served, list[str]]]:
    """Something on every page, with names as long as they may be; and the addresses of all of them."""
    async with open_samples(stage) as samples, served() as console:
        await samples.transfers(3)
        effect_id = await samples.transfer_in_review()
        message_id = await samples.parked_message()
        approval, frozen = await _brakes(samples, effect_id)
        s = samples.office.s
        await s.owner.execute("update payonce.effects set reason = $1 where state = 'review'", LONG * 5)
        await s.owner.execute("update payonce.messages set last_error = $1, correlation_id = $2", LONG * 5, LONG)
        trace_id = await s.read.fetchval("select trace_id from payonce.effects where state = 'review'")
        yield (
            console,
            [
                *plain_paths(),
                "/effects?state=performed",
                f"/effects/{effect_id}",
                f"/approvals/{approval}",
                "/approvals?state=all",
                f"/freezes/{frozen}",
                "/freezes?ended=yes",
                "/outbox/events",
                "/queues/tally-changes?state=parked",
                f"/queues/tally-changes/messages/{message_id}",
                f"/queues/tally-changes/redrive?id={message_id}",
                f"/queues/tally-changes/purge?id={message_id}",
                "/queues/tally-changes/pause",
                f"/trace?id={quote(trace_id)}",
                f"/audit?actor={LONG}",
            ],
        )


async def _brakes(samples: SampleData, effect_id: Any) -> tuple[int, int]:
    s = samples.office.s
    async with s.begin() as tx:
        await set_threshold(tx, Amount(100, EUR), LONG)
        await set_limit(tx, Amount(10**17, EUR), LONG, vendor=LONG)
        frozen = await freeze(tx, by=LONG, reason=LONG * 5, vendor=LONG, tenant=LONG)
    async with s.begin() as tx:
        seen = await effect_details(tx, effect_id)
        given = ReviewAnswer(effect_id, seen.listed.effect.revision, Answer.DID_NOT, LONG * 5)
        asked = await submit(tx, answer_review_action(s.admin), given, LONG, LONG * 5)
        assert isinstance(asked, Approval)
    return asked.id, frozen.id


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        pytest.param("dark", NARROW, id="dark-narrow"),
        pytest.param("light", WIDE, id="light-wide", marks=pytest.mark.full),
        pytest.param("light", NARROW, id="light-narrow", marks=pytest.mark.full),
        pytest.param("dark", WIDE, id="dark-wide", marks=pytest.mark.full),
    ],
)
async def test_every_page_fits_its_window_and_the_browser_has_nothing_to_complain_of(
    stage: OpenStage, served: OpenServed, browser: Browser, width: Any, scheme: Any
) -> None:
    async with (
        a_day(stage, served) as (console, paths),
        console.person(browser, viewport=width, color_scheme=scheme) as person,
    ):
        for path in paths:
            answer = await person.page.goto(f"/console{path}", wait_until="load")
            assert answer is not None
            assert answer.status == 200, path
            assert await overflow_px(person.page) <= 0, f"{path} is wider than {width['width']} px"
        ground = await person.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        lightness = sum(int(part) for part in ground.strip("rgb()").split(",")[:3]) / 3
        assert (lightness < 80) == (scheme == "dark")


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.full
async def test_every_page_can_be_read_without_scripts(
    stage: OpenStage, served: OpenServed, browser: Browser, half: int
) -> None:
    async with (
        a_day(stage, served) as (console, paths),
        console.person(browser, java_script_enabled=False) as still,
        console.person(browser) as live,
    ):
        for path in paths[half::2]:
            await still.page.goto(f"/console{path}")
            await live.page.goto(f"/console{path}", wait_until="load")
            assert await overflow_px(live.page) <= 0, f"{path} is wider than its window"
            for selector in ("h1", "main table tbody tr", "main form", "main a"):
                without = await still.page.locator(selector).count()
                assert without == await live.page.locator(selector).count(), f"{path}: {selector}"


async def test_forms_and_colours_work_without_scripts(stage: OpenStage, served: OpenServed, browser: Browser) -> None:
    async with (
        open_samples(stage) as samples,
        served() as console,
        console.person(browser, java_script_enabled=False, color_scheme="light") as person,
    ):
        effect_id = await samples.transfer_in_review()
        page = person.page
        await page.goto("/console/effects")
        await page.get_by_role("link", name="Answer").click()
        await page.get_by_role("radio", name="It did not happen").check()
        await page.get_by_label("How you know").fill("not in their statement")
        await page.get_by_role("button", name="Preview").click()
        await page.get_by_role("button", name="It did not happen").click()
        await expect(page.get_by_role("status")).to_contain_text("The effect is abandoned")
        assert page.url.endswith(f"/console/effects/{effect_id}")
        await page.get_by_role("button", name="Dark").click()
        assert page.url.endswith(f"/console/effects/{effect_id}")
        assert await page.locator("html").get_attribute("data-theme") == "dark"


async def test_the_keyboard_reaches_the_content_and_shows_where_it_is(
    stage: OpenStage, served: OpenServed, browser: Browser
) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.parked_message()
        page = person.page
        await page.goto("/console/queues/tally-changes?state=parked")
        await page.keyboard.press("Tab")
        await expect(page.locator(":focus")).to_have_text("Skip to the content")
        box = await page.locator(":focus").bounding_box()
        assert box is not None
        assert box["x"] >= 0, "it is seen when it has the focus"
        await page.keyboard.press("Enter")
        reached = []
        for _ in range(12):
            await page.keyboard.press("Tab")
            focused = page.locator(":focus")
            reached.append((await focused.inner_text()).strip())
            outline = await focused.evaluate("each => getComputedStyle(each).outlineStyle")
            assert outline != "none", reached[-1]
            if reached[-1] == "Redrive…":
                break
        assert reached[-1] == "Redrive…", reached
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Redrive messages of tally-changes")


@pytest.mark.full
async def test_ten_thousand_rows_are_paged(stage: OpenStage, served: OpenServed, browser: Browser) -> None:
    async with open_samples(stage) as samples, served() as console, console.person(browser) as person:
        await samples.transfer_in_review()
        await samples.parked_message()
        await _multiply(samples)
        for path in ("/", "/effects", "/queues/tally-changes?state=parked", "/audit", "/jobs"):
            seen: set[str] = set()
            url = f"/console{path}"
            for _ in range(3):
                began = time.monotonic()
                await person.page.goto(url, wait_until="load")
                assert time.monotonic() - began < PAGE_LIMIT_S, f"{url} took {time.monotonic() - began:.1f} s"
                assert await overflow_px(person.page) <= 0
                rows = await person.page.locator("main tbody tr").all_inner_texts()
                following = person.page.get_by_role("link", name="Next page")
                if not await following.count():
                    break
                assert len(rows) == 50, path
                links = person.page.locator("main tbody tr")
                keys = await links.evaluate_all("rows => rows.map(row => row.innerHTML)")
                assert not seen & set(keys), f"{path} shows a row twice"
                seen |= set(keys)
                url = str(await following.get_attribute("href"))
            if path != "/":
                assert len(seen) == 150, path


async def _multiply(samples: SampleData) -> None:
    """What is there once, MANY times, under other ids and keys."""
    owner = samples.office.s.owner
    for table, keys, where in (
        (
            "effects",
            {"id": "gen_random_uuid()", "key": "key || '-' || n", "scope": "null", "vendor_ref": "null"},
            "state = 'review'",
        ),
        (
            "messages",
            {"id": "gen_random_uuid()", "idempotency_key": "null"},
            "state = 'parked' and queue = 'tally-changes'",
        ),
        ("job_logs", {"id": None, "message_id": "gen_random_uuid()"}, "queue = 'tally-changes' and status = 'parked'"),
    ):
        names = [
            row["column_name"]
            for row in await owner.fetch(
                "select column_name from information_schema.columns where table_schema = 'payonce' and table_name = $1 "
                "and is_generated = 'NEVER' order by ordinal_position",
                table,
            )
            if keys.get(row["column_name"], "") is not None
        ]
        values = ", ".join(keys.get(name) or name for name in names)
        await owner.execute(
            f"insert into payonce.{table} ({', '.join(names)}) select {values} from payonce.{table}, "
            f"generate_series(1, {MANY}) as n where {where}"
        )
    await owner.execute(
        f"insert into payonce.audit_log (severity, location, reference, text, actor) "
        f"select 'INFO', 'test', 'row ' || n, 'note ' || n, 'tester' from generate_series(1, {MANY}) as n"
    )
    await owner.execute("analyze")
