"""A server in a process: how it ends, and how several share one database."""

import asyncio
from typing import Any

import pytest
from google.api_core.exceptions import Unauthenticated

from payonce.kit.outcomes import Unavailable
from payonce.queues.cloudtasks.client import Config, QueueNumbers, TaskRequest, TaskService
from payonce.queues.cloudtasks.names import LOCAL_ACCOUNT, ProjectLocation
from payonce.taskserver.retention import prune
from payonce.taskserver.server import keep_house, open_server
from payonce.taskserver.tokens import TokenMaker
from payonce.testing import OpenStage
from payonce.testing.server import serving
from tests.taskserver.testbed import LOCATION, QUEUE, TaskServerTestbed, Worker, open_client

TOKEN = "a-token-of-the-server"
KEYS = "select count(*) from cloudtasks.signing_keys"


async def test_a_server_that_closes_lets_its_requests_finish(stage: OpenStage) -> None:
    worker = Worker()
    async with stage() as s, serving(worker) as worker.url:
        async with open_server(s.database, s.notifier) as server, open_client(server.address) as client:
            testbed = TaskServerTestbed(s, server, client, worker)
            await testbed.queue()
            worker.open.clear()
            await testbed.put("slow")
            await testbed.arrivals(1)
            asyncio.get_running_loop().call_later(0.2, worker.open.set)
        assert await s.owner.fetchval("select count(*) from cloudtasks.tasks") == 0


async def test_what_outlives_the_grace_is_left_to_its_lease(stage: OpenStage) -> None:
    worker = Worker()
    async with stage() as s, serving(worker) as worker.url:
        async with open_server(s.database, s.notifier, grace_s=0.1) as server, open_client(server.address) as client:
            testbed = TaskServerTestbed(s, server, client, worker)
            await testbed.queue()
            worker.open.clear()
            await testbed.put("slow")
            await testbed.arrivals(1)
        assert await s.owner.fetchval("select count(*) from cloudtasks.tasks where lease_until is not null") == 1
        worker.open.set()


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", TOKEN),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {TOKEN}x"),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer x")),
    ],
    ids=["none", "no scheme", "empty", "another", "another scheme", "two"],
)
async def test_a_call_without_the_token_is_refused_and_does_nothing(stage: OpenStage, metadata: Any) -> None:
    async with (
        stage() as s,
        open_server(s.database, s.notifier, token=TOKEN) as server,
        open_client(server.address) as client,
    ):
        with pytest.raises(Unauthenticated, match="needs a token"):
            await client.create_queue(parent=LOCATION, queue={"name": QUEUE}, metadata=metadata)
        with pytest.raises(Unauthenticated):
            await client.transport.operations_client.get_operation("operations/1", metadata=list(metadata))
        assert await s.owner.fetchval("select count(*) from cloudtasks.queues") == 0


async def test_our_own_client_sends_the_token_with_every_kind_of_call(stage: OpenStage) -> None:
    location = ProjectLocation("p", "l")
    async with stage() as s, open_server(s.database, s.notifier, token=TOKEN, dispatching=False) as server:
        service = TaskService(Config(location, LOCAL_ACCOUNT, server.address, lambda: TOKEN))
        stranger = TaskService(Config(location, LOCAL_ACCOUNT, server.address))
        tasks = [
            TaskRequest(f"{location.queue('q')}/tasks/t{n}", "http://127.0.0.1:9/", "a", b"", 30.0) for n in range(3)
        ]
        try:
            assert await service.installation() == await s.database.installation()
            await service.create_queue("q", QueueNumbers(1.0, 1, 1, 0.0, 1.0, 1.0, 1))
            assert [status.code for status in await service.create("q", tasks)] == ["OK"] * 3
            assert await service.find(tasks[0].name) == "http://127.0.0.1:9/"
            with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
                await stranger.queue("q")
        finally:
            await service.close()
            await stranger.close()


async def test_a_server_that_does_not_dispatch_wakes_one_that_does(
    stage: OpenStage, testbed: TaskServerTestbed
) -> None:
    await testbed.queue()
    async with (
        open_server(testbed.s.database, testbed.s.notifier, dispatching=False) as door,
        open_client(door.address) as client,
    ):
        for number in range(3):
            await client.create_task(parent=QUEUE, task={**testbed.http(), "name": f"{QUEUE}/tasks/t{number}"})
            await testbed.arrivals(number + 1)


async def test_a_queue_made_at_one_server_is_served_by_another(testbed: TaskServerTestbed) -> None:
    other = f"{LOCATION}/queues/other"
    async with (
        open_server(testbed.s.database, testbed.s.notifier, dispatching=False) as door,
        open_client(door.address) as client,
    ):
        await client.create_queue(parent=LOCATION, queue={"name": other})
        await client.create_task(parent=other, task=testbed.http())
    await testbed.arrivals(1)


async def test_keys_of_the_dead_are_forgotten_and_those_of_the_living_kept(still: TaskServerTestbed) -> None:
    living = TokenMaker()
    await keep_house(still.s.database, living)
    assert await still.s.owner.fetchval(KEYS) == 2
    await still.s.clock.advance(86_400)
    await keep_house(still.s.database, living)
    await still.s.clock.advance(86_401)
    await keep_house(still.s.database, TokenMaker())
    kids = {row["kid"] for row in await still.s.owner.fetch("select kid from cloudtasks.signing_keys")}
    assert living.kid in kids
    assert len(kids) == 2, "that of the server of this test was not said for two days"


async def test_names_and_operations_are_cleared_away_when_their_time_is_over(still: TaskServerTestbed) -> None:
    await still.queue()
    request = {"parent": QUEUE, "task": {**still.http(), "name": f"{QUEUE}/tasks/one"}}
    await still.client.batch_create_tasks(parent=QUEUE, requests=[request])
    assert await still.steps() == 1
    left = "select (select count(*) from cloudtasks.tombstones), (select count(*) from cloudtasks.operations)"
    for after_s, names, operations in ((86_399, 1, 1), (1, 0, 1), (6 * 86_400, 0, 0)):
        await still.s.clock.advance(after_s)
        await prune(still.s.database)
        assert [tuple(row) for row in await still.s.owner.fetch(left)] == [(names, operations)]


async def test_the_tasks_of_a_deleted_queue_are_cleared_away_and_then_its_name(still: TaskServerTestbed) -> None:
    await still.queue()
    await still.put("one")
    await still.client.delete_queue(name=QUEUE)
    await prune(still.s.database)
    assert await still.s.owner.fetchval("select count(*) from cloudtasks.tasks") == 0
    assert await still.s.owner.fetchval("select count(*) from cloudtasks.queues") == 1
    await still.s.clock.advance(3 * 86_400)
    await prune(still.s.database)
    assert await still.s.owner.fetchval("select count(*) from cloudtasks.queues") == 0
