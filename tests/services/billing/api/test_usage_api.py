"""Usage over HTTP: who may count for whom, and every refusal in one sentence with its way out."""

import asyncio
from typing import Any

import pytest

from payonce.services.billing.scopes import OPERATE, READ
from payonce.services.billing.subscriptions.api.usage import LIMIT_REACHED, UsageEvent, UsageEventDocument
from payonce.testing import ScratchDatabase, open_stage
from tests.services.billing.api.conftest import OpenCounter
from tests.services.billing.usage.usage_stage import CALLS, PROJECTS, subscribe

USE = "/v1/usage/use"


def event(event_id: str = "e-1", **more: Any) -> dict[str, Any]:
    return {"feature_name": CALLS, "event_id": event_id, **more}


@pytest.fixture
def scratch(scratch: ScratchDatabase) -> ScratchDatabase:
    """With two accounts that have a subscription each, and one that has none."""

    async def fill() -> None:
        async with open_stage(scratch) as s:
            await subscribe(s, "anna")
            await subscribe(s, "berta", "enterprise-v1")
            await subscribe(s, "clara", state="canceled")

    asyncio.run(fill())
    return scratch


async def test_a_customer_counts_for_themselves_and_hears_what_is_left(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        first = await anna.post(USE, event(delta=3))
        assert first.status == 200
        assert UsageEventDocument(**first.json).model_dump(mode="json") == first.json
        assert (first.json["used"], first.json["limit"], first.json["left"]) == (3, 1_000, 997)
        assert "idempotent-replayed" not in first.headers
        again = await anna.post(USE, event(delta=3))
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["idempotent-replayed"] == "true"
        # One is what is counted when nothing else is said.
        assert (await anna.post(USE, event("e-2"))).json["used"] == 4


async def test_over_the_limit_is_429_with_what_is_left_in_numbers(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        await anna.post(USE, event(feature_name=PROJECTS, delta=2))
        no = await anna.post(USE, event("e-2", feature_name=PROJECTS, delta=2))
        assert no.status == 429
        assert no.problem["type"] == LIMIT_REACHED
        assert (no.json["used"], no.json["limit"], no.json["left"]) == (2, 3, 1)
        assert "1 are left and 2 were requested" in no.json["detail"]


async def test_keys_and_operators_count_for_whom_they_name(counter: OpenCounter) -> None:
    async with counter() as c:
        key = await c.as_holder("product", OPERATE)
        assert (await key.post(USE, event(account_id="berta"))).json["limit"] is None
        assert (await key.post(USE, event("e-2"))).status == 422
        assert (await c.as_account("olga", role="operator").post(USE, event(account_id="berta"))).status == 401
        viewer = await c.as_holder("viewer", READ)
        assert (await viewer.post(USE, event(account_id="berta"))).status == 403


async def test_a_customer_cannot_give_back_what_they_used(counter: OpenCounter) -> None:
    async with counter() as c:
        anna, key = c.as_account("anna"), await c.as_holder("product", OPERATE)
        assert (await anna.post(USE, event(delta=5))).json["used"] == 5
        no = await anna.post(USE, event("e-2", delta=-5))
        assert no.status == 403
        assert "for operators and API keys" in no.problem["detail"]
        assert (await key.post(USE, event("e-2", delta=-2, account_id="anna"))).json["used"] == 3


@pytest.mark.parametrize("field", ["event_id", "feature_name", "account_id"])
async def test_a_last_line_break_is_no_part_of_a_name(counter: OpenCounter, field: str) -> None:
    async with counter() as c:
        named = {"event_id": "e-1", "feature_name": CALLS, "account_id": "anna"}
        assert (await c.as_account("anna").post(USE, named | {field: f"{named[field]}\n"})).status == 422


async def test_what_is_anothers_is_not_there(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        assert (await anna.post(USE, event(account_id="berta"))).status == 404
        for path in ("/v1/usage", f"/v1/usage/feature/{CALLS}", "/v1/usage/stats"):
            assert (await anna.get(f"{path}?account_id=berta")).status == 404
            assert (await anna.get(f"{path}?account_id=anna")).status == 200
        for path in ("/v1/usage", USE):
            assert (await c("GET" if path == "/v1/usage" else "POST", path, body=None)).status == 401


REFUSED = (
    (b"", 400, "not valid JSON"),
    (b"{", 400, "not valid JSON"),
    (b'{"feature_name": "\xff", "event_id": "e"}', 400, "not valid JSON"),
    (b'{"feature_name": "\\ud800", "event_id": "e"}', 400, "not valid JSON"),
    (b"[]", 422, "object"),
    (b'{"event_id": "e"}', 422, "feature_name"),
    (b'{"feature_name": "api_calls"}', 422, "event_id"),
    (b'{"feature_name": "api_calls", "event_id": ""}', 422, "event_id"),
    (b'{"feature_name": "api_calls", "event_id": "a\\u0000b"}', 422, "event_id"),
    (b'{"feature_name": "api_calls", "event_id": "e", "delta": 0}', 422, "delta is 0"),
    (b'{"feature_name": "api_calls", "event_id": "e", "delta": 1.5}', 422, "delta"),
    (b'{"feature_name": "api_calls", "event_id": "e", "delta": 1000000001}', 422, "delta"),
    (b'{"feature_name": "api_calls", "event_id": "e", "amount": 1}', 422, "amount"),
    (b'{"feature_name": "teleports", "event_id": "e"}', 404, "teleports"),
)


async def test_what_cannot_be_counted_is_refused_in_one_sentence(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        for body, status, says in REFUSED:
            no = await anna("POST", USE, body=body)
            assert (body, no.status) == (body, status)
            assert says in no.problem["detail"]


async def test_other_refusals_have_their_status(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        await anna.post(USE, event())
        assert (await anna.post(USE, event(delta=2))).status == 422
        assert (await anna.post(f"{USE}?delta=1", event("e-2"))).status == 422
        assert (await c.as_account("clara").post(USE, event())).status == 403
        c.app.resources = []
        key = await c.as_holder("product", OPERATE)
        assert "runs no billing role" in (await key.post(USE, event(account_id="anna"))).problem["detail"]


async def test_usage_is_shown_as_a_whole_by_feature_and_by_period(counter: OpenCounter) -> None:
    async with counter() as c:
        anna = c.as_account("anna")
        await anna.post(USE, event(delta=3))
        shown = (await anna.get("/v1/usage")).json
        assert (shown["subscription_id"], shown["plan_id"], shown["state"]) == ("of-anna", "basic-v1", "active")
        assert shown["features"] == [
            {"feature_name": CALLS, "used": 3, "limit": 1_000, "left": 997},
            {"feature_name": PROJECTS, "used": 0, "limit": 3, "left": 3},
        ]
        assert (await anna.get(f"/v1/usage/feature/{CALLS}")).json == shown["features"][0]
        assert (await anna.get("/v1/usage/feature/teleports")).status == 404
        [total] = (await anna.get("/v1/usage/stats")).json
        assert (total["feature_name"], total["total"], total["events"]) == (CALLS, 3, 1)
        assert (await anna.get(f"/v1/usage/stats?feature_name={PROJECTS}")).json == []
        assert (await c.as_account("clara").get("/v1/usage")).status == 404


async def test_only_an_operator_resets_and_a_repetition_is_the_same_reset(counter: OpenCounter) -> None:
    async with counter() as c:
        anna, key = c.as_account("anna"), await c.as_holder("olga", OPERATE)
        await anna.post(USE, event(delta=3))
        asked = {"account_id": "anna", "note": "our outage"}
        once = {"idempotency-key": "reset-1"}
        assert (await anna.post("/v1/usage/reset", asked, **once)).status == 403
        assert (await key.post("/v1/usage/reset", asked)).status == 400
        first = await key.post("/v1/usage/reset", asked, **once)
        assert (first.status, first.json) == (200, {"account_id": "anna", "reset": {CALLS: 3}})
        await anna.post(USE, event("e-2", delta=5))
        assert (await key.post("/v1/usage/reset", asked, **once)).body == first.body
        assert (await anna.get(f"/v1/usage/feature/{CALLS}")).json["used"] == 5
        nobody = {"account_id": "nobody", "note": "who"}
        assert (await key.post("/v1/usage/reset", nobody, **{"idempotency-key": "reset-2"})).status == 404


async def test_what_is_described_is_what_is_read(counter: OpenCounter) -> None:
    async with counter() as c:
        described = (await c.get("/openapi.json")).json
        operation = described["paths"][USE]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/UsageEvent")
        assert {"200", "401", "403", "404", "422", "429"} <= set(operation["responses"])
        assert operation["security"]
        # Answered before all others are looked at, and by its method alone.
        assert c.web.router.routes[0].path == USE  # type: ignore[attr-defined]
        assert (await c.as_account("anna").get(USE)).status == 405
        fields = described["components"]["schemas"]["UsageEvent"]
        assert set(fields["properties"]) == set(UsageEvent.model_fields)
        assert fields["required"] == ["feature_name", "event_id"]
