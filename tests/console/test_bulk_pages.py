"""Redrives and purges in batches, reviews instead of redrives, and queues that are not there, in the console."""

import html
import re

import pytest

from payonce.engine.messages import bulk
from payonce.engine.messages.bulk import Status
from payonce.testing import OpenStage
from tests.console.renewals import POLICY, park
from tests.console.visitor import console, visiting

QUEUE = POLICY.queue


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BULK_MAX", 4)
    monkeypatch.setattr(bulk, "BATCH", 2)


async def test_a_large_redrive_is_begun_and_its_progress_shown_and_it_can_be_stopped(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, count=5)
        preview = await visitor.get(f"/queues/{QUEUE}/redrive")
        assert "redriven in batches" in preview.words
        page = await visitor.submit(preview, f"/queues/{QUEUE}/redrive", asked=preview.field("asked"), why="back")
        assert f"redrives 5 messages of {QUEUE} in batches" in page.words
        assert f"0 of 5 messages of {QUEUE} redriven (running)" in page.words
        [operation] = await bulk.operations(s.read, QUEUE)
        await bulk.step(s.database, s.admin, s.feed, operation)
        page = await visitor.get(f"/queues/{QUEUE}")
        assert f"2 of 5 messages of {QUEUE} redriven (running)" in page.words
        page = await visitor.submit(page, f"/queues/{QUEUE}/operations/{operation.id}/stop")
        assert f"2 of 5 messages of {QUEUE} redriven (stopped)" in page.words
        assert (await s.admin.depth(QUEUE)).parked == 3
        assert (await visitor.submit(page, f"/queues/{QUEUE}/operations/404/stop")).status == 404


async def test_a_redrive_says_what_waits_for_a_review_and_leads_to_it(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        ids = await park(s, count=3)
        for number, message_id in enumerate(ids[:2]):
            await s.owner.execute(
                """
                insert into payonce.effects (
                    id, kind, key, version, safety, state, request, reason, review_cause, first_attempt_at, sent_until,
                    message_id, trace_id, service)
                values (gen_random_uuid(), 'bank.pay', $2, 1, 'blind', 'review', '{}', 'no answer', 'blind',
                        payonce.due_now(), payonce.due_now(), $1, 't-1', 'tally')
                """,
                message_id,
                f"pay-{number}",
            )
        page = await visitor.get(f"/queues/{QUEUE}/redrive")
        assert "2 of them have effects in review" in page.words
        assert "Answer the reviews instead" in page.words
        [link] = re.findall(r'href="[^"]*(/effects\?state=review[^"]*)"', page.text)
        reviews = await visitor.get(html.unescape(link))
        assert ("pay-0" in reviews.words, "pay-1" in reviews.words) == (True, True)


async def test_a_large_purge_is_begun_and_leaves_a_line_of_each(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s, count=5)
        page = await visitor.get(f"/queues/{QUEUE}/purge?state=parked")
        form = {"asked": page.field("asked"), "state": "parked", "why": "never to be paid", "typed": QUEUE}
        page = await visitor.submit(page, f"/queues/{QUEUE}/purge", **form)
        assert f"purges 5 messages of {QUEUE} in batches" in page.words
        while await bulk.carry_on(s.database, s.admin, s.feed):
            pass
        await bulk.carry_on(s.database, s.admin, s.feed)
        [operation] = await bulk.operations(s.read, QUEUE)
        assert (operation.status, operation.changed) == (Status.DONE, 5)
        assert (await s.admin.depth(QUEUE)).parked == 0


@pytest.mark.parametrize(
    "path",
    [
        "/queues/nobody",
        "/queues/nobody/pause",
        "/queues/nobody/redrive",
        "/queues/nobody/purge",
        "/queues/nobody/messages/00000000-0000-7000-8000-000000000000",
    ],
)
async def test_a_queue_that_is_not_there_is_not_found(stage: OpenStage, path: str) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        await park(s)
        page = await visitor.get(path)
        assert page.status == 404
        assert "there is no queue 'nobody'" in page.words or "nobody has no message" in page.words
