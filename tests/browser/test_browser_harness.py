"""The harness itself: a real browser, and complaints that are heard."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser

from payonce.testing.server import serving
from tests.browser.chromium import NARROW, VARIABLE, find_chromium, open_person, overflow_px

CSP = b"default-src 'self'"


def page_of(body: str) -> Callable[..., Awaitable[None]]:
    async def application(scope: dict[str, object], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        found = scope["path"] == "/"
        headers = [(b"content-type", b"text/html"), (b"content-security-policy", CSP)]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": f"<!doctype html><link rel=icon href=data:,>{body}".encode()})

    return application


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>document.title = 'inline'</script>", "Content Security Policy"),
        ("<p style='color: red'>inline</p>", "Content Security Policy"),
        ("<img src=/nowhere>", "404 from"),
    ],
)
async def test_what_the_browser_complains_of_fails_the_test(browser: Browser, body: str, complaint: str) -> None:
    async with serving(page_of(body)) as address:
        with pytest.raises(AssertionError, match=complaint):
            async with open_person(browser, address) as person:
                await person.page.goto("/", wait_until="networkidle")


async def test_a_page_that_is_too_wide_is_seen(browser: Browser) -> None:
    async with serving(page_of(f"<p>{'x' * 500}</p>")) as address, open_person(browser, address) as person:
        await person.page.set_viewport_size(NARROW)  # type: ignore[arg-type]
        await person.page.goto("/", wait_until="load")
        assert await overflow_px(person.page) > 0
        person.complaints.clear()


def test_a_browser_that_is_named_and_not_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "chromium"))
    assert find_chromium() is None
