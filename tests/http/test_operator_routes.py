"""An operator over HTTP: queues, the job log, traces, effects and approvals."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from payonce.app.process import App
from payonce.engine.controls import set_threshold
from payonce.engine.messages.maintenance import Task, synthetic_message, write_maintenance_run
from payonce.engine.messages.model import Ending, Message, Settlement
from payonce.testing import OpenStage
from tests.engine.controls_stage import euros, open_till
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb

QUEUE = "tally-changes"
ALL = (
    "queues:read",
    "queues:steer",
    "jobs:read",
    "effects:read",
    "effects:answer",
    "approvals:read",
    "approvals:decide",
    "audit:read",
    "webhooks:read",
    "webhooks:write",
)
SECRET = "sk_live_" + "a" * 20


async def parked(app: App, stage: OpenStage, count: int, error: str = "the row is not there") -> list[UUID]:
    """So many messages of the example's queue, given up with this error."""
    from payonce.examples.tally.policies import CHANGES

    messages = [Message(queue=QUEUE, payload={"row_id": n, "token": SECRET}) for n in range(count)]
    await app.feed.put(messages)
    async with stage() as s:
        queue = await s.queue(CHANGES)
        claims = (await queue.exchange([], count)).claims
        assert len(claims) == count
        await queue.exchange([Settlement(claim, Ending.PARKED, error) for claim in claims], 0)
    return [message.id for message in messages]


