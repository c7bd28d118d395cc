"""Redrives over HTTP: previewed, in batches where they are many, and 404 for what is not there."""

import pytest

from payonce.engine.messages import bulk
from payonce.testing import OpenStage
from tests.http.conftest import OpenWeb
from tests.http.test_operator_routes import ALL, QUEUE, parked


async def test_a_large_redrive_is_an_operation_with_progress(
    web: OpenWeb, stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BULK_MAX", 4)
    monkeypatch.setattr(bulk, "BATCH", 2)
    async with web() as ask:
        await parked(ask.app, stage, 5)
        ada = await ask.as_holder("ada", *ALL)
        said = await ada.post(f"/v1/queues/{QUEUE}/redrive", {"all": True, "why": "mended"}, idempotency_key="r1")
        number = said.json["operation"]
        assert (said.json["matching"], said.json["redriven"]) == (5, 0)
        app, path = ask.app, f"/v1/queues/{QUEUE}/operations/{number}"
        operation = await bulk.operation_of(app.read, number)
        assert operation is not None
        await bulk.step(app.database, app.admin, app.feed, operation)
        shown = await ada.get(path)
        assert (shown.json["status"], shown.json["changed"], shown.json["total"]) == ("running", 2, 5)
        stopped = await ada.post(f"{path}/stop", {})
        assert (stopped.json["status"], stopped.json["changed"]) == ("stopped", 2)
        listed = await ada.get(f"/v1/queues/{QUEUE}/operations")
        assert [each["id"] for each in listed.json["operations"]] == [number]
        assert (await ada.get(f"/v1/queues/{QUEUE}/operations/404")).status == 404
        assert (await ada.get(f"/v1/queues/transfers-refund/operations/{number}")).status == 404


async def test_a_redrive_is_previewed_without_changing_anything(web: OpenWeb, stage: OpenStage) -> None:
    async with web() as ask:
        [message_id, _] = await parked(ask.app, stage, 2)
        await ask.app.database.engine.execute(
            """
            insert into payonce.effects (id, kind, key, version, safety, request, message_id, trace_id, state,
                                         review_cause, first_attempt_at)
            values (gen_random_uuid(), 'test.pay', 'p-1', 1, 'blind', '{}', $1, 't-1', 'review', 'gave_up',
                    payonce.due_now())
            """,
            message_id,
        )
        ada = await ask.as_holder("ada", *ALL)
        told = await ada.post(f"/v1/queues/{QUEUE}/redrive/preview", {"all": True})
        assert (told.status, told.json["matching"], told.json["in_review"]) == (200, 2, 1)
        assert len(told.json["messages"]) == 2
        assert (await ada.get(f"/v1/queues/{QUEUE}")).json["parked"] == 2
        listed = await ada.get(f"/v1/effects?state=review&queue={QUEUE}")
        assert [each["key"] for each in listed.json["effects"]] == ["p-1"]
        elsewhere = await ada.get("/v1/effects?state=review&queue=transfers-refund")
        assert elsewhere.json["effects"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", ""),
        ("get", "/messages"),
        ("get", "/operations"),
        ("get", "/operations/1"),
        ("post", "/resume"),
        ("post", "/pause"),
        ("post", "/redrive/preview"),
        ("post", "/redrive"),
        ("post", "/operations/1/stop"),
    ],
)
async def test_a_queue_that_is_not_there_is_not_found(web: OpenWeb, method: str, path: str) -> None:
    bodies = {"/pause": {"reason": "x"}, "/redrive/preview": {"all": True}, "/redrive": {"all": True, "why": "x"}}
    async with web() as ask:
        ada = await ask.as_holder("ada", *ALL)
        where = f"/v1/queues/nobody{path}"
        said = await (ada.get(where) if method == "get" else ada.post(where, bodies.get(path, {}), idempotency_key="k"))
        assert said.status == 404, said.body
