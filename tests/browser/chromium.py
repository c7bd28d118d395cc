"""A real Chromium from this machine, and pages of it that keep what went wrong on them."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Response, async_playwright, expect

VARIABLE = "PAYONCE_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 40_000
"""The bound of each wait for a page, above what a busy machine needs."""
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}


def find_chromium() -> str | None:
    """The one that the environment names, or the first on PATH."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@asynccontextmanager
async def open_browser(executable: str) -> AsyncIterator[Browser]:
    """A browser of its own, with a fresh profile, which ends with the block."""
    # The kernel's own walls are not there for root; the pages are ours alone.
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else [*FLAGS]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, headless=True, args=flags)
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Watched:
    """One person's browser: a context with its cookies, one page, and every complaint of the browser about it."""

    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)
    """Answers that a test provokes."""

    def watch(self) -> None:
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error in a script: {error}"))
        self.page.on("response", self._see)

    def check(self) -> None:
        """No script failed, nothing was blocked by the policy, no answer was an error."""
        assert not self.complaints, self.complaints

    def _hear(self, message: ConsoleMessage) -> None:
        refused = "Failed to load resource" in message.text and any(str(code) in message.text for code in self.expected)
        if message.type in ("error", "warning") and not refused:
            self.complaints.append(f"{message.type} at {self.page.url}: {message.text}")

    def _see(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.complaints.append(f"{response.status} from {response.url}")


@asynccontextmanager
async def open_person(browser: Browser, address: str, **options: Any) -> AsyncIterator[Watched]:
    """A person at a browser of their own. `options` are those of a context: java_script_enabled, color_scheme…"""
    options = {"viewport": WIDE, "base_url": address, **options}
    context = await browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    try:
        watched = Watched(context, await context.new_page())
        watched.watch()
        yield watched
        watched.check()
    finally:
        await context.close()


async def overflow_px(page: Page) -> int:
    """By how much the page is wider than its window; tables may scroll inside their own box."""
    width: int = await page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width
