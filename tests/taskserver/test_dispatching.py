"""What reaches the worker, when, and what its answers do."""

from datetime import timedelta

import pytest

from payonce.testing import eventually
from tests.taskserver.testbed import QUEUE, TaskServerTestbed

MINUTE = {"min_backoff": {"seconds": 60}, "max_backoff": {"seconds": 60}, "max_attempts": -1}


async def test_a_task_is_dispatched_at_once_and_is_gone_after_a_2xx(testbed: TaskServerTestbed) -> None:
    await testbed.queue()
    body = b'{"token": "t"}'
    await testbed.put("first", **testbed.http("/pay?x=1", body=body, headers={"Content-Type": "application/json"}))
    [arrival] = await testbed.arrivals(1)
    assert (arrival.method, arrival.path, arrival.body) == ("POST", "/pay?x=1", body)
    assert arrival.headers["content-type"] == "application/json"
    await testbed.emptied()


async def test_a_task_that_fails_comes_again_after_its_backoff_and_not_before(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=MINUTE)
    still.worker.answers(500, 200)
    await still.put("again")
    assert await still.steps() == 1
    await still.s.clock.advance(59.9)
    assert await still.steps() == 0
    await still.s.clock.advance(0.2)
    assert await still.steps() == 1
    await still.emptied()


@pytest.mark.parametrize("status", [301, 302, 400, 404, 429, 500, 503])
async def test_only_a_2xx_is_a_success_and_no_redirect_is_followed(still: TaskServerTestbed, status: int) -> None:
    await still.queue(retry_config=MINUTE)
    still.worker.answers(status, location=f"{still.worker.url}/elsewhere")
    await still.put("kept")
    assert await still.steps() == 1
    assert [arrival.path for arrival in still.worker.arrived] == ["/"]
    kept = await still.client.get_task(name=f"{QUEUE}/tasks/kept")
    assert (kept.dispatch_count, kept.response_count) == (1, 1)
    assert f"HTTP status code {status}" in kept.last_attempt.response_status.message


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_every_2xx_is_a_success(still: TaskServerTestbed, status: int) -> None:
    await still.queue()
    still.worker.answers(status)
    await still.put("done")
    assert await still.steps() == 1
    await still.emptied()


async def test_retries_follow_googles_arithmetic(still: TaskServerTestbed) -> None:
    backoff = {"min_backoff": {"seconds": 10}, "max_backoff": {"seconds": 300}, "max_doublings": 3}
    await still.queue(retry_config=backoff)
    still.worker.answers(500)
    await still.put("slow")
    waits = []
    for _ in range(8):
        assert await still.steps() == 1
        task = await still.client.get_task(name=f"{QUEUE}/tasks/slow")
        waits.append((task.schedule_time - task.last_attempt.dispatch_time).total_seconds())
        await still.s.clock.advance(waits[-1])
    assert waits == [10, 20, 40, 80, 160, 240, 300, 300]


async def test_a_retry_config_of_the_task_stands_before_that_of_the_queue(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=MINUTE)
    still.worker.answers(500)
    await still.put("own", retry_config={"min_backoff": {"seconds": 7}, "max_backoff": {"seconds": 7}})
    assert await still.steps() == 1
    await still.s.clock.advance(7)
    assert await still.steps() == 1


async def test_a_longer_retry_after_stands_before_the_backoff(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=MINUTE)
    still.worker.answers(400, retry_after="300")
    await still.put("later")
    assert await still.steps() == 1
    await still.s.clock.advance(299)
    assert await still.steps() == 0
    await still.s.clock.advance(1)
    assert await still.steps() == 1


async def test_a_task_is_given_up_after_its_last_attempt(still: TaskServerTestbed) -> None:
    await still.queue(retry_config={**MINUTE, "max_attempts": 3})
    still.worker.answers(500)
    await still.put("lost")
    for _ in range(5):
        await still.steps()
        await still.s.clock.advance(61)
    assert len(still.worker.arrived) == 3
    await still.emptied()


