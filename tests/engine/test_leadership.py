"""Leadership in the background: renewed, lost in time, and taken over from a dead process within the promised time."""

import asyncio
import math
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from payonce.engine.database import leases
from payonce.engine.database.connections import Database
from payonce.engine.database.leases import Leadership, acquire
from payonce.engine.messages.model import Lease
from payonce.testing import OpenStage, Stage, eventually

TTL_S = 1.0
TAKE_OVER_LIMIT_S = 1.5
LEASES = 25
TRIES = 5

HOLDER = """
import asyncio, sys
from contextlib import AsyncExitStack
from payonce.engine.database.connections import Database
from payonce.engine.database.leases import Leadership

async def main(url, ttl_s, count):
    async with Database.open(url) as database, AsyncExitStack() as stack:
        held = [await stack.enter_async_context(Leadership.open(database, f"leader-{n}", "doomed", ttl_s))
                for n in range(count)]
        while not all(leadership.lease for leadership in held):
            await asyncio.sleep(0.01)
        print("leading", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
"""


async def test_leaders_killed_without_a_word_are_replaced_in_time(stage: OpenStage) -> None:
    """Twenty-five leases held by a process that is killed: the slowest take-over stands for the 99th percentile.

    A busy machine delays everyone who tries: one success in time is enough, since among so many that try too seldom one
    would always be late.
    """
    slowest: list[float] = []
    async with stage() as s:
        while len(slowest) < TRIES and (not slowest or slowest[-1] >= TAKE_OVER_LIMIT_S):
            slowest.append(await slowest_take_over(s))
    assert min(slowest) < TAKE_OVER_LIMIT_S


async def slowest_take_over(s: Stage) -> float:
    """How long after the death of a killed process the last of its leases had another holder; void if one was lost
    while it lived."""
    async with AsyncExitStack() as stack:
        command = [sys.executable, "-c", HOLDER, s.scratch.service_url, str(TTL_S), str(LEASES)]
        doomed = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert doomed.stdout is not None
        try:
            while await doomed.stdout.readline() != b"leading\n":
                assert not doomed.stdout.at_eof()
            opened = [Leadership.open(s.database, f"leader-{number}", "next", TTL_S) for number in range(LEASES)]
            waiting = [await stack.enter_async_context(leadership) for leadership in opened]
            first_end = await soonest_end(s)
            await eventually(lambda: outlived(s, first_end), what="renewing every lease beyond its first time to live")
            if any(leadership.lease for leadership in waiting):
                return math.inf
            took_s: dict[int, float] = {}
            killed_at = time.monotonic()
            doomed.kill()

            def all_replaced() -> bool:
                for number, leadership in enumerate(waiting):
                    if leadership.lease is not None:
                        took_s.setdefault(number, time.monotonic() - killed_at)
                return len(took_s) == LEASES

            await eventually(all_replaced)
        finally:
            if doomed.returncode is None:
                doomed.kill()
            await doomed.wait()
    return max(took_s.values())


async def soonest_end(s: Stage) -> datetime:
    return cast(datetime, await s.owner.fetchval("select min(expires_at) from payonce.leases"))


async def outlived(s: Stage, first_end: datetime) -> bool:
    return await soonest_end(s) > first_end + timedelta(seconds=TTL_S)


async def test_a_leader_that_closes_lets_the_next_in_at_once(stage: OpenStage) -> None:
    async with stage() as s:
        async with Leadership.open(s.database, "leader", "a", 60.0) as leading:
            await eventually(lambda: leading.lease)
            assert await acquire(s.database, "leader", "b", 60.0) is None
        assert leading.lease is None
        assert await acquire(s.database, "leader", "b", 60.0) is not None


async def test_a_renewal_that_is_refused_ends_leadership(stage: OpenStage) -> None:
    async with stage() as s:
        leadership = Leadership(s.database, "leader", "a", 60.0)
        await leadership.step()
        assert leadership.lease == Lease("leader", "a", 1, 60.0)
        await s.clock.advance_leases(60)
        assert await acquire(s.database, "leader", "b", 60.0) is not None
        await leadership.step()
        assert leadership.lease is None


async def test_leadership_ends_by_our_own_clock_counted_from_before_the_store_was_asked(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_s = 1_000.0

    async def slow_acquire(database: Database, name: str, holder: str, ttl_s: float) -> Lease | None:
        nonlocal local_s
        lease = await acquire(database, name, holder, ttl_s)
        local_s += 3
        return lease

    monkeypatch.setattr(leases, "acquire", slow_acquire)
    async with stage() as s:
        leadership = Leadership(s.database, "leader", "a", 5.0)
        # The store's clock is frozen, so that only the process's own count can end it.
        await s.clock.freeze()
        with monkeypatch.context() as patched:
            patched.setattr(leases, "time", SimpleNamespace(monotonic=lambda: local_s))
            await leadership.step()
            local_s = 1_004.9
            assert leadership.lease is not None
            local_s = 1_005.0
            assert leadership.lease is None, "the answer took 3 s, and they count"
            await leadership.step()
            assert leadership.lease is None, "the store still knows the old holding"


async def test_leadership_survives_a_store_that_is_away_for_a_moment(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    async def failing_renew(database: Database, lease: Lease) -> bool:
        nonlocal failures
        failures += 1
        raise OSError("connection refused")

    # Two thirds of it are left when the first renewal fails, for a machine that stalls meanwhile.
    ttl_s, later_s = 6.0, 0.0
    async with stage() as s, Leadership.open(s.database, "leader", "a", ttl_s) as leading:
        first = await eventually(lambda: leading.lease)
        assert first is not None
        monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later_s))
        with monkeypatch.context() as patched:
            patched.setattr(leases, "renew", failing_renew)
            await eventually(lambda: failures >= 1)
            assert leading.lease == first
            later_s = ttl_s
            assert leading.lease is None
            await s.clock.advance_leases(ttl_s)
        again = await eventually(lambda: leading.lease)
        assert again is not None
        assert again.epoch > first.epoch
