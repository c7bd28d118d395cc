"""What went wrong on our side is for the log; a visitor hears that it did."""

import asyncio
from uuid import UUID

import asyncpg
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount
from structlog.testing import capture_logs

from payonce.console.mount import CONSOLE
from payonce.console.page import Page, Visit, get
from payonce.console.site import build_console
from payonce.kit.outcomes import Unavailable
from payonce.testing import OpenStage
from payonce.testing.server import serving
from tests.console.visitor import TOKEN, StageContext, console, visiting


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (asyncpg.UndefinedTableError("secret_table"), 500, "internal error of payonce; see its log"),
        (asyncpg.InvalidPasswordError("secret_table"), 500, "internal error of payonce; see its log"),
        (ConnectionRefusedError(111, "secret_table"), 503, "the database does not answer; try again"),
        (TimeoutError("secret_table"), 503, "the database does not answer; try again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_what_the_store_says_is_for_the_log_and_not_for_strangers(
    stage: OpenStage, error: Exception, status: int, said: str
) -> None:
    async def broken(visit: Visit) -> Response:
        raise error

    async with stage() as s:
        page = Page("Broken", "/broken", (get("/broken", broken),))
        site = build_console(StageContext(s, asyncio.Event()), "127.0.0.1", lambda: TOKEN, {}, (page,))
        async with serving(Starlette(routes=[Mount(CONSOLE, site)])) as address, visiting(address) as visitor:
            with capture_logs() as lines:
                answer = await visitor.get("/broken")
    assert "secret_table" not in answer.text
    assert (answer.status, said in answer.words) == (status, True)
    [line] = [line for line in lines if line["event"] == "console_failed"]
    assert (line["log_level"], "secret_table" in repr(line["exc_info"])) == ("error", True)


async def test_our_own_sentences_are_shown(stage: OpenStage) -> None:
    async def broken(visit: Visit) -> Response:
        raise Unavailable("the printer is on fire")

    async with stage() as s:
        page = Page("Broken", "/broken", (get("/broken", broken),))
        site = build_console(StageContext(s, asyncio.Event()), "127.0.0.1", lambda: TOKEN, {}, (page,))
        async with serving(Starlette(routes=[Mount(CONSOLE, site)])) as address, visiting(address) as visitor:
            assert "the printer is on fire" in (await visitor.get("/broken")).words


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nowhere", 404, "There is no page /console/nowhere."),
        ("/nowhere/at/all", 404, "There is no page /console/nowhere/at/all."),
        ("/queues/no-such-queue", 404, "there is no queue 'no-such-queue'"),
        ("/queues/no-such-queue/pause", 404, "there is no queue 'no-such-queue'"),
        ("/queues/no-such-queue/redrive", 404, "there is no queue 'no-such-queue'"),
        (f"/queues/no-such-queue/messages/{UUID(int=7)}", 404, "there is no queue 'no-such-queue'"),
        ("/?window=7y", 400, "window is '7y'; it is one of: 1h, 6h, 24h"),
        (f"/effects/{UUID(int=7)}", 400, "there is no effect"),
    ],
)
async def test_an_error_keeps_the_navigation_and_the_headers(
    stage: OpenStage, path: str, status: int, said: str
) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get(path)
        assert (page.status, said in page.words) == (status, True), page.words
        assert '<nav id="pages"' in page.text
        assert 'href="/console/queues"' in page.text
        assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert page.headers["Cache-Control"] == "no-store"


async def test_a_form_that_is_refused_keeps_the_navigation(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.post("/queues/some-queue/resume", {"csrf": "forged"})
        assert (page.status, '<nav id="pages"' in page.text) == (403, True)


async def test_a_refused_form_that_is_loaded_again_keeps_the_navigation(stage: OpenStage) -> None:
    """The address of a form's answer is one that only takes forms."""
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        for method, path, allowed in (("GET", "/queues/some-queue/resume", "POST"), ("POST", "/audit", "GET")):
            page = await (visitor.get(path) if method == "GET" else visitor.submit(await visitor.get("/"), path))
            assert (page.status, f"this page does not support {method}" in page.words) == (405, True)
            assert page.headers["Allow"] == allowed
            assert '<nav id="pages"' in page.text


async def test_a_stranger_sees_no_navigation(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address, with_ticket=False) as visitor:
        for path in ("/nowhere", "/queues/some-queue/resume"):
            page = await visitor.get(path)
            assert (page.status, '<nav id="pages"' in page.text) == (403, False)


async def test_a_table_that_may_not_be_read_is_not_named_at_the_login(stage: OpenStage) -> None:
    async with stage() as s, console(s, host="0.0.0.0") as address, visiting(address) as visitor:
        await s.owner.execute("revoke select on payonce.people from payonce_service")
        with capture_logs() as lines:
            page = await visitor.get("/login")
        assert page.status == 500
        assert "people" not in page.text
        assert "permission denied for table people" in repr([line.get("exc_info") for line in lines])
