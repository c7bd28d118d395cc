"""Replays: the same event id and bytes, for one delivery or a period, each event once."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from payonce.engine.webhooks import (
    DeliveryState,
    Range,
    count_range,
    deliveries,
    delivery,
    disable_endpoint,
    enable_endpoint,
    replay,
    replay_range,
)
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.webhooks_stage import Post, Say, open_post

DAY_S = 86_400.0


async def replay_all(post: Post, which: Range, batch: int = 500) -> int:
    total, after = 0, None
    while True:
        async with post.s.begin() as tx:
            done = await replay_range(tx, which, by="ada", why="they were away", after=after, batch=batch)
        total, after = total + done.count, done.last
        if after is None:
            return total


async def whole(post: Post, endpoint_id: Any, **options: Any) -> Range:
    """Everything up to now; the present moment is not in the past yet."""
    now = await post.s.clock.advance(1)
    return Range(endpoint_id, now - timedelta(days=30), now, **options)


async def test_a_delivered_event_is_sent_again_under_its_own_id(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        event_id = await post.announce(trace_id="payment-7")
        await post.run()
        [first] = await post.deliveries()
        async with post.s.begin() as tx:
            again = await replay(tx, first.id, by="ada", why="they lost it")
        await post.run()
        assert [request.id for request in post.shop.arrived] == [event_id] * 2
        assert len({request.body for request in post.shop.arrived}) == 1
        made = await delivery(post.s.read, again)
        assert (made.state, made.replay_of, made.trace_id) == ("delivered", first.id, "payment-7")
        assert (await post.notes())[-1] == ("ada", f"replayed {event_id} to SHOP as {again}: they lost it")


async def test_a_replay_takes_the_place_of_what_still_waits(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        await post.add()
        post.shop.answers = [Say(500)]
        await post.announce()
        await post.run()
        [waiting] = await post.deliveries()
        async with post.s.begin() as tx:
            await replay(tx, waiting.id, by="ada", why="they are back")
        await post.run(2 * DAY_S)
        assert len(post.shop.arrived) == 2, "once in vain and once for the replay"
        assert await post.states() == ["skipped", "delivered"]


async def test_what_was_missed_in_a_time_is_replayed_each_event_once(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        before = await post.announce()
        await post.run()
        post.shop.usual = Say(500)
        lost = [await post.announce() for _ in range(3)]
        await post.run(2 * DAY_S)
        async with post.s.begin() as tx:
            await disable_endpoint(tx, made.id, by="ada", reason="away")
        lost += [await post.announce() for _ in range(2)]
        async with post.s.begin() as tx:
            await enable_endpoint(tx, made.id, by="ada")
        post.shop.usual, post.shop.arrived[:] = Say(204), []
        which = await whole(post, made.id)
        assert await count_range(post.s.read, which) == 5
        assert await replay_all(post, which, batch=2) == 5
        assert await replay_all(post, which) == 0, "they are pending"
        await post.run()
        assert sorted(request.id for request in post.shop.arrived) == sorted(lost)
        assert before not in lost
        assert await replay_all(post, await whole(post, made.id)) == 0, "they are delivered"
        assert await replay_all(post, which) == 0


async def test_a_range_replays_by_type_time_and_state(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        await post.announce("invoice.paid")
        await post.announce("plan.changed")
        await post.run()
        await post.s.clock.advance(60)
        middle = await post.now()
        await post.announce("invoice.paid")
        await post.run()
        states = (DeliveryState.DELIVERED,)
        assert await count_range(post.s.read, await whole(post, made.id)) == 0
        assert await count_range(post.s.read, await whole(post, made.id, states=states)) == 3
        assert await count_range(post.s.read, await whole(post, made.id, states=states, event_type="invoice.paid")) == 2
        early = Range(made.id, middle - timedelta(hours=1), middle, states)
        assert await replay_all(post, early) == 2
        await post.run()
        assert len(post.shop.arrived) == 5


async def test_a_range_of_successes_ends_although_workers_deliver_meanwhile(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        for _ in range(4):
            await post.announce()
        await post.run()
        which, after, rounds = await whole(post, made.id, states=(DeliveryState.DELIVERED,)), None, 0
        while rounds == 0 or after is not None:
            async with post.s.begin() as tx:
                after = (await replay_range(tx, which, by="ada", why="all", after=after, batch=1)).last
            await post.run()
            rounds += 1
            assert rounds <= 6, "a replay would be replayed for ever"
        assert len(post.shop.arrived) == 8


async def test_two_who_replay_at_once_send_each_event_once(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        async with post.s.begin() as tx:
            await disable_endpoint(tx, made.id, by="ada", reason="away")
        lost = [await post.announce() for _ in range(20)]
        async with post.s.begin() as tx:
            await enable_endpoint(tx, made.id, by="ada")
        which = await whole(post, made.id)
        counts = await asyncio.gather(*(replay_all(post, which, batch=7) for _ in range(3)))
        await post.run()
        assert sum(counts) == 20
        assert sorted(request.id for request in post.shop.arrived) == sorted(lost)


async def test_a_replay_that_makes_no_sense_is_refused(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add()
        await post.announce()
        await post.run()
        [first] = await post.deliveries()
        with pytest.raises(Invalid, match="there is no delivery"):
            async with post.s.begin() as tx:
                await replay(tx, uuid4(), by="ada", why="x")
        async with post.s.begin() as tx:
            await disable_endpoint(tx, made.id, by="ada", reason="away")
        with pytest.raises(Invalid, match="is disabled: away; enable it first"):
            async with post.s.begin() as tx:
                await replay(tx, first.id, by="ada", why="x")
        now = await post.now()
        with pytest.raises(Invalid, match="which is in the future"):
            async with post.s.begin() as tx:
                await replay_range(tx, Range(made.id, now, now + timedelta(seconds=1)), by="ada", why="x")
        with pytest.raises(Invalid, match="which is not after"):
            Range(made.id, now, now)
        with pytest.raises(Invalid, match="are under way"):
            Range(made.id, now, now + timedelta(1), (DeliveryState.PENDING,))


async def test_deliveries_are_listed_page_by_page(stage: OpenStage) -> None:
    async with open_post(stage) as post:
        made, _ = await post.add("a", "b")
        other, _ = await post.add("b")
        post.shop.answers = [Say(410)]
        for _ in range(3):
            await post.announce("a")
            await post.run()
            await post.s.clock.advance(1)
        event_id = await post.announce("b")
        everything = await deliveries(post.s.read)
        assert len(everything) == 5
        first = await deliveries(post.s.read, limit=2)
        second = await deliveries(post.s.read, limit=3, before=first[-1].id)
        assert [*first, *second] == everything
        for which, count in (
            ({"endpoint_id": made.id}, 4),
            ({"endpoint_id": other.id}, 1),
            ({"event_id": event_id}, 2),
            ({"event_type": "a"}, 3),
            ({"state": DeliveryState.FAILED}, 1),
            ({"state": DeliveryState.SKIPPED}, 3),
            ({"since": everything[0].created_at}, 2),
            ({"until": everything[0].created_at}, 3),
        ):
            assert len(await deliveries(post.s.read, **which)) == count, which


async def test_old_events_leave_with_everything_and_those_under_way_stay(stage: OpenStage) -> None:
    from payonce.engine.webhooks.retention import forget_events

    async with open_post(stage) as post:
        await post.add("done")
        await post.add("never", url="http://127.0.0.1:1/")
        await post.announce("done")
        await post.run()
        await post.s.admin.pause("webhook-deliveries", "a long holiday")
        waiting = await post.announce("never")
        await post.s.clock.advance(31 * DAY_S)
        fresh = await post.announce("done")
        assert await forget_events(post.s.database, 30) == 1
        assert {each.event_id for each in await post.deliveries()} == {waiting, fresh}
        assert await post.s.owner.fetchval("select count(*) from payonce.webhook_attempts") == 0
