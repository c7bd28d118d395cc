"""Who comes in: this machine without a login, everybody else with one, and no form that is not ours."""

import asyncio

import pytest
from yarl import URL

from payonce.console.auth import is_loopback
from payonce.engine.operators import Role
from payonce.testing import OpenStage
from tests.console.visitor import TOKEN, console, give_login, visiting


async def test_whoever_has_the_link_needs_no_login_while_nobody_has_one(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get("/queues")
        assert page.status == 200
        assert "operator@localhost" in page.words


NGINX = "GET /console/approvals HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n"
"""What `proxy_pass http://127.0.0.1:8080;` and nothing else sends: no trace of a proxy or of who is before it."""


async def test_a_stranger_behind_a_proxy_that_tells_nothing_of_itself_does_not_come_in(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address:
        host = address.removeprefix("http://")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(host.rpartition(":")[2]))
        writer.write(NGINX.format(host=host).encode())
        answer = (await reader.read(1_000_000)).decode()
        writer.close()
        assert answer.split()[1] == "403"
        assert "thresholds/set" not in answer
        assert "payonce console" in answer, "where to find the link"


async def test_the_link_leads_in_and_its_token_stays_in_no_address(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address, with_ticket=False) as visitor:
        assert (await visitor.get("/queues")).status == 403
        page = await visitor.get(f"{address}/console?token={TOKEN}")
        assert (page.status, page.url) == (200, f"{address}/console/")
        assert "operator@localhost" in (await visitor.get("/queues")).words
        kept = {cookie.key: cookie for cookie in visitor.http.cookie_jar}["payonce_ticket"]
        assert (kept["httponly"], kept["samesite"], kept["path"]) == (True, "strict", "/console")
        assert TOKEN not in kept.value
        page = await visitor.get(f"/queues?state=parked&token={TOKEN}")
        assert page.url.endswith("/console/queues?state=parked")


@pytest.mark.parametrize("token", ["", "guessed", f"{TOKEN}x", "%C3%A9"])
async def test_a_wrong_token_or_cookie_does_not_lead_in(stage: OpenStage, token: str) -> None:
    async with stage() as s, console(s) as address, visiting(address, with_ticket=False) as visitor:
        assert (await visitor.get(f"/queues?token={token}")).status == 403
        assert (await visitor.get("/queues", Cookie=f"payonce_ticket={token}")).status == 403
        assert (await visitor.get("/queues", Cookie=f"payonce_ticket={TOKEN}")).status == 403


async def test_the_link_is_of_no_use_once_somebody_has_a_login_or_beyond_this_machine(stage: OpenStage) -> None:
    async with stage() as s, console(s, host="0.0.0.0") as far, visiting(far) as visitor:
        assert (await visitor.get(f"/queues?token={TOKEN}")).url.startswith(f"{far}/console/login")
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await give_login(s, "ann")
        assert (await visitor.get(f"/queues?token={TOKEN}")).url.startswith(f"{address}/console/login")


async def test_from_the_first_login_on_everybody_needs_theirs(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await give_login(s, "ann")
        page = await visitor.get("/queues")
        assert page.url.endswith("/console/login?next=/console/queues")
        assert (await visitor.log_in("ann")).words.count("ann") >= 1
        assert (await visitor.get("/queues")).status == 200


async def test_beyond_loopback_nobody_comes_in_and_the_page_says_how_to_add_the_first(stage: OpenStage) -> None:
    async with stage() as s, console(s, host="0.0.0.0") as address, visiting(address) as visitor:
        page = await visitor.get("/queues")
        assert "payonce users add ann --role approver" in page.words
        assert "operator@localhost" not in page.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "[2001:db8::1]", ""])
