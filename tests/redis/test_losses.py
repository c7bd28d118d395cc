"""Redis loses everything, or its last second, in mid-load: what transactions put is applied once, and attempts stay."""

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from payonce.testing import eventually
from tests.redis.desk import POLICY, RedisDesk
from tests.redis.worker import STUMBLES

PLAIN = range(300)
STUMBLING = range(1_000, 1_020)
POISON = range(2_000, 2_004)
HELD = range(3_000, 3_005)
ALL = len(PLAIN) + len(STUMBLING)
CREW = 3
PARK_AFTER = 2


@pytest.mark.parametrize("loss", ["FLUSHALL", "kill"])
async def test_a_loss_in_mid_load_loses_and_doubles_nothing(forgetful_desk: RedisDesk, loss: str) -> None:
    desk = forgetful_desk
    workers = [desk.begin_worker(slots=10) for _ in range(CREW)]
    await desk.send(POISON, max_attempts=PARK_AFTER, deed="spoil")
    await desk.serving(*workers)
    await eventually(partial(parked, desk), 20, "the poison is parked")
    await desk.send(HELD, deed="hold")
    await eventually(lambda: len(desk.journal.notes("holding")) == len(HELD), 20, "some are in hand")
    await desk.send(PLAIN, takes_s=0.05)
    await desk.send(STUMBLING, deed="stumble")
    for moment in (ALL // 5, ALL // 2):
        await desk.reached(moment)
        await lose(desk, loss)
    for row in HELD:
        desk.journal.let_go(row)
    await desk.settled()
    await desk.each_applied_once(but=POISON)
    await eventually(partial(parked_copies, desk), 20, "what is parked is shown in Redis again")
    assert [len(desk.journal.notes("began", row)) for row in POISON] == [PARK_AFTER] * len(POISON), (
        "parked and run again"
    )
    if loss == "FLUSHALL":
        assert all(len(desk.journal.notes("began", row)) > 1 for row in HELD), "what was in hand is not run again"
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
    await eventually(partial(all_back, desk, 39), 20, "what waits is put back")
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
    began = asyncio.get_running_loop().time()
    applied = await desk.applied()
    await desk.reached(30)
    took_s = asyncio.get_running_loop().time() - began
    assert 30 - applied <= took_s * rate + 2 * burst + 1, "dispatched faster than the limit"
    await desk.settled()
    await desk.each_applied_once()


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
