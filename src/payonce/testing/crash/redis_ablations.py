"""Removes safeguards of queues in Redis, one at a time, as `ablations` does for the engine."""

from collections.abc import Sequence
from typing import Any, Final

from payonce.engine.messages.model import Settlement
from payonce.engine.messages.ports import Exchange
from payonce.engine.outbox import SettleOutcome, settle_durable
from payonce.queues.redis import RedisQueue, durable_copy, pull
from payonce.queues.redis.keys import main_key
from payonce.queues.redis.refill import Refilled
from payonce.testing.crash import on_redis
from payonce.testing.crash.ablations import (
    DAMAGE,
    LOST_BY_A_FAILOVER,
    LOST_COMMIT,
    QUARANTINE,
    Ablation,
    acknowledge_on_claim,
    put,
)
from payonce.testing.crash.model import Mode

STUCK: Final = frozenset({"stuck"})


def no_fence_in_the_commit() -> None:
    """A run that lost its message commits nevertheless."""
    settle_within = RedisQueue.settle_within

    async def settled_anyway(queue: RedisQueue, connection: Any, settlement: Settlement) -> bool:
        await settle_within(queue, connection, settlement)
        return True

    put(RedisQueue, "settle_within", settled_anyway)


def redis_alone_is_asked() -> None:
    """Neither a row nor an id in PostgreSQL stops a run, as in a queue with leases alone. The check before a run is
    removed as well: it only saves useless runs, whose effects and settlement are refused anyway."""

    async def all_of_them(database: Any, claims: Sequence[Any]) -> durable_copy.CheckedClaims:
        return durable_copy.CheckedClaims(claims, (), ())

    put(pull, "check", all_of_them)

    async def recorded_anyway(connection: Any, relay: str, settlements: Sequence[Settlement]) -> list[SettleOutcome]:
        await settle_durable(connection, relay, settlements)
        return [SettleOutcome.RECORDED] * len(settlements)

    put(pull, "settle_durable", recorded_anyway)


def acknowledged_before_the_work() -> None:
    """At most once: a claimed message is gone from the queue."""
    no_fence_in_the_commit()
    acknowledge_on_claim(RedisQueue)


def moved_by_two_commands() -> None:
    """Two steps instead of one script: due messages are removed from one list and then pushed to the other."""
    exchange = RedisQueue.exchange

    async def pump_first(queue: RedisQueue, settlements: Sequence[Settlement], limit: int) -> Exchange:
        key, store = main_key(queue.policy.queue), queue._store
        clock = await store.command("HGET", "payonce:test_clock", "due_frozen")
        for body in await store.command("ZRANGEBYSCORE", f"{key}:delayed", "-inf", int(clock) / 1_000):
            await store.command("ZREM", f"{key}:delayed", body)
            await store.command("LPUSH", key, body)
        return await exchange(queue, settlements, limit)

    put(RedisQueue, "exchange", pump_first)


def dead_leases_kept() -> None:
    """The leases of dead workers are not released."""

    async def nothing(queue: RedisQueue) -> int:
        return 0

    put(RedisQueue, "reap", nothing)


def nothing_is_put_back() -> None:
    """Messages lost by Redis stay lost."""

    async def nothing(store: Any, late_s: float = 0.0) -> Refilled:
        return Refilled()

    put(on_redis, "refill", nothing)


REDIS_ABLATIONS: Final = (
    Ablation("the fence of the commit", no_fence_in_the_commit, "charge", Mode.STOPPED, near="store:payment"),
    Ablation("the outbox as the fence", redis_alone_is_asked, "charge", Mode.AFTER, near="Work.commit"),
    Ablation("acknowledgement with the work", acknowledged_before_the_work, "transfer", Mode.BEFORE, near="commit"),
    Ablation("one script for every step", moved_by_two_commands, "by-hand", Mode.AFTER, DAMAGE | STUCK, "pump_first"),
    Ablation("the sweep of dead leases", dead_leases_kept, "charge", Mode.AFTER, STUCK, "Work.commit"),
    Ablation("the refill", nothing_is_put_back, "wiped", Mode.AFTER, STUCK, "Work.commit"),
    LOST_COMMIT,
    LOST_BY_A_FAILOVER,
    QUARANTINE,
)
