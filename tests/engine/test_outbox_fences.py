"""Relays that die, stop and overlap: an entry is delivered again, never lost, and nobody overwrites a successor."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from payonce.engine.messages.inbox import KEEP_S, forget_accepted
from payonce.engine.outbox import Deferred, redrive_entries, relay_step, relay_steps
from payonce.engine.outbox.model import ON_ITS_WAY_MAX_S, REPEAT_FOR_S, Refusal, decide
from payonce.engine.outbox.relay_steps import CRASHES_SUSPICIOUS, claim, reap, record
from payonce.testing import OpenStage, Stage
from tests.engine.outbox_stage import CONFIG, LEASE_S, AppContext, Broker, open_context


async def test_what_a_dead_relay_held_is_delivered_again_after_its_lease(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(3)
        await context.die()
        assert await context.step() == 0
        await context.s.clock.advance_leases(LEASE_S - 0.001)
        assert await context.step() == 0
        await context.s.clock.advance_leases(0.001)
        assert await context.step() == 3
        assert context.broker.times() == dict.fromkeys(ids, 2)
        assert await context.states() == {}


async def test_the_receivers_inbox_makes_it_once(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(3)
        await context.die()
        await context.let_lease_end()
        await context.step()
        taken = [await context.consume(entry) for entry in context.broker.received]
        assert taken == [True] * 3 + [False] * 3
        assert await context.business() == dict.fromkeys(map(str, ids), 1)


async def test_relays_at_once_never_deliver_the_same_within_the_lease(stage: OpenStage) -> None:
    async with open_context(stage) as context, stage() as other:
        ids = await context.put(100)
        resume = asyncio.Event()
        brokers = [Broker(resume=resume) for _ in range(6)]

        async def drain(broker: Broker, at: Stage) -> None:
            while await relay_step(at.database, broker):
                pass

        # Six hold a batch each while a seventh takes whatever is left.
        context.running += [
            asyncio.create_task(drain(each, other if number % 2 else context.s)) for number, each in enumerate(brokers)
        ]
        await asyncio.gather(*(each.arrived.wait() for each in brokers))
        await drain(context.broker, context.s)
        resume.set()
        await asyncio.gather(*context.running)
        delivered = [[entry.message.id for entry in each.received] for each in (*brokers, context.broker)]
        assert sorted(id_ for each in delivered for id_ in each) == sorted(ids)
        assert list(map(len, delivered)) == [CONFIG.batch] * 6 + [100 - 6 * CONFIG.batch]


async def test_a_batch_in_flight_is_left_alone_by_others(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put(3)
        await context.stand_still()
        other = Broker()
        assert await relay_step(context.s.database, other) == 0
        assert other.received == []


async def test_a_stale_relay_changes_nothing(stage: OpenStage) -> None:
    """It was stopped in its delivery; its successor was deferred, and the late answer must not delete the entry."""
    async with open_context(stage) as context:
        [entry_id] = await context.put()
        stopped = await context.stand_still()
        await context.let_lease_end()
        successor = Broker(faults={entry_id: Deferred("busy")})
        assert await relay_step(context.s.database, successor) == 1
        before = await context.row(entry_id)
        assert context.broker.resume is not None
        context.broker.resume.set()
        await stopped
        assert await context.row(entry_id) == before
        assert before["last_error"] == "busy"


async def test_a_stale_refusal_parks_nothing_that_a_successor_holds(stage: OpenStage) -> None:
    async with open_context(stage, replace(CONFIG, refusals_max=1)) as context:
        [entry_id] = await context.put()
        _, stale = await claim(context.s.database, context.broker, 10, suspects=False)
        await context.let_lease_end()
        await reap(context.s.database, context.broker)
        _, held = await claim(context.s.database, context.broker, 10, suspects=False)
        refused = [decide(context.broker.config, claimed, Refusal("no")) for claimed in stale]
        assert await record(context.s.database, context.broker, stale, refused) == set()
        assert await context.states() == {"leased": 1}
        refused = [decide(context.broker.config, claimed, Refusal("no")) for claimed in held]
        assert await record(context.s.database, context.broker, held, refused) == {entry_id}


async def test_a_relay_that_is_late_but_not_replaced_may_still_record(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put()
        stopped = await context.stand_still()
        await context.let_lease_end()
        assert context.broker.resume is not None
        context.broker.resume.set()
        await stopped
        assert await context.states() == {}


async def test_an_entry_that_kills_its_relays_goes_alone_and_is_then_parked(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(3)
        for _ in range(CRASHES_SUSPICIOUS):
            await context.die()
            await context.let_lease_end()
        assert context.broker.calls == [3, 3]
        await context.die()
        assert context.broker.calls == [3, 3, 1]
        await context.let_lease_end()
        assert await context.step() == 2
        assert context.broker.calls == [3, 3, 1, 1, 1]
        assert await context.states() == {"parked": 1}
        row = await context.row(ids[0])
        assert "died or stopped" in row["last_error"]
        assert "nothing beside it" in row["last_error"]


async def test_a_relay_that_was_stopped_before_its_delivery_does_not_begin_it(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_context(stage) as context:
        [entry_id] = await context.put()
        moments = iter([0.0, LEASE_S - CONFIG.timeout_s + 0.1])
        monkeypatch.setattr(relay_steps, "time", SimpleNamespace(monotonic=lambda: next(moments, 100.0)))
        await context.step()
        assert context.broker.calls == []
        assert (await context.row(entry_id))["state"] == "waiting"


async def test_what_was_first_tried_long_ago_is_parked_and_not_repeated(stage: OpenStage) -> None:
    """The receiver accepted it, the answer was lost, and by now it has forgotten: a repetition would do it twice."""
    async with open_context(stage) as context:
        [entry_id] = await context.put()
        await context.die()
        assert await context.consume(context.broker.received[0])
        await context.let_lease_end()
        await context.s.clock.advance(REPEAT_FOR_S + ON_ITS_WAY_MAX_S)
        assert await forget_accepted(context.s.database) == 1
        await context.step()
        for entry in context.broker.received[1:]:
            await context.consume(entry)
        assert await context.business() == {str(entry_id): 1}
        assert "too long ago to repeat" in (await context.row(entry_id))["last_error"]


async def test_only_a_person_lets_an_old_entry_be_repeated(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put()
        await context.die()
        await context.let_lease_end()
        await context.s.clock.advance(REPEAT_FOR_S)
        await context.step()
        await redrive_entries(context.s.database, context.s.notifier, context.broker.name, by="ann")
        await context.step()
        assert await context.states() == {"parked": 1}
        assert len(context.broker.received) == 1
        await redrive_entries(context.s.database, context.s.notifier, context.broker.name, by="ann", as_new=True)
        await context.step()
        assert len(context.broker.received) == 2


async def test_an_entry_that_was_never_tried_is_delivered_at_any_age(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put()
        await context.s.clock.advance(10 * REPEAT_FOR_S)
        assert await context.step() == 1
        assert len(context.broker.received) == 1


def test_an_inbox_remembers_longer_than_a_sender_repeats() -> None:
    assert KEEP_S >= REPEAT_FOR_S + ON_ITS_WAY_MAX_S


async def test_a_paused_relay_reaps_and_delivers_nothing_new(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put(2)
        await context.die()
        await context.s.owner.execute("update payonce.relays set paused = true")
        await context.let_lease_end()
        assert await context.step() == 0
        assert await context.states() == {"waiting": 2}
        await context.s.owner.execute("update payonce.relays set paused = false")
        assert await AppContext(context.s, context.broker).step() == 2
