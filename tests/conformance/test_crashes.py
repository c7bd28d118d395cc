"""Promises 1 and 3: workers die, nothing is lost, and a message that kills its workers is parked without the others."""

import pytest

from payonce.engine.messages.model import SettleAnswer, State
from payonce.engine.messages.policy import Policy
from tests.conformance.backend import (
    LEASE_S,
    PLAIN,
    QUEUE,
    Backend,
    claim,
    claim_one,
    crash_until_alone,
    ids,
    let_leases_end,
    message,
    retry,
    settle,
    stored,
    success,
)


async def test_sigkill_with_claims_in_hand_loses_none(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message() for _ in range(20)])
    await backend.kill_a_worker(PLAIN, "claimed")
    assert await claim(queue) == []
    assert await let_leases_end(backend, queue) == 20
    assert sorted(ids(await claim(queue, 100))) == sorted(sent)


async def test_sigkill_before_a_commit_leaves_the_message_and_nothing_of_the_commit(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await backend.kill_a_worker(PLAIN, "before commit")
    await let_leases_end(backend, queue)
    assert ids(await claim(queue)) == [sent]
    assert [line.status for line in await backend.log_of(sent)] == ["retry"]


async def test_sigkill_before_a_put_is_committed_leaves_nothing(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.kill_a_worker(PLAIN, "before put is committed")
    assert await claim(queue) == []


async def test_sigkill_while_alone_parks_the_suspect(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    await backend.kill_a_worker(PLAIN, "marked alone")
    await let_leases_end(backend, queue)
    assert [found.message.id for found in await stored(backend, State.PARKED)] == [sent]


async def test_a_dead_claimer_is_replaced_only_after_its_lease(backend: Backend) -> None:
    queue, successor = await backend.queue(PLAIN), await backend.queue(PLAIN, "worker-2")
    [sent] = await backend.feed.put([message()])
    await claim_one(queue)
    await backend.time.advance_leases(LEASE_S - 0.001)
    assert await successor.reap() == 0
    assert await claim(successor) == []
    await backend.time.advance_leases(0.001)
    assert await successor.reap() == 1
    assert ids(await claim(successor)) == [sent]


async def test_each_queue_has_its_own_lease_length(backend: Backend) -> None:
    short = await backend.queue(Policy("short", lease_s=2))
    long = await backend.queue(Policy("long", lease_s=200))
    await backend.feed.put([message(queue="short"), message(queue="long")])
    await claim_one(short)
    await claim_one(long)
    await backend.time.advance_leases(3)
    assert (await short.reap(), await long.reap()) == (1, 0)


async def test_crashes_are_counted_apart_from_attempts(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    first = await claim_one(queue)
    assert (first.crashes, first.message.attempts) == (0, 0)
    await let_leases_end(backend, queue)
    second = await claim_one(queue)
    assert (second.crashes, second.message.attempts) == (1, 0)


async def test_a_crash_is_logged_with_the_worker_that_died(backend: Backend) -> None:
    queue = await backend.queue(PLAIN, "worker-7")
    [sent] = await backend.feed.put([message()])
    await claim_one(queue)
    await let_leases_end(backend, queue)
    [line] = await backend.log_of(sent)
    assert line.status == "retry"
    assert line.last_error is not None
    assert "worker-7" in line.last_error


async def test_after_two_crashes_a_message_is_not_given_out_among_others(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [suspect] = await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    [innocent] = await backend.feed.put([message()])
    assert ids(await claim(queue)) == [innocent]
    assert (await backend.admin.depth(QUEUE)).alone == 1
    alone = await queue.claim_alone()
    assert alone is not None
    assert (alone.message.id, alone.message.attempts, alone.crashes) == (suspect, 0, 2)


async def test_a_suspect_is_given_to_one_worker(backend: Backend) -> None:
    queue, other = await backend.queue(PLAIN), await backend.queue(PLAIN, "worker-2")
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    assert await queue.claim_alone() is not None
    assert await other.claim_alone() is None


async def test_a_message_without_crashes_is_not_given_out_alone(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    assert await queue.claim_alone() is None


async def test_dying_alone_parks_exactly_one_copy(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    suspect = await queue.claim_alone()
    assert suspect is not None
    assert await queue.mark_alone(suspect)
    assert await let_leases_end(backend, queue) == 1
    assert await let_leases_end(backend, queue) == 0
    [parked] = await stored(backend, State.PARKED)
    assert (parked.message.id, parked.message.attempts) == (sent, 0)
    depth = await backend.admin.depth(QUEUE)
    assert (depth.ready, depth.alone, depth.leased, depth.parked) == (0, 0, 0, 1)
    assert [line.status for line in await backend.log_of(sent)] == ["retry", "retry", "parked"]


async def test_dying_before_being_alone_does_not_park(backend: Backend) -> None:
    """The worker had claimed the suspect, but its other messages were still running when it died."""
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    for _ in range(3):
        assert await queue.claim_alone() is not None
        await let_leases_end(backend, queue)
    depth = await backend.admin.depth(QUEUE)
    assert (depth.alone, depth.parked) == (1, 0)


async def test_neighbours_of_a_poison_message_are_not_parked(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message() for _ in range(5)])
    poison = sent[2]
    await crash_until_alone(backend, queue)
    finished = []
    while suspect := await queue.claim_alone():
        assert await queue.mark_alone(suspect)
        if suspect.message.id == poison:
            await let_leases_end(backend, queue)
        else:
            finished += await settle(queue, success(suspect))
    assert finished == [SettleAnswer.SETTLED] * 4
    assert [found.message.id for found in await stored(backend, State.PARKED)] == [poison]


async def test_a_lost_claim_cannot_be_marked_alone(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    lost = await queue.claim_alone()
    assert lost is not None
    await let_leases_end(backend, queue)
    assert not await queue.mark_alone(lost)
    assert await queue.claim_alone() is not None
    assert not await queue.mark_alone(lost)
    await let_leases_end(backend, queue)
    assert (await backend.admin.depth(QUEUE)).parked == 0, "the successor was not alone yet when it died"


async def test_a_run_that_ends_in_order_clears_the_suspicion(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    suspect = await queue.claim_alone()
    assert suspect is not None
    assert await queue.mark_alone(suspect)
    await settle(queue, retry(suspect))
    again = await claim_one(queue)
    assert (again.message.id, again.crashes, again.message.attempts) == (sent, 0, 1)
    await let_leases_end(backend, queue)
    assert (await backend.admin.depth(QUEUE)).parked == 0, "dying in company after having run alone must not park"


async def test_a_paused_queue_gives_out_no_suspects(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message()])
    await crash_until_alone(backend, queue)
    await backend.admin.pause(QUEUE, "maintenance")
    assert await queue.claim_alone() is None
    await backend.admin.resume(QUEUE)
    assert await queue.claim_alone() is not None


@pytest.mark.parametrize("dead", [1, 450])
async def test_all_messages_of_dead_workers_come_back(backend: Backend, dead: int) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message() for _ in range(dead)])
    await claim(queue, 1_000)
    await backend.time.advance_leases(LEASE_S + 1)
    while await queue.reap():
        pass
    assert sorted(ids(await claim(queue, 1_000))) == sorted(sent)
