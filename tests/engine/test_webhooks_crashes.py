"""A worker that dies between sending and recording: the receiver gets the event twice, under one id."""

import asyncio

from payonce.engine.webhooks import attempts, deliver
from payonce.testing import OpenStage
from tests.engine.webhooks_stage import Post, open_post


async def die_with_the_request_heard(post: Post) -> None:
    """In-process cancellation stands for the kill: it takes effect where the process waits for the answer."""
    post.shop.resume = asyncio.Event()
    step = asyncio.create_task(post.worker.step())
    await post.shop.heard.wait()
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    post.shop.resume.set()
    post.shop.resume = None


async def test_what_was_sent_and_not_recorded_is_sent_again_under_the_same_id(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        event_id = await post.announce()
        await die_with_the_request_heard(post)
        assert await post.states() == ["pending"]
        await post.s.clock.advance_leases(31)
        assert await post.worker.reap() == 1
        await post.run()
        assert [request.id for request in post.shop.arrived] == [event_id, event_id]
        assert len({request.body for request in post.shop.arrived}) == 1
        [told] = await post.deliveries()
        assert (told.state, len(await attempts(post.s.read, told.id))) == ("delivered", 1)


async def test_a_stopped_worker_that_wakes_late_changes_nothing(stage: OpenStage) -> None:
    """Its lease has ended and another run has delivered: its own answer does not overwrite that."""
    async with open_post(stage) as post:
        await post.add()
        await post.announce()
        post.shop.resume = asyncio.Event()
        late = asyncio.create_task(post.worker.step())
        await post.shop.heard.wait()
        standing, post.shop.resume = post.shop.resume, None
        await post.s.clock.advance_leases(31)
        other = await post.s.worker(deliver, resources=[post.sender])
        assert await other.reap() == 1
        assert await other.step()
        [told] = await post.deliveries()
        assert told.state == "delivered"
        standing.set()
        await asyncio.gather(late)
        assert (await post.deliveries(), len(await attempts(post.s.read, told.id))) == ([told], 1)
