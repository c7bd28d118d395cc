"""Redis loses everything, or its last second, in mid-load: what transactions put is applied once, and attempts stay."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import accumulate

import pytest

from payonce.testing import eventually
from tests.redis.testbed import POLICY, RedisTestbed
from tests.redis.worker import STUMBLES

pytestmark = pytest.mark.timeout(300)

PLAIN = range(300)
STUMBLING = range(1_000, 1_020)
POISON = range(2_000, 2_004)
HELD = range(3_000, 3_005)
ALL = len(PLAIN) + len(STUMBLING)
CREW = 3
PARK_AFTER = 2
SOON_S = 40.0


@pytest.mark.parametrize("loss", ["FLUSHALL", "kill"])
async def test_a_loss_in_mid_load_loses_and_doubles_nothing(forgetful_testbed: RedisTestbed, loss: str) -> None:
    testbed = forgetful_testbed
    workers = [testbed.begin_worker(slots=10) for _ in range(CREW)]
    await testbed.send(POISON, max_attempts=PARK_AFTER, deed="spoil")
    await testbed.serving(*workers)
    await eventually(partial(parked, testbed), SOON_S, "the poison is parked")
    # A worker that stood still for longer than its lease has run it once more by now.
    runs_of_poison = begun(testbed, POISON)
    assert min(runs_of_poison.values()) >= PARK_AFTER
    await testbed.send(HELD, deed="hold")
    await eventually(lambda: set(HELD) <= rows_noted(testbed, "holding"), SOON_S, "some are in hand")
    before = begun(testbed, HELD)
    await testbed.send(PLAIN, takes_s=0.05)
    await testbed.send(STUMBLING, deed="stumble")
    for moment in (ALL // 5, ALL // 2):
        await testbed.reached(moment)
        await lose(testbed, loss)
    if loss == "FLUSHALL":
        await eventually(
            lambda: all(begun(testbed, HELD)[row] > before[row] for row in HELD),
            SOON_S,
            "interrupted messages run again",
        )
    for row in HELD:
        testbed.journal.let_go(row)
    await testbed.settled()
    await testbed.each_applied_once(but=POISON)
    await eventually(partial(parked_copies, testbed), SOON_S, "parked messages are in Redis again")
    assert begun(testbed, POISON) == runs_of_poison, "parked and run again"
    for row in STUMBLING:
        seen = [
            int(note.event.split()[1]) for note in testbed.journal.notes(row=row) if note.event.startswith("attempt")
        ]
        assert seen == sorted(seen), f"row {row} forgot its attempts: {seen}"
        assert seen[-1] == STUMBLES
    assert all(worker.running for worker in workers)


@pytest.mark.parametrize("loss", ["FLUSHALL", "kill"])
async def test_a_pause_survives_the_loss(forgetful_testbed: RedisTestbed, loss: str) -> None:
    testbed = forgetful_testbed
    await testbed.worker()
    await testbed.send([0])
    await testbed.reached(1)
    await testbed.admin.pause(POLICY.queue, "for the test")
    await testbed.send(range(1, 40))
    await lose(testbed, loss)
    await eventually(partial(all_back, testbed, 39), SOON_S, "waiting messages are put back")
    assert testbed.ended_rows() == {0}
    assert await testbed.store.command("EXISTS", f"{POLICY.queue}:paused")
    await testbed.admin.resume(POLICY.queue)
    await testbed.settled()
    await testbed.each_applied_once()


async def test_a_rate_limit_survives_the_loss(forgetful_testbed: RedisTestbed) -> None:
    """The limit's numbers come back from PostgreSQL; what was spent is lost with the server, once."""
    testbed, rate, burst = forgetful_testbed, 10.0, 1
    limited = replace(POLICY, rate=rate, burst=burst)
    await testbed.worker(limited)
    await testbed.send(range(30), limited)
    await testbed.reached(5)
    await testbed.store.command("FLUSHALL")
    await testbed.reached(30)
    # When Redis gave them out, by its own clock: what became of them then is a matter of the machine.
    given_out = await testbed.ask("select array_agg(started_at) from payonce.job_logs where status = 'success'")
    second = timedelta(seconds=1)
    most = max(sum(first <= at < first + second for at in given_out) for first in given_out)
    assert most <= rate + 2 * burst, "dispatched faster than the limit"
    await testbed.settled()
    await testbed.each_applied_once()