async def test_a_parked_message_is_found_with_its_reason_and_redriven(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        [message_id] = await parked(ask.app, stage, 1, f"refused with {SECRET}")
        ada = await ask.as_holder("ada", *ALL)
        listed = await ada.get("/v1/queues")
        [depth] = [each for each in listed.json["queues"] if each["queue"] == QUEUE]
        assert depth["parked"] == 1
        page = await ada.get(f"/v1/queues/{QUEUE}/messages?state=parked")
        [message] = page.json["messages"]
        assert (message["id"], message["last_error"]) == (str(message_id), "refused with [redacted]")
        assert SECRET not in page.body.decode()
        done = await ada.post(f"/v1/queues/{QUEUE}/redrive", {"all": True, "why": "mended"}, idempotency_key="r1")
        told = {"queue": QUEUE, "matching": 1, "redriven": 1, "in_review": 0, "amounts": []}
        assert done.json == {**told, "approval": None, "operation": None}
        again = await ada.post(f"/v1/queues/{QUEUE}/redrive", {"all": True, "why": "mended"}, idempotency_key="r1")
        assert again.json == done.json
        nothing = await ada.post(f"/v1/queues/{QUEUE}/redrive", {"all": True, "why": "mended"}, idempotency_key="r2")
        assert nothing.json["redriven"] == 0
        shown = await ada.get(f"/v1/queues/{QUEUE}")
        assert (shown.json["parked"], shown.json["ready"]) == (0, 1)


async def test_a_redrive_takes_only_what_it_names(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        ids = await parked(ask.app, stage, 3)
        ada = await ask.as_holder("ada", *ALL)
        path = f"/v1/queues/{QUEUE}/redrive"
        for body, expected in (
            ({"error_contains": "quite another"}, 0),
            ({"action": "none"}, 0),
            ({"parked_before": (datetime.now(UTC) - timedelta(days=1)).isoformat()}, 0),
            ({"ids": [str(ids[0])]}, 1),
            ({"error_contains": "not there"}, 2),
        ):
            done = await ada.post(path, {**body, "why": "mended"}, idempotency_key=str(uuid4()))
            assert (done.status, done.json["redriven"]) == (200, expected), body


@pytest.mark.parametrize("body", [{}, {"ids": []}, {"all": False}, {"action": None}, {"all": True, "action": "tally"}])
async def test_a_redrive_that_names_nothing_takes_nothing(web: OpenWeb, stage: OpenStage, body: Any) -> None:
    async with web() as ask:
        await parked(ask.app, stage, 2)
        ada = await ask.as_holder("ada", *ALL)
        refused = await ada.post(f"/v1/queues/{QUEUE}/redrive", {**body, "why": "mended"}, idempotency_key="r")
        assert refused.problem["status"] == 422
        assert (await ada.get(f"/v1/queues/{QUEUE}")).json["parked"] == 2


async def test_a_redrive_without_a_reason_takes_nothing_and_a_preview_needs_none(
    web: OpenWeb, stage: OpenStage
) -> None:
    async with web() as ask:
        await parked(ask.app, stage, 2)
        ada = await ask.as_holder("ada", *ALL)
        refused = await ada.post(f"/v1/queues/{QUEUE}/redrive", {"all": True}, idempotency_key="r")
        assert (refused.problem["status"], "why" in str(refused.problem["errors"])) == (422, True)
        previewed = await ada.post(f"/v1/queues/{QUEUE}/redrive/preview", {"all": True})
        assert previewed.status == 200
        assert (await ada.get(f"/v1/queues/{QUEUE}")).json["parked"] == 2


async def test_a_redrive_of_another_number_than_expected_takes_nothing(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        await parked(ask.app, stage, 2)
        ada = await ask.as_holder("ada", *ALL)
        path, body = f"/v1/queues/{QUEUE}/redrive", {"all": True, "why": "mended"}
        for other in (0, 1, 3):
            refused = await ada.post(path, {**body, "expected": other}, idempotency_key=str(uuid4()))
            assert (refused.status, "2 parked messages" in refused.problem["detail"]) == (409, True)
        done = await ada.post(path, {**body, "expected": 2}, idempotency_key="r")
        assert (done.status, done.json["redriven"]) == (200, 2)


async def test_pages_of_messages_leave_none_out(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        ids = await parked(ask.app, stage, 5)
        ada = await ask.as_holder("ada", *ALL)
        seen, after = [], ""
        for _ in range(3):
            page = (await ada.get(f"/v1/queues/{QUEUE}/messages?state=parked&limit=2{after}")).json
            seen += [message["id"] for message in page["messages"]]
            after = f"&after={page['next_after']}"
        assert page["next_after"] is None
        assert sorted(seen) == sorted(map(str, ids))


async def test_what_a_run_has_to_say_is_told_apart_from_errors_and_without_secrets(web: OpenWeb) -> None:
    async with web() as ask:
        await write_maintenance_run(
            ask.app.database, synthetic_message(QUEUE, Task.PUMP), f"moved with {SECRET}", "worker-1"
        )
        ada = await ask.as_holder("ada", *ALL)
        [listed] = (await ada.get(f"/v1/jobs?action={Task.PUMP}")).json["jobs"]
        [traced] = (await ada.get(f"/v1/traces/{Task.PUMP}")).json["entries"]
        assert traced == listed
        assert (listed["status"], listed["last_error"], listed["info"]) == ("success", None, "moved with [redacted]")


async def test_pause_and_resume_are_in_the_callers_name(web: OpenWeb) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", *ALL)
        paused = await ada.post(f"/v1/queues/{QUEUE}/pause", {"reason": "the vendor is down"})
        assert paused.json == {"queue": QUEUE, "paused": True}
        assert (await ada.get(f"/v1/queues/{QUEUE}")).json["paused"] is True
        assert (await ada.post(f"/v1/queues/{QUEUE}/resume")).json == {"queue": QUEUE, "paused": False}
        notes = (await ada.get(f"/v1/audit?reference={QUEUE}&actor=ada")).json["notes"]
        assert [note["text"] for note in notes] == ["resumed", "paused: the vendor is down"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queues/none",
        "/v1/queues/none/messages",
        "/v1/effects/00000000-0000-7000-8000-000000000000",
        "/v1/traces/none",
        "/v1/transfers/none",
    ],
)
async def test_what_is_not_there_is_404(web: OpenWeb, path: str) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", *ALL, "transfers:read")
        assert (await ada.get(path)).problem["status"] == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/queues/none/pause", {"reason": "x"}),
        ("/v1/queues/none/resume", None),
        ("/v1/queues/none/redrive", {"all": True, "why": "x"}),
        (
            "/v1/effects/00000000-0000-7000-8000-000000000000/answer",
            {"answer": "did_not", "revision": 1, "note": "looked"},
        ),
        ("/v1/approvals/7/grant", {"note": "x"}),
        ("/v1/approvals/7/deny", {"note": "x"}),
    ],
)
async def test_nothing_is_done_to_what_is_not_there(web: OpenWeb, path: str, body: Any) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", *ALL)
        assert (await ada.post(path, body, idempotency_key="k")).problem["status"] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=501",
        "/v1/jobs?before=0",
        "/v1/jobs?since=2026-01-01T00:00:00",
        "/v1/jobs?since=0001-01-01T00:00:00Z",
        "/v1/jobs?status=received",
        "/v1/jobs?queue=%00",
        "/v1/jobs?queue=",
        f"/v1/queues/{QUEUE}/messages?state=gone",
        f"/v1/queues/{QUEUE}/messages?after=x",
        "/v1/effects/x",
        "/v1/effects?state=gone",
        "/v1/traces/" + "x" * 201,
        "/v1/traces/a%00b",
        "/v1/approvals?state=other",
        "/v1/audit?before=99999999999999999999",
    ],
)
async def test_values_that_do_not_fit_are_named(web: OpenWeb, path: str) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", *ALL)
        answer = await ada.get(path)
        assert answer.status == 422
        assert answer.problem["errors"][0]["where"]


