"""What reaches the worker, when, and what its answers do."""

from tests.cloudtasks_server.desk import QUEUE, Desk


async def test_a_task_is_dispatched_at_once_and_is_gone_after_a_2xx(desk: Desk) -> None:
    await desk.queue()
    await desk.put(
        "first", **desk.http("/pay?x=1", body=b'{"token": "t"}', headers={"Content-Type": "application/json"})
    )
    [arrival] = await desk.arrivals(1)
    assert (arrival.method, arrival.path, arrival.body) == ("POST", "/pay?x=1", b'{"token": "t"}')
    assert arrival.headers["content-type"] == "application/json"
    await desk.emptied()


async def test_a_task_that_fails_comes_again_after_its_backoff(desk: Desk) -> None:
    await desk.queue(retry_config={"min_backoff": {"seconds": 60}, "max_backoff": {"seconds": 60}})
    desk.worker.answers(500, 200)
    await desk.put("again")
    await desk.arrivals(1)
    await desk.s.clock.advance(59)
    await desk.arrivals(1)
    await desk.s.clock.advance(2)
    await desk.arrivals(2)
    await desk.emptied(QUEUE)
