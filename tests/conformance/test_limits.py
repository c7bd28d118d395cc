"""Promise 5: concurrency holds across workers, whichever of them dies; dispatches in any second ≤ rate + burst."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import PullQueue
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.conformance.backend import (
    QUEUE,
    Backend,
    claim,
    crash_until_alone,
    ids,
    let_leases_end,
    message,
    retry,
    settle,
    success,
)
from tests.locks import all_wait, stopped_at

THREE = Policy(QUEUE, concurrency=3)


async def test_workers_together_hold_no_more_than_the_limit(backend: Backend) -> None:
    first, second = await backend.queue(THREE), await backend.queue(THREE, "worker-2")
    await backend.feed.put([message() for _ in range(10)])
    held = await claim(first, 2)
    assert len(held) == 2
    assert len(await claim(second)) == 1
    full = await second.exchange([], 10)
    assert not full.claims
    assert full.rest_s is not None
    assert full.rest_s > 0, "a worker that finds no room must be told to rest, or it asks without end"
    await settle(first, success(held[0]))
    assert len(await claim(second)) == 1


async def test_what_an_exchange_settles_makes_room_for_what_it_claims(backend: Backend) -> None:
    queue = await backend.queue(THREE)
    await backend.feed.put([message() for _ in range(6)])
    held = await claim(queue)
    exchange = await queue.exchange([success(held[0]), retry(held[1], 60)], 10)
    assert len(exchange.claims) == 2


@pytest.mark.parametrize("round_", [0, *(pytest.param(round_, marks=pytest.mark.full) for round_ in (1, 2))])
async def test_concurrent_claimers_never_exceed_the_limit(backend: Backend, round_: int) -> None:
    policy = Policy(QUEUE, concurrency=5)
    queues = [await backend.queue(policy, f"worker-{number}") for number in range(8)]
    await backend.feed.put([message() for _ in range(60)])
    most, done = 0, 0

    async def work(queue: PullQueue) -> None:
        nonlocal most, done
        while done < 60:
            for claimed in await claim(queue, 4):
                most = max(most, (await backend.admin.depth(QUEUE)).leased)
                await settle(queue, success(claimed))
                done += 1

    await asyncio.gather(*map(work, queues))
    assert most <= 5
    assert most > 1, "nothing ran side by side, so nothing was limited"


async def test_two_claims_at_the_same_moment_share_what_the_limit_leaves(stage: OpenStage) -> None:
    """Each reads the free room while the other has read it and not committed yet."""
    async with stage() as s:
        queues = [await s.queue(THREE, f"worker-{number}") for number in range(2)]
        await s.feed.put([message() for _ in range(10)])
        async with stopped_at(s, "update", "payonce.messages"):
            claims = [asyncio.create_task(claim(queue)) for queue in queues]
            await all_wait(s, 2)
        assert sum(map(len, await asyncio.gather(*claims))) == 3


async def test_queues_that_share_a_limit_share_its_room(backend: Backend) -> None:
    policies = [Policy(name, concurrency=3, limit="vendor") for name in ("quotes", "swaps")]
    quotes, swaps = [await backend.queue(policy) for policy in policies]
    await backend.feed.put([message(queue=policy.queue) for policy in policies for _ in range(5)])
    held = await claim(quotes, 2)
    assert len(await claim(swaps)) == 1
    assert await claim(quotes) == []
    await settle(quotes, *map(success, held))
    assert len(await claim(swaps)) == 2


async def test_queues_with_limits_of_their_own_do_not_touch_each_other(backend: Backend) -> None:
    quotes, swaps = [await backend.queue(Policy(name, concurrency=1)) for name in ("quotes", "swaps")]
    await backend.feed.put([message(queue="quotes"), message(queue="swaps")])
    assert len(await claim(quotes)) == len(await claim(swaps)) == 1


async def test_the_room_of_a_dead_worker_is_free_again_after_its_lease(backend: Backend) -> None:
    first, second = await backend.queue(THREE), await backend.queue(THREE, "worker-2")
    sent = await backend.feed.put([message() for _ in range(5)])
    assert len(await claim(first)) == 3
    assert await claim(second) == []
    await let_leases_end(backend, second)
    again = await claim(second)
    assert len(again) == 3
    assert set(ids(again)) <= set(sent)


async def test_a_suspect_runs_within_the_limit(backend: Backend) -> None:
    """The vendor behind the limit does not care why a message runs."""
    one = Policy(QUEUE, concurrency=1)
    first, second = await backend.queue(one), await backend.queue(one, "worker-2")
    await backend.feed.put([message()])
    await crash_until_alone(backend, first)
    await backend.feed.put([message()])
    assert len(await claim(first)) == 1
    assert await second.claim_alone() is None


async def test_a_lowered_limit_holds_from_the_next_claim(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, concurrency=5))
    await backend.feed.put([message() for _ in range(10)])
    held = await claim(queue, 4)
    lowered = await backend.queue(Policy(QUEUE, concurrency=2))
    assert await claim(lowered) == []
    await settle(lowered, *map(success, held[:3]))
    assert len(await claim(lowered)) == 1


SECONDS = 5
PLENTY = 100
"""More than any of the rates lets through in that time."""
RATES = [(10.0, 5), (10.0, 1), (3.0, 1), (2.5, 4), (0.5, 1)]


@pytest.mark.parametrize(("rate", "burst"), RATES)
async def test_no_second_sees_more_than_rate_and_burst(backend: Backend, rate: float, burst: int) -> None:
    policy = Policy(QUEUE, rate=rate, burst=burst)
    queues = [await backend.queue(policy, f"worker-{number}") for number in range(2)]
    await backend.feed.put([message() for _ in range(PLENTY)])
    dispatched: list[datetime] = []
    start = now = await backend.time.now()
    while now < start + timedelta(seconds=SECONDS) and len(dispatched) < PLENTY:
        exchange = await queues[len(dispatched) % 2].exchange([], 100)
        dispatched += [claimed.claimed_at for claimed in exchange.claims]
        now = await backend.time.advance(exchange.rest_s or 0.001)
    assert most_in_a_second(dispatched) <= rate + burst
    assert len(dispatched) >= int(rate * SECONDS), "the limit must not be lower than declared either"


def most_in_a_second(moments: Sequence[datetime]) -> int:
    return max(sum(1 for later in moments if start <= later < start + timedelta(seconds=1)) for start in moments)


async def test_a_rate_limited_worker_is_told_when_to_ask_again(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, rate=2.0))
    await backend.feed.put([message(), message(), message()])
    assert len(await claim(queue)) == 1
    limited = await queue.exchange([], 10)
    assert not limited.claims
    assert limited.rest_s == pytest.approx(0.5)
    await backend.time.advance(limited.rest_s or 0.0)
    assert len(await claim(queue)) == 1


async def test_idle_time_is_not_saved_up_beyond_the_burst(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, rate=10.0, burst=4))
    await backend.time.advance(3_600)
    await backend.feed.put([message() for _ in range(50)])
    assert len(await claim(queue, 50)) == 4


async def test_queues_that_share_a_limit_share_its_rate(backend: Backend) -> None:
    policies = [Policy(name, rate=1.0, burst=2, limit="vendor") for name in ("quotes", "swaps")]
    quotes, swaps = [await backend.queue(policy) for policy in policies]
    await backend.feed.put([message(queue=policy.queue) for policy in policies for _ in range(5)])
    assert len(await claim(quotes)) == 2
    assert await claim(swaps) == []


async def test_an_empty_look_costs_no_rate(backend: Backend) -> None:
    queue = await backend.queue(Policy(QUEUE, rate=1.0))
    for _ in range(5):
        assert await claim(queue) == []
    await backend.feed.put([message()])
    assert len(await claim(queue)) == 1


async def test_a_named_limit_binds_a_queue_without_numbers_of_its_own(backend: Backend) -> None:
    first = await backend.queue(Policy("first", limit="vendor", concurrency=2))
    second = await backend.queue(Policy("second", limit="vendor"))
    await backend.feed.put([Message(queue=queue) for queue in ("first", "second") for _ in range(5)])
    assert len(await claim(second, 5)) == 2
    assert await claim(first, 5) == []


async def test_queues_that_share_a_limit_must_agree_on_its_numbers(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="share the limit vendor"):
            await s.feed.declare(
                [Policy("first", limit="vendor", concurrency=2), Policy("second", limit="vendor", concurrency=40)]
            )
        assert await s.admin.queues() == []


@pytest.mark.parametrize("concurrency", [None, 2])
async def test_processes_that_declare_their_queues_at_once_never_deadlock(
    stage: OpenStage, concurrency: int | None
) -> None:
    """In whatever order each has them, and although their limits are named the other way round."""
    policies = [
        Policy(f"q-{at}", limit=f"limit-{9 - at}" if concurrency else None, concurrency=concurrency) for at in range(10)
    ]
    async with stage() as s:
        await asyncio.gather(*(s.feed.declare(policies[:: 1 if at % 2 else -1]) for at in range(20)))
        assert len(await s.admin.queues()) == len(policies)