async def test_unlimited_attempts_with_a_duration_end_by_the_duration(still: TaskServerTestbed) -> None:
    await still.queue(retry_config={**MINUTE, "max_retry_duration": {"seconds": 150}})
    still.worker.answers(500)
    await still.put("timed")
    for _ in range(6):
        await still.steps()
        await still.s.clock.advance(60)
    assert len(still.worker.arrived) == 4, "at 0, 60, 120 and 180 s: the first after 150 s was the last"
    await still.emptied()


async def test_with_two_limits_both_must_be_reached(still: TaskServerTestbed) -> None:
    await still.queue(retry_config={**MINUTE, "max_attempts": 2, "max_retry_duration": {"seconds": 150}})
    still.worker.answers(500)
    await still.put("both")
    for _ in range(6):
        await still.steps()
        await still.s.clock.advance(60)
    assert len(still.worker.arrived) == 4


async def test_a_later_task_waits_for_its_time(still: TaskServerTestbed) -> None:
    await still.queue()
    at = await still.s.clock.now() + timedelta(days=29)
    created = await still.put("later", schedule_time=at)
    assert created.schedule_time == at
    assert await still.steps() == 0
    await still.s.clock.advance(29 * 86_400)
    assert await still.steps() == 1


async def test_a_task_of_the_past_is_scheduled_for_now(still: TaskServerTestbed) -> None:
    await still.queue()
    now = await still.s.clock.now()
    created = await still.put("past", schedule_time=now - timedelta(days=1))
    assert created.schedule_time == now


async def test_an_unreachable_worker_is_a_failure_without_a_response(still: TaskServerTestbed) -> None:
    await still.queue(retry_config=MINUTE)
    await still.put("nobody", http_request={"url": "http://127.0.0.1:9/"})
    assert await still.steps() == 1
    task = await still.client.get_task(name=f"{QUEUE}/tasks/nobody")
    assert (task.dispatch_count, task.response_count) == (1, 0)
    assert task.last_attempt.response_status.code == 14


async def test_a_request_past_its_deadline_is_let_go_and_tried_again(testbed: TaskServerTestbed) -> None:
    await testbed.queue(retry_config=MINUTE)
    testbed.worker.open.clear()
    await testbed.put("stuck", dispatch_deadline={"seconds": 15})
    await testbed.arrivals(1)
    await testbed.s.clock.advance(16)

    async def answered() -> bool:
        task = await testbed.client.get_task(name=f"{QUEUE}/tasks/stuck")
        return bool(task.last_attempt.response_status.code == 4 and task.response_count == 0)

    await eventually(answered, 30, "the attempt has ended")
    testbed.worker.open.set()
    await testbed.s.clock.advance(60)
    assert [each.headers["x-cloudtasks-taskretrycount"] for each in await testbed.arrivals(2)] == ["0", "1"]


async def test_run_task_minds_neither_time_nor_pause_nor_rate(still: TaskServerTestbed) -> None:
    await still.queue(rate_limits={"max_dispatches_per_second": 1}, retry_config=MINUTE)
    still.worker.answers(500)
    at = await still.s.clock.now() + timedelta(hours=1)
    await still.put("now", schedule_time=at)
    await still.client.pause_queue(name=QUEUE)
    for times in (1, 2, 3):
        await still.client.run_task(name=f"{QUEUE}/tasks/now")
        assert await still.steps() == 1
        task = await still.client.get_task(name=f"{QUEUE}/tasks/now")
        assert task.dispatch_count == times
        assert task.schedule_time == await still.s.clock.now() + timedelta(seconds=60)


async def test_many_tasks_all_arrive_once(testbed: TaskServerTestbed) -> None:
    await testbed.queue()
    operation = await testbed.client.batch_create_tasks(
        parent=QUEUE, requests=[{"parent": QUEUE, "task": testbed.http()} for _ in range(100)]
    )
    made = [task.name.rpartition("/")[2] for task in (await operation.result()).tasks]
    arrived = [arrival.task for arrival in await testbed.arrivals(100)]
    assert sorted(arrived) == sorted(made)
    await testbed.emptied()
