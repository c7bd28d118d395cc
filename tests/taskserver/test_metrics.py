"""What Prometheus is told of tasks; and that a server which keeps no house would soon be believed by nobody."""

import asyncio

import aiohttp

from payonce.app.resources import TaskServer
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.http.standalone import probe_app
from payonce.taskserver.metrics import observe_tasks
from payonce.taskserver.server import open_server
from payonce.taskserver.tokens import KEY_KEPT_S
from payonce.testing import OpenStage, eventually
from payonce.testing.server import serving
from tests.taskserver.testbed import LOCATION, TaskServerTestbed

LATER = {"min_backoff": {"seconds": 60}, "max_backoff": {"seconds": 60}}


def shown(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"payonce_cloudtasks_{name}", {"queue": "counted", **labels})


async def counted(testbed: TaskServerTestbed, **settings: object) -> str:
    """A queue that no other test speaks of: the process has one registry."""
    queue = f"{LOCATION}/queues/counted"
    await testbed.client.create_queue(parent=LOCATION, queue={"name": queue, **settings})
    return queue


async def test_tasks_are_counted_from_their_creation_to_their_end(still: TaskServerTestbed) -> None:
    queue = await counted(still, retry_config={**LATER, "max_attempts": 2})
    await still.put("a", queue)
    requests = [{"parent": queue, "task": {**still.http(), "name": f"{queue}/tasks/{name}"}} for name in "abc"]
    await still.client.batch_create_tasks(parent=queue, requests=requests)
    assert shown("created_total") == 3, "of the batch, the one with a taken name was not created"
    await observe_tasks(still.s.database)
    assert shown("waiting") == 3
    still.worker.answers(200, 404, 500)
    assert await still.steps() == 3
    assert [shown("dispatches_total", answer=each) for each in ("2xx", "4xx", "5xx")] == [1, 1, 1]
    assert (shown("retries_total"), shown("given_up_total")) == (2, None)
    await still.s.clock.advance(61)
    assert await still.steps() == 2
    assert (shown("retries_total"), shown("given_up_total")) == (2, 2)
    assert shown("dispatch_seconds_count") == 5
    await observe_tasks(still.s.database)
    assert shown("waiting") == 0


async def test_no_answer_is_told_apart_from_a_late_one(still: TaskServerTestbed) -> None:
    queue = await counted(still, retry_config=LATER)
    before = shown("dispatches_total", answer="unreachable") or 0
    await still.client.create_task(parent=queue, task={"http_request": {"url": "http://127.0.0.1:9/"}})
    await still.steps()
    assert shown("dispatches_total", answer="unreachable") == before + 1


async def test_a_queue_that_is_gone_is_not_shown_for_ever(testbed: TaskServerTestbed) -> None:
    queue = await counted(testbed)
    await testbed.put("a", queue)
    await testbed.arrivals(1)
    await eventually(lambda: shown("dispatches_total", answer="2xx"))
    await testbed.client.delete_queue(name=queue)
    await eventually(lambda: shown("dispatches_total", answer="2xx") is None)
    await observe_tasks(testbed.s.database)
    assert (shown("created_total"), shown("waiting")) == (None, None)


async def test_a_server_beside_others_keeps_its_signing_key_known(stage: OpenStage) -> None:
    """What `payonce up` runs: without it every task would be refused when its key is forgotten."""
    async with stage() as s, open_server(s.database, s.notifier, dispatching=False) as server:
        await s.clock.advance(KEY_KEPT_S - 60)
        running = asyncio.create_task(TaskServer(server).run())

        async def is_known_anew() -> bool:
            return bool(
                await s.owner.fetchval(
                    "select created_at > payonce.due_now() - interval '1 hour' from cloudtasks.signing_keys"
                )
            )

        await eventually(is_known_anew, what="the key was said again")
        server.dispatcher.stop()
        await running


async def test_metrics_are_shown_beyond_the_loopback_only_when_told(still: TaskServerTestbed) -> None:
    for is_open, status in ((True, 200), (False, 403)):
        async with serving(probe_app(still.s.database, {}, is_open)) as url, aiohttp.ClientSession() as session:
            answer = await session.get(f"{url}/metrics")
            assert answer.status == status
            assert ("PAYONCE_METRICS" in await answer.text()) is not is_open
