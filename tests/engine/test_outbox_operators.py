"""Operators' view of the outbox and their actions on it, and the janitor that delivers it."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
import structlog

from payonce.engine.janitors import Janitor, run_janitors, run_ticks
from payonce.engine.janitors.gauges import refresh_metrics
from payonce.engine.janitors.relay import carry_on
from payonce.engine.messages.transaction import begin
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.engine.outbox import (
    EVENTS,
    LogRelay,
    Refusal,
    declare_relays,
    discard_entries,
    lag,
    parked_entries,
    pause_relay,
    redrive_entries,
    resume_relay,
    wake_name,
)
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, eventually
from tests.engine.outbox_stage import CONFIG, NAME, AppContext, Broker, open_context

PARKING = replace(CONFIG, refusals_max=1)


async def park(context: AppContext, count: int) -> list[UUID]:
    ids = await context.put(count)
    context.broker.faults |= dict.fromkeys(ids, Refusal("unknown topic"))
    while await context.step():
        pass
    return ids


async def noted(context: AppContext) -> list[tuple[str, str, str]]:
    rows = await context.s.owner.fetch("select location, reference, actor from payonce.audit_log order by id")
    return [tuple(row) for row in rows]


def gauge(name: str, relay: str = NAME) -> float | None:
    return REGISTRY.get_sample_value(f"payonce_outbox_{name}", {"relay": relay})


async def test_lag_is_counted_from_when_the_oldest_undelivered_entry_fell_due(stage: OpenStage) -> None:
    async with open_context(stage, PARKING) as context:
        await park(context, 2)
        await context.put(1, delay_s=10)
        await context.s.clock.advance(30)
        await context.put(2)
        await context.stand_still()
        await context.put(1, delay_s=3_600)
        [found] = await lag(context.s.database)
        assert (found.relay, found.waiting, found.delivered, found.parked) == (NAME, 4, 0, 2)
        assert found.oldest_s == 20
        assert not found.paused


async def test_a_retry_does_not_hide_how_long_an_entry_has_been_on_its_way(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put()
        context.broker.away = ConnectionResetError("reset")
        for _ in range(5):
            await context.step()
            await context.s.clock.advance(100)
        assert [each.oldest_s for each in await lag(context.s.database)] == [500]


async def test_an_empty_outbox_lags_behind_nothing(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        assert [(each.waiting, each.oldest_s) for each in await lag(context.s.database)] == [(0, 0)]


async def test_the_gauges_say_what_is_in_the_store(stage: OpenStage) -> None:
    async with open_context(stage, PARKING) as context:
        await park(context, 1)
        await context.put(3)
        await context.s.clock.advance(42)
        await refresh_metrics(context.s.database, context.s.admin)
        assert (gauge("waiting"), gauge("lag_seconds"), gauge("parked")) == (3, 42, 1)


async def test_parked_entries_are_listed_page_by_page_with_their_reasons(stage: OpenStage) -> None:
    async with open_context(stage, PARKING) as context:
        ids = await park(context, 25)
        seen: list[UUID] = []
        while page := await parked_entries(context.s.database, NAME, 10, seen[-1] if seen else None):
            assert {each.last_error for each in page} == {"refused 1 times: unknown topic"}
            seen += [each.message.id for each in page]
        assert sorted(seen) == sorted(ids)
        assert len(set(seen)) == 25


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_a_page_has_a_bound(stage: OpenStage, limit: int) -> None:
    async with open_context(stage) as context:
        with pytest.raises(Invalid, match=f"limit is {limit}"):
            await parked_entries(context.s.database, NAME, limit)


async def test_a_redrive_starts_over_with_those_named_or_all(stage: OpenStage) -> None:
    async with open_context(stage, PARKING) as context:
        one, *others = await park(context, 5)
        context.broker.faults.clear()
        assert await redrive_entries(context.s.database, context.s.notifier, NAME, by="ann", ids=[one, new_id()]) == 1
        assert await context.step() == 1
        assert context.broker.times() == {one: 1}
        assert await redrive_entries(context.s.database, context.s.notifier, NAME, by="ann") == 4
        await context.step()
        assert set(context.broker.times()) == {one, *others}
        assert await noted(context) == [("outbox.redrive", NAME, "ann")] * 2


async def test_what_is_parked_again_while_redriving_stays(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_context(stage, PARKING) as context:
        await park(context, 5)
        await context.s.clock.thaw()
        monkeypatch.setattr("payonce.engine.outbox.admin.CHANGE_BATCH", 1)
        redriving = asyncio.create_task(redrive_entries(context.s.database, context.s.notifier, NAME, by="ann"))
        while not redriving.done():
            await context.step()
        assert await redriving == 5


async def test_discarding_leaves_a_line_of_each(stage: OpenStage) -> None:
    async with open_context(stage, PARKING) as context:
        gone, kept = await park(context, 2)
        [waiting] = await context.put()
        assert await discard_entries(context.s.database, NAME, [gone, waiting], by="ann", why="the shop closed") == 1
        assert [each.message.id for each in await parked_entries(context.s.database, NAME)] == [kept]
        assert await noted(context) == [("outbox.discard", str(gone), "ann")]
        with pytest.raises(Invalid, match="give a reason"):
            await discard_entries(context.s.database, NAME, [kept], by="ann", why=" ")
        with pytest.raises(Invalid, match="name 1 to 100"):
            await discard_entries(context.s.database, NAME, [], by="ann", why="all")


async def test_a_paused_relay_delivers_nothing_and_loses_nothing(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await pause_relay(context.s.database, NAME, by="ann", reason="the broker moves house")
        ids = await context.put(2)
        assert await context.step() == 0
        [found] = await lag(context.s.database)
        assert (found.paused, found.paused_reason, found.waiting) == (True, "the broker moves house", 2)
        await resume_relay(context.s.database, context.s.notifier, NAME, by="bob")
        assert await context.step() == 2
        assert context.broker.times() == dict.fromkeys(ids, 1)
        assert await noted(context) == [("outbox.pause", NAME, "ann"), ("outbox.resume", NAME, "bob")]


async def test_an_unknown_relay_is_named_with_those_that_are_known(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        for asking in (
            parked_entries(context.s.database, "brokr"),
            redrive_entries(context.s.database, context.s.notifier, "brokr", by="ann"),
            discard_entries(context.s.database, "brokr", [new_id()], by="ann", why="x"),
            pause_relay(context.s.database, "brokr", by="ann", reason="x"),
            resume_relay(context.s.database, context.s.notifier, "brokr", by="ann"),
        ):
            with pytest.raises(Invalid, match="there is no relay 'brokr'; known are: broker"):
                await asking


async def test_a_commit_wakes_the_relay(stage: OpenStage) -> None:
    """Its janitor would otherwise run again in an hour."""
    async with open_context(stage) as context:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            await carry_on(context.s.database, context.broker)
            ticks += 1

        running = asyncio.create_task(run_ticks([Janitor("relay", 3_600.0, tick, wake_name(NAME))], context.s.notifier))
        await eventually(lambda: ticks == 1)

        async def delivered() -> bool:
            # Repeatedly, because the notifier may not be listening yet.
            async with begin(context.s.database, context.s.feed) as tx:
                await tx.publish("payments", {}, to=NAME)
            return bool(context.broker.received)

        await eventually(delivered)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_janitors_carry_every_relay_on(stage: OpenStage) -> None:
    async with stage() as s:
        brokers = [Broker("one"), Broker("two")]
        await declare_relays(s.database, brokers)
        running = asyncio.create_task(
            run_janitors(s.database, s.feed, s.admin, holder="a", relays=brokers, notifier=s.notifier)
        )
        for broker in brokers:
            sent = await AppContext(s, broker).put(25)
            await eventually(lambda: len(broker.received) == 25)  # noqa: B023
            assert broker.times() == dict.fromkeys(sent, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_broker_that_is_away_is_asked_once_a_tick(stage: OpenStage) -> None:
    """A backlog of thousands must not be tried in one go, each batch with a time-out of its own."""
    async with open_context(stage) as context:
        await context.put(50)
        suspects = "select id from payonce.outbox order by id desc limit 5"
        await context.s.owner.execute(f"update payonce.outbox set suspect = true where id in ({suspects})")
        context.broker.away = TimeoutError()
        await carry_on(context.s.database, context.broker)
        assert context.broker.calls == [10]
        context.broker.away = None
        await carry_on(context.s.database, context.broker)
        assert len(context.broker.received) == 40
        assert context.broker.calls[1:] == [10, 1, 1, 1, 1, 1, 10, 10, 5]


async def test_events_become_lines_of_the_log(stage: OpenStage) -> None:
    async with stage() as s:
        relay = LogRelay()
        await declare_relays(s.database, [relay])
        async with begin(s.database, s.feed, "t-1") as tx:
            sent = await tx.publish("escrow.settled", {"minor": 5}, correlation_id="order-1", key="k")
        with structlog.testing.capture_logs() as lines:
            assert await carry_on(s.database, relay) == 1
        [line] = lines
        assert {name: line[name] for name in ("event", "log_level", "topic", "id", "trace_id", "payload")} == {
            "event": "event_published",
            "log_level": "info",
            "topic": "escrow.settled",
            "id": str(sent),
            "trace_id": "t-1",
            "payload": {"minor": 5},
        }
        assert relay.name == EVENTS
        assert await s.owner.fetchval("select count(*) from payonce.outbox") == 0
