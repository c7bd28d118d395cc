"""What the browser tests share: the console of a real process on a database of its own, and people who look at it."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from payonce.app.process import App
from payonce.console.cookies import TICKET
from payonce.console.ticket import Ticket
from payonce.engine.database.durability import ACCEPT_DATA_LOSS
from payonce.http.server import listening
from payonce.settings import Settings
from payonce.testing import ScratchDatabase, Servers
from tests.browser.chromium import NAMES, VARIABLE, Watched, find_chromium, open_browser, open_person

NO_BROWSER = (
    f"no Chromium: none of {', '.join(NAMES)} is on PATH and {VARIABLE} names none; "
    "`./dev test` installs one as root where there is apt-get"
)


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    """Their databases have the examples' tables."""
    return shared_servers


@pytest.fixture(scope="session")
def chromium() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip(NO_BROWSER)
    return found


@pytest.fixture
def browser(chromium: str) -> AbstractAsyncContextManager[Browser]:
    return open_browser(chromium)


@dataclass(frozen=True)
class Served:
    """One process with the console, as `payonce up` has it; nothing runs on its queues unless a test starts it."""

    app: App
    address: str

    @asynccontextmanager
    async def person(self, browser: Browser, **options: Any) -> AsyncIterator[Watched]:
        """Somebody who opened the link that the process printed."""
        async with open_person(browser, self.address, **options) as person:
            cookie = Ticket(self.app.console_token).cookie
            await person.context.add_cookies([{"name": TICKET, "value": cookie, "url": f"{self.address}/console/"}])
            yield person


OpenServed = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def served(scratch: ScratchDatabase, tmp_path: Path) -> OpenServed:
    """Opens the console. Arguments are roles; keywords are variables of the environment."""

    @asynccontextmanager
    async def opened(*roles: str, **variables: str) -> AsyncIterator[Served]:
        given = {"DATABASE_URL": scratch.service_url, "PAYONCE_DATA_DIR": str(tmp_path / "data"), **variables}
        settings = Settings(**given)  # type: ignore[arg-type]
        async with App.open(settings, roles) as app, listening(app, settings.host, 0) as port:
            if roles:
                app.start()
            try:
                yield Served(app, f"http://127.0.0.1:{port}")
            finally:
                await app.stop()

    return opened


TakePicture = Callable[..., Awaitable[None]]


@pytest.fixture
def take_picture(request: pytest.FixtureRequest) -> TakePicture:
    """Of a page, under a name; none is taken unless somebody said where to leave them."""
    asked = request.config.getoption("--pictures")

    async def take(page: Page, name: str, **options: Any) -> None:
        if asked:
            await page.screenshot(path=Path(asked) / f"{name}.png", animations="disabled", **options)

    return take


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("DATABASE_", "PAYONCE_", "QUEUE_POLICY__")) and name not in (VARIABLE, ACCEPT_DATA_LOSS):
            monkeypatch.delenv(name)
