"""Raw objects on billing's queues: what fits is carried out, and everything else lies in `:failed` with its reason."""

import json
from typing import Any

import pytest

from payonce.embedded.redis import RedisServer
from payonce.testing import OpenStage
from tests.services.billing.redis_house import open_redis_house

PAYMENT = "q:sub:payment_initiation"
CREDITS = [{"transaction_id": "none", "minor": 1, "refunded_minor": 0}]
HOLD = {
    "action": "hold",
    "change_id": "c",
    "subscription_id": "s",
    "account_id": "a",
    "round": 1,
    "credits": CREDITS,
    "changed_at": "2026-01-01T00:00:00Z",
    "asked_at": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("queue", "raw", "why"),
    [
        (PAYMENT, {"action": "renewal", "subscription_id": "{id}"}, "missing required field `invoice_id`"),
        (PAYMENT, {"action": "renewal", "subscription_id": "{id}", "period": "1"}, "Expected `int`, got `str`"),
        (PAYMENT, {"action": "initial", "sub": "{id}"}, "missing required field `subscription_id`"),
        (
            PAYMENT,
            {"subscription_id": "{id}"},
            "does not accept messages without an action; it accepts: action 'initial'",
        ),
        (PAYMENT, {"action": "reticulate", "subscription_id": "{id}"}, "does not accept action 'reticulate'"),
        (PAYMENT, {"action": "initial", "subscription_id": "nobody"}, "'nobody'"),
        (
            PAYMENT,
            {"action": "renewal", "subscription_id": "{id}", "invoice_id": "none"},
            "invoice 'none' does not belong to",
        ),
        (PAYMENT, {"action": "renewal", "subscription_id": "{id}", "period": 2}, "no period 2 follows"),
        (PAYMENT, {"action": "renewal", "subscription_id": "{id}", "period": -1}, "no period -1 follows"),
        ("q:sub:clock", {"action": "move_clock", "test_clock_id": "none"}, "there is no test clock 'none'"),
        ("q:pay:credit_hold", HOLD, "there is no transaction 'none'"),
        ("q:pay:credit_hold", {**HOLD, "action": "confirm"}, "there is no transaction 'none'"),
        ("q:sub:trial_payment", {"action": "trial"}, "missing required field `subscription_id`"),
        ("q:sub:plan_change", {"action": "upgrade", "subscription_id": "{id}"}, "missing required field `change_id`"),
        ("q:pay:charge_initiation", {"action": "renewal", "transaction_id": "none"}, "there is no transaction 'none'"),
        ("q:pay:subscription_update", {"action": "renewal", "event_id": "none"}, "there is no notification 'none'"),
        ("q:pay:refund_initiation", {"action": "refund", "refund_id": "none"}, "there is no refund 'none'"),
        ("q:pay:refund_initiation", {"action": "renewal", "refund_id": "none"}, "does not accept action 'renewal'"),
    ],
)
async def test_a_raw_object_that_is_refused_is_parked_and_logged_and_does_not_vanish(
    stage: OpenStage, redis_server: RedisServer, queue: str, raw: dict[str, Any], why: str
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        [subscription] = await at.subscribe()
        await at.drain()
        text = json.dumps(raw).replace("{id}", subscription.id)
        before = await at.house.s.read.fetchval("select count(*) from payonce.job_logs where queue = $1", queue)
        await at.terminal.type(f"LPUSH {queue} '{text}'")
        await at.drain()
        main, processing, _, parked_count = await at.look(queue)
        assert (main, processing, parked_count) == (0, 0, 1)
        [parked] = [json.loads(line) for line in await at.terminal.type(f"LRANGE {queue}:failed 0 -1")]
        assert parked["payload"] == json.loads(text)
        rows = await at.house.s.read.fetch(
            "select status, last_error from payonce.job_logs where queue = $1 order by id offset $2", queue, before
        )
        assert [row["status"] for row in rows] == ["parked"]
        assert why in rows[0]["last_error"]
        assert (await at.log())[0]["status"] == "parked"
