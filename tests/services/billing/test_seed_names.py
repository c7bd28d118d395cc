"""What those who come from the first design look for by name: policies, tables, views, and objects without envelope."""

import asyncio
import json

import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages import job_log
from payonce.engine.messages.maintenance import Task
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import relay_step
from payonce.queues.redis import RedisQueue, RedisRelay
from payonce.services.billing.policies import PAYMENT_INITIATION, QUEUES
from payonce.services.billing.subscriptions.model import State
from payonce.testing import OpenStage, eventually
from tests.services.billing.billing_stage import House, open_house
from tests.services.billing.redis_house import open_redis_house
from tests.services.billing.redis_stage import RedisStage, on_redis

SLOW, QUICK = (5, 60, 2.0, 3600, 10, 180, 300), (3, 60, 2.0, 600, 5, 120, 240)
AGREED = {
    "q:sub:payment_initiation": SLOW,
    "q:sub:trial_payment": QUICK,
    "q:sub:plan_change": SLOW,
    "q:sub:usage_sync": SLOW,
    "q:pay:subscription_update": SLOW,
    "q:pay:refund_initiation": QUICK,
}
"""Retries; base delay, multiplier, maximum and jitter; lock and visibility, in seconds."""
JOB_LOG = {
    "id",
    "queue",
    "message_id",
    "correlation_id",
    "idempotency_key",
    "status",
    "attempts",
    "last_error",
    "next_retry_at",
    "action",
    "created_at",
    "updated_at",
}
REQUESTS = {
    "id": "integer",
    "event_id": "text",
    "payload": "jsonb",
    "processed": "boolean",
    "processed_at": "timestamp with time zone",
    "error_message": "text",
    "retry_count": "integer",
    "created_at": "timestamp with time zone",
    "updated_at": "timestamp with time zone",
}


@pytest.mark.parametrize("queue", AGREED)
def test_a_queue_has_the_policy_that_was_agreed(queue: str) -> None:
    [policy] = [each for each in QUEUES if each.queue == queue]
    backoff = policy.backoff
    assert policy.max_attempts is not None
    assert (
        policy.max_attempts - 1,
        backoff.base_delay_seconds,
        backoff.backoff_multiplier,
        backoff.max_delay_seconds,
        backoff.jitter_seconds,
        policy.lease_s,
        policy.run_limit_s,
    ) == AGREED[queue]


async def test_webhook_requests_have_the_columns_and_the_trigger_of_the_design(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        owner = house.s.owner
        columns = await owner.fetch(
            """
            select column_name, data_type from information_schema.columns
            where table_schema = 'subscriptions' and table_name = 'payment_webhook_requests'
            """
        )
        assert {row["column_name"]: row["data_type"] for row in columns} == REQUESTS
        await house.customer()
        await house.s.clock.advance(60)
        [row] = await owner.fetch(
            "update subscriptions.payment_webhook_requests set retry_count = 1 returning created_at, updated_at"
        )
        assert row["updated_at"] > row["created_at"]


async def test_each_service_has_its_own_job_log_with_the_columns_and_indexes_of_the_design(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.subscribe(await house.customer())
        for schema, queues in (("subscriptions", "q:sub:"), ("payments", "q:pay:")):
            rows = await house.s.read.fetch(f"select * from {schema}.job_logs")
            assert rows
            assert set(rows[0].keys()) >= JOB_LOG
            assert all(row["queue"].startswith(queues) for row in rows)
        indexes = await house.s.owner.fetch(
            "select indexdef from pg_indexes where schemaname = 'payonce' and tablename = 'job_logs'"
        )
        told = " ".join(row["indexdef"] for row in indexes)
        for wanted in ("(queue, status", "(correlation_id", "(idempotency_key"):
            assert wanted in told


async def test_an_object_without_envelope_is_worked_on_like_any_other(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        [subscription] = await at.subscribe()
        await at.relay()
        await at.terminal.type("DEL q:sub:payment_initiation")
        raw = json.dumps({"action": "initial", "subscription_id": subscription.id})
        for _ in range(2):
            await at.terminal.type(f"LPUSH q:sub:payment_initiation '{raw}'")
        await at.drain()
        assert await at.house.state(subscription) is State.ACTIVE
        [invoice] = await at.house.invoices(subscription)
        assert at.house.captures(invoice) == 1


@pytest.mark.parametrize("on", ["PostgreSQL", "Redis"])
async def test_pump_and_sweep_are_in_each_services_job_log_under_their_names(
    stage: OpenStage, redis_server: RedisServer, on: str
) -> None:
    """A notification is turned away twice, then a worker dies with the first message of a subscription in hand."""
    async with open_house(stage if on == "PostgreSQL" else on_redis(stage, redis_server)) as house:
        customer = await house.customer()
        house.door.answers = [503, 503]
        await house.subscribe(customer)
        await house.worker.log_pumped()
        await house.subscribe(await house.customer(), run=False)
        assert await _die_with(house, PAYMENT_INITIATION) == 1
        running = asyncio.create_task(house.worker.run())
        read = house.s.read
        await eventually(lambda: job_log.recent(read, correlation_id=Task.SWEEP.value), what="the sweep is told")
        await house.worker.stop()
        await running
        told = "select queue, status, last_error, info from {}.job_logs where action = $1"
        assert [tuple(row) for row in await read.fetch(told.format("payments"), "pump_delayed_queues")] == [
            ("q:pay:subscription_update", "success", None, "1 message came from the delayed ones")
        ]
        assert [tuple(row) for row in await read.fetch(told.format("subscriptions"), "sweep_processing_queues")] == [
            ("q:sub:payment_initiation", "success", None, "1 message taken from dead or stopped workers")
        ]


async def _die_with(house: House, policy: Policy) -> int:
    """Somebody takes what is there and is not heard of again until the lease has ended; answers how much that was."""
    s = house.s
    if isinstance(s, RedisStage):
        while await relay_step(s.database, RedisRelay(s.store)):
            pass
    dead = (
        RedisQueue(s.store, s.notifier, policy, "dead") if isinstance(s, RedisStage) else await s.queue(policy, "dead")
    )
    taken = await dead.exchange([], 10)
    await s.clock.advance_leases(policy.lease_s + 1)
    return len(taken.claims)
