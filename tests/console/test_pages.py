"""The pages of queues, messages, jobs and traces, as somebody without JavaScript uses them."""

import re

import pytest

from payonce.console.pages import jobs
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter
from payonce.engine.operators import Role
from payonce.testing import OpenStage, Stage
from tests.console.renewals import POLICY, park, put, run
from tests.console.visitor import console, give_login, notes_of, visiting

QUEUE = POLICY.queue


async def test_a_parked_message_is_found_from_the_first_page_with_its_reason_and_the_button(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        [message_id] = await park(s, "the card expired")
        first = await visitor.get("/")
        assert "Parked messages 1" in first.words
        queues = await visitor.get("/queues")
        [to_parked] = re.findall(r'href="(/console/queues/[^"]*state=parked)"', queues.text)
        queue = await visitor.get(to_parked)
        assert "the card expired (gave up after 3 of 3 attempts)" in queue.words
        message = await visitor.get(f"/queues/{QUEUE}/messages/{message_id}")
        assert "the card expired (gave up after 3 of 3 attempts)" in message.words
        assert "nothing runs it again until somebody redrives it" in message.words
        assert f"/queues/{QUEUE}/redrive?id={message_id}" in message.text


async def test_a_redrive_is_previewed_confirmed_and_in_the_audit_log(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        ids = await park(s, count=3)
        preview = await visitor.get(f"/queues/{QUEUE}/redrive?id={ids[1]}")
        assert "Redrive 1 message" in preview.words
        done = await visitor.submit(
            preview, f"/queues/{QUEUE}/redrive", asked=preview.field("asked"), why="the card is new"
        )
        assert f"1 message of {QUEUE} redriven." in done.words
        assert (await s.admin.depth(QUEUE)).parked == 2
        [(actor, text)] = [note for note in await notes_of_all(s) if "redrive" in note[1]]
        assert actor == "operator@localhost"
        assert "the card is new" in text


async def test_a_redrive_does_what_was_previewed_or_nothing(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, count=2)
        preview = await visitor.get(f"/queues/{QUEUE}/redrive")
        [first] = await s.admin.peek(QUEUE, State.PARKED, 1)
        await s.admin.redrive(QUEUE, Filter(ids=[first.message.id]))
        answer = await visitor.submit(preview, f"/queues/{QUEUE}/redrive", asked=preview.field("asked"), why="x")
        assert answer.status == 409
        assert (await s.admin.depth(QUEUE)).parked == 1


async def test_a_redrive_by_filter_takes_those_that_match_and_no_others(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, "the card expired", count=2)
        await park(s, "the bank is away", count=3)
        preview = await visitor.get(f"/queues/{QUEUE}/redrive?error_contains=bank")
        assert "3 parked" in preview.words
        await visitor.submit(preview, f"/queues/{QUEUE}/redrive", asked=preview.field("asked"), why="it is back")
        assert (await s.admin.depth(QUEUE)).parked == 2


async def test_a_redrive_needs_a_reason_and_a_preview(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s)
        preview = await visitor.get(f"/queues/{QUEUE}/redrive")
        other = preview.field("asked").replace(QUEUE, "another")
        for form in (
            {"asked": preview.field("asked"), "why": " "},
            {"asked": "{}", "why": "x"},
            {"why": "x"},
            {"asked": other, "why": "x"},
        ):
            answer = await visitor.submit(preview, f"/queues/{QUEUE}/redrive", **form)
            assert answer.status == 400
        assert (await s.admin.depth(QUEUE)).parked == 1


async def test_a_queue_is_paused_with_a_reason_and_resumed(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await give_login(s, "ann")
        await visitor.log_in("ann")
        await put(s, {})
        page = await visitor.get(f"/queues/{QUEUE}/pause")
        page = await visitor.submit(page, f"/queues/{QUEUE}/pause", why="the bank is <b>down</b>")
        assert "Paused: the bank is <b>down</b>." in page.words.replace("&lt;", "<")
        assert "<b>down</b>" not in page.text
        assert (await s.admin.depth(QUEUE)).paused
        page = await visitor.submit(page, f"/queues/{QUEUE}/resume")
        assert not (await s.admin.depth(QUEUE)).paused
        assert await notes_of(s, QUEUE) == [("ann", "paused: the bank is <b>down</b>"), ("ann", "resumed")]


async def test_a_pause_without_a_reason_pauses_nothing(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await put(s, {})
        page = await visitor.get(f"/queues/{QUEUE}/pause")
        assert (await visitor.submit(page, f"/queues/{QUEUE}/pause", why="")).status == 400
        assert not (await s.admin.depth(QUEUE)).paused


async def test_a_redrive_says_of_how_many_nobody_knows_what_they_move(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, count=3)
        page = await visitor.get(f"/queues/{QUEUE}/redrive")
        assert "They may move unknown for 3 of 3: nothing was about to be sent for them yet" in page.words


async def test_a_purge_wants_the_queues_name_typed_and_leaves_lines_in_the_log(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        [message_id] = await park(s)
        page = await visitor.get(f"/queues/{QUEUE}/purge?id={message_id}")
        form = {"asked": page.field("asked"), "state": "parked", "why": "never to be paid"}
        answer = await visitor.submit(page, f"/queues/{QUEUE}/purge", typed="something else", **form)
        assert answer.status == 400
        assert (await s.admin.depth(QUEUE)).parked == 1
        answer = await visitor.submit(page, f"/queues/{QUEUE}/purge", typed=QUEUE, **form)
        assert "1 message" in answer.words
        assert (await s.admin.depth(QUEUE)).parked == 0
        assert ("operator@localhost", "purges 1 message, parked: never to be paid") in await notes_of(s, QUEUE)
        gone = await visitor.get(f"/queues/{QUEUE}/messages/{message_id}")
        assert "purged by operator@localhost in the console: never to be paid" in gone.words


async def test_a_purge_deletes_what_was_shown_and_nothing_that_came_later(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s)
        page = await visitor.get(f"/queues/{QUEUE}/purge")
        [later] = await park(s)
        form = {"asked": page.field("asked"), "state": "parked", "why": "x", "typed": QUEUE}
        assert "1 message" in (await visitor.submit(page, f"/queues/{QUEUE}/purge", **form)).words
        [left] = await s.admin.peek(QUEUE, State.PARKED, 10)
        assert left.message.id == later


async def test_a_purge_of_others_than_were_shown_purges_nothing(stage: OpenStage) -> None:
    """As many as were shown, and not the same."""
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, count=3)
        page = await visitor.get(f"/queues/{QUEUE}/purge")
        await s.admin.purge(QUEUE, State.PARKED, Filter(), "somebody else")
        await park(s, "another reason", count=3)
        form = {"asked": page.field("asked"), "state": "parked", "why": "x", "typed": QUEUE}
        for given in (form, {**form, "asked": ""}, {**form, "asked": "{}"}):
            answer = await visitor.submit(page, f"/queues/{QUEUE}/purge", **given)
            assert answer.status == (409 if given is form else 400)
        assert (await s.admin.depth(QUEUE)).parked == 3


async def test_a_viewer_is_shown_no_button_and_may_not_post(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s)
        await give_login(s, "eve", Role.VIEWER)
        page = await visitor.log_in("eve")
        queue = await visitor.get(f"/queues/{QUEUE}")
        assert "Redrive" not in queue.words
        assert "Pause…" not in queue.words
        for path in ("pause", "resume", "redrive", "purge"):
            answer = await visitor.submit(page, f"/queues/{QUEUE}/{path}", why="x", typed=QUEUE)
            assert answer.status == 403
            assert "payonce users role eve operator" in answer.words
        assert (await s.admin.depth(QUEUE)).parked == 1


async def test_a_change_without_the_token_of_its_session_is_refused(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor, visiting(address) as other:
        await put(s, {})
        await visitor.get("/queues")
        foreign = (await other.get("/queues")).field("csrf")
        for token in ("", foreign):
            answer = await visitor.post(f"/queues/{QUEUE}/pause", {"csrf": token, "why": "x"})
            assert answer.status == 403
        assert not (await s.admin.depth(QUEUE)).paused


async def test_the_message_page_says_when_and_why_it_is_tried_again(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await s.clock.freeze(await s.clock.now())
        by_policy = await put(s, {"fails": "not yet"})
        by_vendor = await put(s, {"asks_s": 900})
        await run(s, for_s=0.0)
        page = await visitor.get(f"/queues/{QUEUE}/messages/{by_policy}")
        assert "After run 1 the policy waits 60 s, at most 1 h, plus up to 10 s of jitter" in page.words
        assert "It is given up after 3 runs, of which 1 has ended." in page.words
        page = await visitor.get(f"/queues/{QUEUE}/messages/{by_vendor}")
        assert "Run 1 requested 15 min itself" in page.words


async def test_secrets_of_a_payload_or_an_error_are_not_shown(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        [message_id] = await park(s, "refused: api_key=abcdef123456", correlation_id="order-7")
        secret = await put(s, {"password": "hunter22hunter", "card": "4111 1111 1111 1111", "amount": "12.50"})
        for path in (f"/messages/{message_id}", "?state=parked", f"/messages/{secret}", "?state=ready"):
            text = (await visitor.get(f"/queues/{QUEUE}{path}")).text
            assert not [word for word in ("abcdef123456", "hunter22hunter", "4111 1111") if word in text]
        assert "12.50" in (await visitor.get(f"/queues/{QUEUE}/messages/{secret}")).words


async def test_what_a_payload_says_is_text_and_never_markup(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        evil = '"><script src="https://evil.example/x.js"></script><img src=x onerror=alert(1)>'
        [message_id] = await park(s, evil, action="<i>act</i>", correlation_id=evil[:100])
        for path in (f"/queues/{QUEUE}", f"/queues/{QUEUE}/messages/{message_id}", "/jobs", f"/trace?id={message_id}"):
            text = (await visitor.get(path)).text
            assert '<script src="https://evil' not in text
            assert "<img src=x" not in text
            assert "<i>act" not in text


async def test_a_queue_pages_through_many_messages_without_losing_or_repeating_one(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        ids = {str(await put(s, {"number": number})) for number in range(120)}
        seen: list[str] = []
        path: str | None = f"/queues/{QUEUE}?state=ready"
        while path is not None:
            text = (await visitor.get(path)).text
            seen += re.findall(rf'href="/console/queues/{QUEUE}/messages/([0-9a-f-]+)"', text)
            found = re.search(r'<a href="([^"]*)" rel="next"', text)
            path = found[1].replace("&amp;", "&") if found else None
        assert len(seen) == 120
        assert set(seen) == ids


async def test_the_job_log_filters_and_pages(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        for number in range(70):
            await put(s, {}, action="renew", correlation_id=f"order-{number}")
        await park(s, action="cancel")
        assert "No finished run matches." in (await visitor.get("/jobs?action=nothing")).words
        page = await visitor.get("/jobs?status=success")
        assert page.text.count("/messages/") == 50
        found = re.search(r'<a href="([^"]*)" rel="next"', page.text)
        assert found
        assert (await visitor.get(found[1].replace("&amp;", "&"))).text.count("/messages/") == 20
        assert (await visitor.get("/jobs?action=cancel")).text.count("/messages/") == 3
        assert (await visitor.get("/jobs?correlation_id=order-5")).text.count("/messages/") == 1
        assert (await visitor.get(f"/jobs?queue={QUEUE}&status=parked")).text.count("/messages/") == 1


@pytest.mark.parametrize(
    "path",
    [
        f"/queues/{QUEUE}?state=lost",
        f"/queues/{QUEUE}?after=x",
        "/jobs?status=x",
        "/jobs?since=yesterday",
        "/jobs?before=-1",
        "/jobs?before=99999999999999999999",
        f"/queues/{QUEUE}/messages/x",
        "/jobs?since=2026-01-02T00:00&until=2026-01-01T00:00",
        "/?window=year",
        f"/jobs?action={'x' * 300}",
        "/trace?id=%00",
        "/jobs?since=0001-01-01T00:00%2B14:00",
    ],
)
async def test_a_bad_address_is_answered_in_one_sentence(stage: OpenStage, path: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await put(s, {})
        answer = await visitor.get(path)
        assert answer.status == 400
        assert "internal error of payonce" not in answer.words


async def test_an_unknown_message_and_an_unknown_page_are_not_found(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await put(s, {})
        unknown = "00000000-0000-7000-8000-000000000000"
        assert (await visitor.get(f"/queues/{QUEUE}/messages/{unknown}")).status == 404
        lost = await visitor.get("/no/such/page")
        assert lost.status == 404
        assert "There is no page /console/no/such/page." in lost.words
        assert "Job log" in lost.words, "it says where to go"


async def test_a_look_into_the_log_that_reads_too_much_is_broken_off_with_the_way_out(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        monkeypatch.setattr(jobs, "QUERY_LIMIT_MS", 1)
        await put(s, {})
        await s.owner.execute(
            """
            insert into payonce.job_logs (queue, message_id, status, attempts, action, created_at, updated_at)
            select 'work', gen_random_uuid(), 'success', 1, '', payonce.due_now(), payonce.due_now()
            from generate_series(1, 100000)
            """
        )
        answer = await visitor.get("/jobs?action=nothing")
        assert answer.status == 400
        assert "or a shorter time" in answer.words


async def test_the_stream_ticks_with_the_newest_minutes_and_ends_with_the_process(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await put(s, {})
        async with visitor.http.get(f"{address}/console/live") as response:
            assert response.content_type == "text/event-stream"
            seen = b""
            while b"event: tick" not in seen:
                seen += await response.content.readany()
            assert b'"success":[' in seen


async def notes_of_all(stage: Stage) -> list[tuple[str, str]]:
    rows = await stage.read.fetch("select actor, text from payonce.audit_log order by id")
    return [(row["actor"], row["text"]) for row in rows]
