"""A database that goes away and comes back: workers recover by themselves."""

import asyncio
import random
from dataclasses import replace

import pytest

from payonce.engine.database.sessions import connect
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.work import Work, handles
from payonce.testing import eventually
from payonce.testing.stage import open_stage
from tests.processes.conftest import OwnServer
from tests.processes.testbed import POLICY, ProcessTestbed


async def test_a_stopped_and_a_killed_server_lose_and_double_nothing(
    testbed_at_own_server: ProcessTestbed, own_server: OwnServer
) -> None:
    testbed = testbed_at_own_server
    workers = [testbed.begin_worker(slots=20) for _ in range(2)]
    await testbed.serving(*workers)
    await testbed.put(range(600), takes_s=0.05)
    await testbed.reached(100)
    await asyncio.to_thread(own_server.stop)
    await asyncio.to_thread(own_server.start)
    await reached_again(testbed, 300)
    await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.start)
    await testbed.drained()
    await testbed.each_applied_once()
    assert all(worker.running for worker in workers), "recovered, and not by being replaced"


@pytest.mark.full
async def test_healthy_runs_are_not_parked_for_outages_of_the_database(
    testbed_at_own_server: ProcessTestbed, own_server: OwnServer
) -> None:
    """Each outage is longer than the lease, and none of them is a crash of the worker."""
    testbed = testbed_at_own_server
    # Long enough for a worker that a busy machine wakes late: a lease that is lost for that counts as a crash.
    policy = replace(POLICY, lease_s=3.0)
    worker = await testbed.worker(policy)
    await testbed.put([1], policy, deed="hold")
    for outage in range(1, 4):
        await testbed.noted("holding", 1, times=outage)
        await asyncio.to_thread(own_server.stop)
        await testbed.noted("CancelledError", 1, times=outage)
        await asyncio.to_thread(own_server.start)
    testbed.journal.let_go(1)
    await testbed.drained()
    await testbed.each_applied_once()
    assert worker.running


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
async def test_many_restarts_in_a_long_load_lose_and_double_nothing(
    testbed_at_own_server: ProcessTestbed, own_server: OwnServer, seed: int
) -> None:
    testbed, chance = testbed_at_own_server, random.Random(seed)
    workers = [testbed.begin_worker(slots=20) for _ in range(3)]
    await testbed.serving(*workers)
    await testbed.put(range(2_000), takes_s=0.1)
    for moment in sorted(chance.randrange(1_600) for _ in range(6)):
        await reached_again(testbed, moment)
        await asyncio.to_thread(chance.choice((own_server.stop, own_server.kill)))
        await asyncio.to_thread(own_server.start)
    await testbed.drained()
    await testbed.each_applied_once()
    assert all(worker.running for worker in workers)


async def test_a_refused_connection_is_transient_and_the_handlers_own_is_a_bug(own_server: OwnServer) -> None:
    """While the server restarts nobody listens. An OSError of a handler's own vendor says nothing about the store."""

    @handles(Policy("look", max_attempts=None))
    async def look(work: Work) -> None:
        if work.message.payload["at"] == "vendor":
            raise ConnectionRefusedError("the vendor does not listen")
        await asyncio.to_thread(own_server.stop)
        try:
            await work.read.fetchval("select 1")
        finally:
            await asyncio.to_thread(own_server.start)

    with own_server.scratch.lent() as scratch:
        async with open_stage(scratch) as s:
            worker = await s.worker(look)
            for at in ("vendor", "store"):
                await s.feed.put([Message(queue="look", payload={"at": at})])
                assert await worker.step()
        reader = await connect(scratch.owner_url)
        rows = await reader.fetch("select payload->>'at' as at, last_error, attempts from payonce.messages")
        await reader.close()
    told = {row["at"]: row["last_error"] for row in rows}
    assert told["vendor"].startswith("ConnectionRefusedError: the vendor does not listen [look")
    assert told["store"].startswith("database: cannot connect to PostgreSQL at")


async def reached_again(testbed: ProcessTestbed, count: int) -> None:
    """The test's own connections broke too."""
    await eventually(testbed.answers, 60, "the database answers")
    await testbed.reached(count)
