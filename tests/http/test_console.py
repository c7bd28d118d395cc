"""The console as a real process serves it: from the bare address, behind the guard, and gone with the process."""

import asyncio
import time

import aiohttp
import pytest

from payonce.app.process import App
from payonce.http import server
from payonce.http.server import listening
from payonce.settings import Settings

LONG_S = 45
SOON_S = 20


async def test_the_bare_address_leads_to_the_console(settings: Settings) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        App.open(settings) as app,
        listening(app, "127.0.0.1", 0) as port,
        aiohttp.ClientSession(cookie_jar=jar) as http,
    ):
        for path in (f"/?token={app.console_token()}", "/console"):
            async with http.get(f"http://127.0.0.1:{port}{path}") as response:
                assert response.status == 200
                assert str(response.url) == f"http://127.0.0.1:{port}/console/"
                assert "All quiet: nothing needs an operator." in await response.text()
        async with http.get(f"http://127.0.0.1:{port}/console/queues/transfers-pay-in") as response:
            assert "Nothing waits." in await response.text()


async def test_an_open_page_does_not_hold_up_the_end_of_the_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For so long an end that is held up takes: no slow machine looks like it.
    monkeypatch.setattr(server, "SHUTDOWN_LIMIT_S", LONG_S)
    jar = aiohttp.CookieJar(unsafe=True)
    async with App.open(settings) as app, aiohttp.ClientSession(cookie_jar=jar) as http:
        async with listening(app, "127.0.0.1", 0) as port:
            response = await http.get(f"http://127.0.0.1:{port}/console/live?token={app.console_token()}")
            await response.content.readline()
            begun = time.monotonic()
        assert time.monotonic() - begun < SOON_S
        async with asyncio.timeout(SOON_S):
            await response.read()
