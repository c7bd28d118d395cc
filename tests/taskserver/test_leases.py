"""Leases, pauses and late responses: one live dispatch per task, whichever process dies, stops or is late."""

import asyncio

import grpc
import pytest
from google.api_core.exceptions import AlreadyExists, NotFound

from payonce.taskserver.delivery import Answer, ending_of
from payonce.taskserver.dispatch import LEASE_S
from payonce.taskserver.task_store import TaskStore
from payonce.testing import eventually
from tests.taskserver.testbed import QUEUE, TaskServerTestbed

DONE = Answer(200, grpc.StatusCode.OK, "OK(0): HTTP status code 200")
FAILED = Answer(500, grpc.StatusCode.INTERNAL, "INTERNAL(13): HTTP status code 500")
FAR = {"min_backoff": {"seconds": 3_600}, "max_backoff": {"seconds": 3_600}}


async def test_a_leased_task_is_nobody_elses_until_its_lease_has_ended(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("one")
    assert len((await still.claims(limit=10)).tasks) == 1
    await still.s.clock.advance(3_600)
    assert await still.steps() == 0, "the due clock ends no lease"
    await still.s.clock.advance_leases(LEASE_S - 1)
    assert await still.steps() == 0
    await still.s.clock.advance_leases(1)
    assert await still.steps() == 1
    await still.emptied()


@pytest.mark.parametrize("late", [DONE, FAILED], ids=["success", "failure"])
async def test_a_late_answer_changes_nothing(still: TaskServerTestbed, late: Answer) -> None:
    await still.queue(retry_config=FAR)
    name = (await still.put("one")).name
    [lost] = (await still.claims(limit=1)).tasks
    await still.s.clock.advance_leases(LEASE_S)
    still.worker.answers(404)
    assert await still.steps() == 1
    before = await still.client.get_task(name=name)
    assert await TaskStore(still.s.database).settle([ending_of(lost, late)]) == set()
    assert await still.client.get_task(name=name) == before


async def test_a_late_answer_does_not_end_the_dispatch_that_runs(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("one")
    [lost] = (await still.claims(limit=1)).tasks
    await still.s.clock.advance_leases(LEASE_S)
    [current] = (await still.claims(limit=1)).tasks
    store = TaskStore(still.s.database)
    assert await store.settle([ending_of(lost, FAILED)]) == set()
    assert (await still.claims(limit=1)).tasks == []
    assert await store.settle([ending_of(current, DONE)]) == {current.key}


async def test_a_lost_claim_is_not_kept_and_a_live_one_is(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("one")
    store = TaskStore(still.s.database)
    [lost] = (await still.claims(limit=1)).tasks
    await still.s.clock.advance_leases(LEASE_S)
    [current] = (await still.claims(limit=1)).tasks
    assert await store.extend([lost, current], LEASE_S) == ({lost}, set())
    await still.s.clock.advance_leases(LEASE_S - 1)
    assert await store.extend([current], LEASE_S) == (set(), set())
    await still.s.clock.advance_leases(LEASE_S - 1)
    assert (await still.claims(limit=1)).tasks == []


async def test_a_running_request_keeps_its_lease(testbed: TaskServerTestbed) -> None:
    await testbed.queue()
    testbed.worker.open.clear()
    await testbed.put("slow")
    await testbed.arrivals(1)
    renewed = "select lease_until > payonce.lease_now() + interval '25 s' from cloudtasks.tasks"
    for _ in range(3):
        await testbed.s.clock.advance_leases(LEASE_S / 2)

        async def is_renewed() -> bool:
            return bool(await testbed.s.database.work.fetchval(renewed))

        await eventually(is_renewed, 30, "the lease is renewed")
    testbed.worker.open.set()
    await testbed.emptied()
    await testbed.arrivals(1)


async def test_a_paused_queue_dispatches_nothing_and_loses_nothing(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.client.pause_queue(name=QUEUE)
    for number in range(5):
        await still.put(f"t{number}")
    await still.s.clock.advance(60)
    assert await still.steps() == 0
    await still.client.resume_queue(name=QUEUE)
    assert await still.steps() == 5


async def test_a_resumed_queue_dispatches_at_once(testbed: TaskServerTestbed) -> None:
    await testbed.queue()
    await testbed.client.pause_queue(name=QUEUE)
    await testbed.put("one")
    await testbed.client.resume_queue(name=QUEUE)
    await testbed.arrivals(1)


@pytest.mark.parametrize("call", ["delete_task", "purge_queue", "delete_queue"])
async def test_what_was_removed_while_it_ran_does_not_come_back(still: TaskServerTestbed, call: str) -> None:
    await still.queue(retry_config=FAR)
    name = (await still.put("one")).name
    [claim] = (await still.claims(limit=1)).tasks
    await getattr(still.client, call)(name=name if call == "delete_task" else QUEUE)
    await TaskStore(still.s.database).settle([ending_of(claim, FAILED)])
    await still.s.clock.advance(86_400)
    await still.s.clock.advance_leases(86_400)
    assert await still.steps() == 0
    with pytest.raises(NotFound):
        await still.client.get_task(name=name)


async def test_run_task_dispatches_a_task_that_runs_already(still: TaskServerTestbed) -> None:
    await still.queue()
    name = (await still.put("one")).name
    [stuck] = (await still.claims(limit=1)).tasks
    await still.client.run_task(name=name)
    assert await still.steps() == 1
    assert await TaskStore(still.s.database).settle([ending_of(stuck, FAILED)]) == set()
    await still.emptied()


async def test_a_name_is_not_free_while_its_task_is_just_being_done(still: TaskServerTestbed) -> None:
    """The caller waits for the end of the dispatch, and must see what it left behind."""
    await still.queue()
    await still.put("one")
    async with still.s.owner.transaction():
        await still.s.owner.execute(
            """
            delete from cloudtasks.tasks;
            insert into cloudtasks.tombstones
            select id, 'one', payonce.due_now() + interval '1 day' from cloudtasks.queues
            """
        )
        again = asyncio.create_task(still.put("one"))

        async def waits() -> bool:
            return bool(await still.s.owner.fetchval("select exists (select from pg_locks where not granted)"))

        await eventually(waits, what="the second put waits")
    with pytest.raises(AlreadyExists):
        await again