@pytest.mark.parametrize("way", ["direct", "transactional"])
@pytest.mark.parametrize("parts", [("leases",), ("claims",), ("leases", "claims", "ids")], ids="+".join)
async def test_what_a_killed_worker_held_is_done_after_its_leases_are_lost(
    forgetful_testbed: RedisTestbed, way: str, parts: Sequence[str]
) -> None:
    testbed = forgetful_testbed
    victim = await testbed.worker()
    await (testbed.put(HELD, deed="hold") if way == "direct" else testbed.send(HELD, deed="hold"))
    await eventually(lambda: set(HELD) <= rows_noted(testbed, "holding"), SOON_S, "all are in hand")
    victim.kill()
    await testbed.store.command("DEL", *(f"{POLICY.queue}:{part}" for part in parts))
    assert await testbed.store.command("LLEN", f"{POLICY.queue}:processing") == len(HELD)
    await testbed.worker()
    for row in HELD:
        testbed.journal.let_go(row)
    await testbed.settled(SOON_S)
    await testbed.each_applied_once()


@pytest.mark.parametrize("loss", ["leases", "claims", "leases claims", "FLUSHALL"])
async def test_the_limit_holds_through_a_loss(forgetful_testbed: RedisTestbed, loss: str) -> None:
    """Some runs last through the loss and count from before it; the others come and go."""
    testbed, limit = forgetful_testbed, 8
    # Long enough that a busy machine does not keep a worker from renewing.
    limited = replace(POLICY, concurrency=limit, lease_s=6.0)
    await testbed.serving(*[testbed.begin_worker(limited, slots=10) for _ in range(CREW)])
    await testbed.send(HELD, limited, deed="call")
    await eventually(lambda: set(HELD) <= rows_noted(testbed, "holding"), SOON_S, "some are in hand")
    await testbed.send(range(100), limited, deed="call", takes_s=0.05)
    await testbed.reached(20)
    if loss == "FLUSHALL":
        await testbed.store.command(loss)
    else:
        await testbed.store.command("DEL", *(f"{POLICY.queue}:{part}" for part in loss.split()))
    await testbed.reached(100)
    for row in HELD:
        testbed.journal.let_go(row)
    await testbed.settled()
    await testbed.each_applied_once()
    assert limit - len(HELD) < most_at_once(testbed) <= limit


def most_at_once(testbed: RedisTestbed) -> int:
    """How many calls of the vendor were under way at the same time, in all processes."""
    changes = {"calling": 1, "called": -1}
    return max(accumulate(changes.get(note.event, 0) for note in testbed.journal.notes()))


def begun(testbed: RedisTestbed, rows: range) -> Counter[int]:
    """How often each of these was begun."""
    return Counter(note.row for note in testbed.journal.notes("began") if note.row in rows)


def rows_noted(testbed: RedisTestbed, event: str) -> set[int]:
    return {note.row for note in testbed.journal.notes(event)}


async def lose(testbed: RedisTestbed, loss: str) -> None:
    if loss == "FLUSHALL":
        await testbed.store.command("FLUSHALL")
    else:
        testbed.server.kill()
        await testbed.start_server_again()


async def parked(testbed: RedisTestbed) -> bool:
    return await testbed.parked_in_postgres() == list(POISON)


async def parked_copies(testbed: RedisTestbed) -> bool:
    return await testbed.parked_in_redis() == list(POISON)


async def all_back(testbed: RedisTestbed, count: int) -> bool:
    waiting: int = await testbed.store.command("LLEN", POLICY.queue)
    return waiting == count