async def test_the_job_log_is_sliced_and_paged(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        ids = await parked(ask.app, stage, 3)
        ada = await ask.as_holder("ada", *ALL)
        page = (await ada.get(f"/v1/jobs?queue={QUEUE}&status=parked&limit=2")).json
        rest = (await ada.get(f"/v1/jobs?queue={QUEUE}&status=parked&limit=2&before={page['next_before']}")).json
        assert rest["next_before"] is None
        jobs = page["jobs"] + rest["jobs"]
        assert sorted(job["message_id"] for job in jobs) == sorted(map(str, ids))
        assert {job["status"] for job in jobs} == {"parked"}
        for nothing in ("status=success", "action=other", "correlation_id=x", "until=2020-01-01T00:00:00Z"):
            assert (await ada.get(f"/v1/jobs?{nothing}")).json["jobs"] == []
        assert (await ada.get("/v1/jobs?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z")).problem[
            "status"
        ] == 400


async def in_review(ask: WebClient, stage: OpenStage, minor: int, above: str) -> Any:
    async with open_till(stage) as till:
        review = await till.in_review(minor=minor)
    async with ask.app.begin() as tx:
        await set_threshold(tx, euros(above), "root")
    return review.effect


async def test_an_effect_in_review_is_answered_with_what_was_seen(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        effect = await in_review(ask, stage, minor=100, above="1.00")
        ada = await ask.as_holder("ada", *ALL)
        [listed] = (await ada.get("/v1/effects?state=review")).json["effects"]
        assert (listed["id"], listed["amount"]["amount"]) == (str(effect.id), "1.00")
        timeline = (await ada.get(f"/v1/effects/{effect.id}")).json
        assert timeline["question"].startswith("Did bank.pay for p-1")
        assert set(timeline["answers"]) == {"did_not", "happened"}
        path, said = f"/v1/effects/{effect.id}/answer", {"answer": "did_not", "note": "not in their statement"}
        stale = await ada.post(path, {**said, "revision": timeline["revision"] - 1}, idempotency_key="a0")
        assert stale.problem["status"] == 409
        unsafe = await ada.post(
            path, {"answer": "send_again", "note": "x", "revision": timeline["revision"]}, idempotency_key="a1"
        )
        assert unsafe.problem["status"] == 400
        answered = await ada.post(path, {**said, "revision": timeline["revision"]}, idempotency_key="a2")
        assert (answered.json["done"], answered.json["state"], answered.json["redriven"]) == (True, "abandoned", True)
        assert (await ada.get("/v1/effects")).json["effects"] == []


async def test_above_the_threshold_a_second_holder_decides(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        effect = await in_review(ask, stage, minor=500, above="1.00")
        ada, bob = [await ask.as_holder(name, *ALL) for name in ("ada", "bob")]
        other_key_of_ada = await ask.as_holder("Ada ", *ALL)
        body = {"answer": "did_not", "note": "not in their statement", "revision": effect.revision}
        asked = await ada.post(f"/v1/effects/{effect.id}/answer", body, idempotency_key="a")
        assert (asked.json["done"], asked.json["state"]) == (False, None)
        number = asked.json["approval"]
        [waiting] = (await bob.get("/v1/approvals")).json["approvals"]
        assert (waiting["id"], waiting["asked_by"], waiting["amounts"][0]["amount"]) == (number, "ada", "5.00")
        path = f"/v1/approvals/{number}/grant"
        for same_person in (ada, other_key_of_ada):
            refused = await same_person.post(path, {"note": "fine"}, idempotency_key=str(uuid4()))
            assert (refused.status, "second person" in refused.problem["detail"]) == (400, True)
        granted = await bob.post(path, {"note": "I looked, too"}, idempotency_key="g")
        assert (granted.json["state"], granted.json["decided_by"]) == ("granted", "bob")
        assert (await bob.get("/v1/approvals?state=all")).json["approvals"][0]["state"] == "granted"
        assert (await ada.get(f"/v1/effects/{effect.id}")).json["state"] == "abandoned"


async def test_a_denied_answer_changes_nothing(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        effect = await in_review(ask, stage, minor=500, above="1.00")
        ada, bob = [await ask.as_holder(name, *ALL) for name in ("ada", "bob")]
        body = {"answer": "did_not", "note": "gone", "revision": effect.revision}
        number = (await ada.post(f"/v1/effects/{effect.id}/answer", body, idempotency_key="a")).json["approval"]
        denied = await bob.post(f"/v1/approvals/{number}/deny", {"note": "it is booked"}, idempotency_key="d")
        assert denied.json["state"] == "denied"
        assert (await ada.get(f"/v1/effects/{effect.id}")).json["state"] == "review"