async def test_without_a_login_a_name_that_was_made_to_point_here_is_refused(stage: OpenStage, host: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get("/queues", Host=host)
        assert page.status in (400, 421)
        assert "operator@localhost" not in page.text


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-Host"])
async def test_without_a_login_what_came_through_a_proxy_is_refused(stage: OpenStage, header: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get("/queues", **{header: "203.0.113.7"})
        assert page.status == 403
        assert "payonce users add" in page.words


async def test_a_form_without_its_token_or_with_anothers_changes_nothing(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor, visiting(address) as other:
        await visitor.get("/queues")
        foreign = (await other.get("/queues")).field("csrf")
        for token in ("", "0" * 64, foreign, "é"):
            answer = await visitor.post("/theme", {"csrf": token, "theme": "dark", "next": "/console/"}, follow=False)
            assert answer.status == 403
            assert "payonce_theme" not in str(answer.headers)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:1", "null", "http://localhost.evil.example"]
)
async def test_a_form_of_another_site_is_refused_even_with_the_token(stage: OpenStage, origin: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        token = (await visitor.get("/queues")).field("csrf")
        answer = await visitor.post("/theme", {"csrf": token, "theme": "dark"}, Origin=origin)
        assert answer.status == 403


@pytest.mark.parametrize("said", ["All%20is%20paid", ".All%20is%20paid", "0" * 64 + ".All%20is%20paid"])
async def test_a_notice_that_this_session_did_not_make_is_not_shown(stage: OpenStage, said: str) -> None:
    """Another port of localhost can set our cookies, and must not speak in our name."""
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        visitor.http.cookie_jar.update_cookies({"payonce_notice": said}, URL(f"{address}/console/"))
        assert "All is paid" not in (await visitor.get("/queues")).words


async def test_a_viewer_looks_and_changes_nothing(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await give_login(s, "eve", Role.VIEWER)
        page = await visitor.log_in("eve")
        assert page.status == 200
        assert "Log out" in page.words


async def test_logging_out_ends_the_session_for_whoever_kept_its_cookie(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor, visiting(address) as thief:
        await give_login(s, "ann")
        page = await visitor.log_in("ann")
        thief.http.cookie_jar.update_cookies(
            {c.key: c.value for c in visitor.http.cookie_jar}, response_url=URL(f"{address}/console/")
        )
        assert (await thief.get("/queues")).words.count("ann")
        await visitor.submit(page, "/logout")
        assert "/login" in (await thief.get("/queues")).url


async def test_a_login_leads_back_to_where_one_wanted_to_go_and_never_elsewhere(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await give_login(s, "ann")
        for wanted in (
            "https://evil.example/console",
            "//evil.example/console",
            "/\\evil.example",
            "/other",
            "javascript:x",
        ):
            page = await visitor.get(f"/login?next={wanted}")
            assert page.field("next") == "/console/"
        page = await visitor.get("/queues?state=parked")
        answer = await visitor.submit(
            page, "/login", name="Ann ", password="correct horse battery", next=page.field("next")
        )
        assert answer.url.endswith("/console/queues?state=parked")


async def test_every_answer_forbids_frames_foreign_scripts_and_caches(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        for path in ("/", "/queues", "/nothing/here", "/login"):
            headers = (await visitor.get(path)).headers
            assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"


async def test_no_page_carries_a_script_or_style_of_its_own(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        text = (await visitor.get("/")).text
        assert "<style" not in text
        assert " style=" not in text
        assert "onclick" not in text
        assert text.count("<script") == text.count('<script src="/console/static/')


async def test_colours_are_chosen_by_a_form_and_kept_in_a_cookie(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        page = await visitor.get("/queues")
        assert 'data-theme="auto"' in page.text
        page = await visitor.submit(page, "/theme", theme="dark", next="/console/queues")
        assert 'data-theme="dark"' in page.text
        assert (await visitor.submit(page, "/theme", theme="pink")).status == 400


@pytest.mark.parametrize(
    ("host", "only_this_machine"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.com", False),
        ("", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, only_this_machine: bool) -> None:
    assert is_loopback(host) is only_this_machine
