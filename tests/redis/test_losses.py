"""Redis loses everything, or its last second, in mid-load: what transactions put is applied once, and attempts stay."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import accumulate

import pytest

from payonce.testing import eventually
from tests.redis.desk import POLICY, RedisDesk
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
async def test_a_loss_in_mid_load_loses_and_doubles_nothing(forgetful_desk: RedisDesk, loss: str) -> None:
    desk = forgetful_desk
    workers = [desk.begin_worker(slots=10) for _ in range(CREW)]
    await desk.send(POISON, max_attempts=PARK_AFTER, deed="spoil")
    await desk.serving(*workers)
    await eventually(partial(parked, desk), SOON_S, "the poison is parked")
    # A worker that stood still for longer than its lease has run it once more by now.
    runs_of_poison = begun(desk, POISON)
    assert min(runs_of_poison.values()) >= PARK_AFTER
    await desk.send(HELD, deed="hold")
    await eventually(lambda: set(HELD) <= rows_noted(desk, "holding"), SOON_S, "some are in hand")
    before = begun(desk, HELD)
    await desk.send(PLAIN, takes_s=0.05)
    await desk.send(STUMBLING, deed="stumble")
    for moment in (ALL // 5, ALL // 2):
        await desk.reached(moment)
        await lose(desk, loss)
    if loss == "FLUSHALL":
        await eventually(
            lambda: all(begun(desk, HELD)[row] > before[row] for row in HELD), SOON_S, "what was in hand is run again"
        )
    for row in HELD:
        desk.journal.let_go(row)
    await desk.settled()
    await desk.each_applied_once(but=POISON)
    await eventually(partial(parked_copies, desk), SOON_S, "what is parked is shown in Redis again")
    assert begun(desk, POISON) == runs_of_poison, "parked and run again"
    for row in STUMBLING:
        seen = [int(note.event.split()[1]) for note in desk.journal.notes(row=row) if note.event.startswith("attempt")]
        assert seen == sorted(seen), f"row {row} forgot its attempts: {seen}"
        assert seen[-1] == STUMBLES
    assert all(worker.running for worker in workers)


@pytest.mark.parametrize("loss", ["FLUSHALL", "kill"])
async def test_a_pause_survives_the_loss(forgetful_desk: RedisDesk, loss: str) -> None:
    desk = forgetful_desk
    await desk.worker()
    await desk.send([0])
    await desk.reached(1)
    await desk.admin.pause(POLICY.queue, "for the test")
    await desk.send(range(1, 40))
    await lose(desk, loss)
    await eventually(partial(all_back, desk, 39), SOON_S, "what waits is put back")
    assert desk.ended_rows() == {0}
    assert await desk.store.command("EXISTS", f"{POLICY.queue}:paused")
    await desk.admin.resume(POLICY.queue)
    await desk.settled()
    await desk.each_applied_once()


async def test_a_rate_limit_survives_the_loss(forgetful_desk: RedisDesk) -> None:
    """The numbers come back from PostgreSQL; what was spent is forgotten with the server, once."""
    desk, rate, burst = forgetful_desk, 10.0, 1
    limited = replace(POLICY, rate=rate, burst=burst)
    await desk.worker(limited)
    await desk.send(range(30), limited)
    await desk.reached(5)
    await desk.store.command("FLUSHALL")
    await desk.reached(30)
    # When Redis gave them out, by its own clock: what became of them then is a matter of the machine.
    given_out = await desk.ask("select array_agg(started_at) from payonce.job_logs where status = 'success'")
    second = timedelta(seconds=1)
    most = max(sum(first <= at < first + second for at in given_out) for first in given_out)
    assert most <= rate + 2 * burst, "dispatched faster than the limit"
    await desk.settled()
    await desk.each_applied_once()


@pytest.mark.parametrize("way", ["direct", "transactional"])
@pytest.mark.parametrize("parts", [("leases",), ("claims",), ("leases", "claims", "ids")], ids="+".join)
async def test_what_a_killed_worker_held_is_done_after_its_leases_are_lost(
    forgetful_desk: RedisDesk, way: str, parts: Sequence[str]
) -> None:
    desk = forgetful_desk
    victim = await desk.worker()
    await (desk.put(HELD, deed="hold") if way == "direct" else desk.send(HELD, deed="hold"))
    await eventually(lambda: set(HELD) <= rows_noted(desk, "holding"), SOON_S, "all are in hand")
    victim.kill()
    await desk.store.command("DEL", *(f"{POLICY.queue}:{part}" for part in parts))
    assert await desk.store.command("LLEN", f"{POLICY.queue}:processing") == len(HELD)
    await desk.worker()
    for row in HELD:
        desk.journal.let_go(row)
    await desk.settled(SOON_S)
    await desk.each_applied_once()


@pytest.mark.parametrize("loss", ["leases", "claims", "leases claims", "FLUSHALL"])
async def test_the_limit_holds_through_a_loss(forgetful_desk: RedisDesk, loss: str) -> None:
    """Some runs last through the loss and count from before it; the others come and go."""
    desk, limit = forgetful_desk, 8
    # Long enough that a busy machine does not keep a worker from renewing.
    limited = replace(POLICY, concurrency=limit, lease_s=6.0)
    await desk.serving(*[desk.begin_worker(limited, slots=10) for _ in range(CREW)])
    await desk.send(HELD, limited, deed="call")
    await eventually(lambda: set(HELD) <= rows_noted(desk, "holding"), SOON_S, "some are in hand")
    await desk.send(range(100), limited, deed="call", takes_s=0.05)
    await desk.reached(20)
    if loss == "FLUSHALL":
        await desk.store.command(loss)
    else:
        await desk.store.command("DEL", *(f"{POLICY.queue}:{part}" for part in loss.split()))
    await desk.reached(100)
    for row in HELD:
        desk.journal.let_go(row)
    await desk.settled()
    await desk.each_applied_once()
    assert limit - len(HELD) < most_at_once(desk) <= limit


def most_at_once(desk: RedisDesk) -> int:
    """How many calls of the vendor were under way at the same time, in all processes."""
    changes = {"calling": 1, "called": -1}
    return max(accumulate(changes.get(note.event, 0) for note in desk.journal.notes()))


def begun(desk: RedisDesk, rows: range) -> Counter[int]:
    """How often each of these was begun."""
    return Counter(note.row for note in desk.journal.notes("began") if note.row in rows)


def rows_noted(desk: RedisDesk, event: str) -> set[int]:
    return {note.row for note in desk.journal.notes(event)}


async def lose(desk: RedisDesk, loss: str) -> None:
    if loss == "FLUSHALL":
        await desk.store.command("FLUSHALL")
    else:
        desk.server.kill()
        await desk.start_server_again()


async def parked(desk: RedisDesk) -> bool:
    return await desk.parked_in_postgres() == list(POISON)


async def parked_copies(desk: RedisDesk) -> bool:
    return await desk.parked_in_redis() == list(POISON)


async def all_back(desk: RedisDesk, count: int) -> bool:
    waiting: int = await desk.store.command("LLEN", POLICY.queue)
    return waiting == count
