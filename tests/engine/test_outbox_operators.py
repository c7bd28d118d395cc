"""What an operator sees of the outbox and may do to it, and the janitor that carries it on."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
import structlog

from payonce.engine.janitors import Janitor, run_janitors, run_ticks
from payonce.engine.janitors.gauges import observe
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
from tests.engine.outbox_stage import NAME, TERMS, Broker, Desk, open_desk

PARKING = replace(TERMS, refusals_max=1)


async def park(desk: Desk, count: int) -> list[UUID]:
    ids = await desk.put(count)
    desk.broker.faults |= dict.fromkeys(ids, Refusal("unknown topic"))
    while await desk.step():
        pass
    return ids


async def noted(desk: Desk) -> list[tuple[str, str, str]]:
    rows = await desk.s.owner.fetch("select location, reference, actor from payonce.audit_log order by id")
    return [tuple(row) for row in rows]


def gauge(name: str, relay: str = NAME) -> float | None:
    return REGISTRY.get_sample_value(f"payonce_outbox_{name}", {"relay": relay})


async def test_lag_is_counted_from_when_the_oldest_undelivered_entry_fell_due(stage: OpenStage) -> None:
    async with open_desk(stage, PARKING) as desk:
        await park(desk, 2)
        await desk.put(1, delay_s=10)
        await desk.s.clock.advance(30)
        await desk.put(2)
        await desk.stand_still()
        await desk.put(1, delay_s=3_600)
        [found] = await lag(desk.s.database)
        assert (found.relay, found.waiting, found.delivered, found.parked) == (NAME, 4, 0, 2)
        assert found.oldest_s == 20
        assert not found.paused


async def test_a_retry_does_not_hide_how_long_an_entry_has_been_on_its_way(stage: OpenStage) -> None:
    async with open_desk(stage) as desk:
        await desk.put()
        desk.broker.away = ConnectionResetError("reset")
        for _ in range(5):
            await desk.step()
            await desk.s.clock.advance(100)
        assert [each.oldest_s for each in await lag(desk.s.database)] == [500]


async def test_an_empty_outbox_lags_behind_nothing(stage: OpenStage) -> None:
    async with open_desk(stage) as desk:
        assert [(each.waiting, each.oldest_s) for each in await lag(desk.s.database)] == [(0, 0)]


async def test_the_gauges_say_what_is_in_the_store(stage: OpenStage) -> None:
    async with open_desk(stage, PARKING) as desk:
        await park(desk, 1)
        await desk.put(3)
        await desk.s.clock.advance(42)
        await observe(desk.s.database, desk.s.admin)
        assert (gauge("waiting"), gauge("lag_seconds"), gauge("parked")) == (3, 42, 1)


async def test_parked_entries_are_listed_page_by_page_with_their_reasons(stage: OpenStage) -> None:
    async with open_desk(stage, PARKING) as desk:
        ids = await park(desk, 25)
        seen: list[UUID] = []
        while page := await parked_entries(desk.s.database, NAME, 10, seen[-1] if seen else None):
            assert {each.last_error for each in page} == {"refused 1 times: unknown topic"}
            seen += [each.message.id for each in page]
        assert sorted(seen) == sorted(ids)
        assert len(set(seen)) == 25


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_a_page_has_a_bound(stage: OpenStage, limit: int) -> None:
    async with open_desk(stage) as desk:
        with pytest.raises(Invalid, match=f"limit is {limit}"):
            await parked_entries(desk.s.database, NAME, limit)


async def test_a_redrive_starts_over_with_those_named_or_all(stage: OpenStage) -> None:
    async with open_desk(stage, PARKING) as desk:
        one, *others = await park(desk, 5)
        desk.broker.faults.clear()
        assert await redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann", ids=[one, new_id()]) == 1
        assert await desk.step() == 1
        assert desk.broker.times() == {one: 1}
        assert await redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann") == 4
        await desk.step()
        assert set(desk.broker.times()) == {one, *others}
        assert await noted(desk) == [("outbox.redrive", NAME, "ann")] * 2


async def test_what_is_parked_again_while_redriving_stays(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_desk(stage, PARKING) as desk:
        await park(desk, 5)
        await desk.s.clock.thaw()
        monkeypatch.setattr("payonce.engine.outbox.admin.CHANGE_BATCH", 1)
        redriving = asyncio.create_task(redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann"))
        while not redriving.done():
            await desk.step()
        assert await redriving == 5


async def test_discarding_leaves_a_line_of_each(stage: OpenStage) -> None:
    async with open_desk(stage, PARKING) as desk:
        gone, kept = await park(desk, 2)
        [waiting] = await desk.put()
        assert await discard_entries(desk.s.database, NAME, [gone, waiting], by="ann", why="the shop closed") == 1
        assert [each.message.id for each in await parked_entries(desk.s.database, NAME)] == [kept]
        assert await noted(desk) == [("outbox.discard", str(gone), "ann")]
        with pytest.raises(Invalid, match="say why"):
            await discard_entries(desk.s.database, NAME, [kept], by="ann", why=" ")
        with pytest.raises(Invalid, match="name 1 to 100"):
            await discard_entries(desk.s.database, NAME, [], by="ann", why="all")


async def test_a_paused_relay_delivers_nothing_and_loses_nothing(stage: OpenStage) -> None:
    async with open_desk(stage) as desk:
        await pause_relay(desk.s.database, NAME, by="ann", reason="the broker moves house")
        ids = await desk.put(2)
        assert await desk.step() == 0
        [found] = await lag(desk.s.database)
        assert (found.paused, found.paused_reason, found.waiting) == (True, "the broker moves house", 2)
        await resume_relay(desk.s.database, desk.s.bell, NAME, by="bob")
        assert await desk.step() == 2
        assert desk.broker.times() == dict.fromkeys(ids, 1)
        assert await noted(desk) == [("outbox.pause", NAME, "ann"), ("outbox.resume", NAME, "bob")]


async def test_an_unknown_relay_is_named_with_those_that_are_known(stage: OpenStage) -> None:
    async with open_desk(stage) as desk:
        for asking in (
            parked_entries(desk.s.database, "brokr"),
            redrive_entries(desk.s.database, desk.s.bell, "brokr", by="ann"),
            discard_entries(desk.s.database, "brokr", [new_id()], by="ann", why="x"),
            pause_relay(desk.s.database, "brokr", by="ann", reason="x"),
            resume_relay(desk.s.database, desk.s.bell, "brokr", by="ann"),
        ):
            with pytest.raises(Invalid, match="there is no relay 'brokr'; known are: broker"):
                await asking


async def test_a_commit_wakes_the_relay(stage: OpenStage) -> None:
    """Its janitor would otherwise look again in an hour."""
    async with open_desk(stage) as desk:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            await carry_on(desk.s.database, desk.broker)
            ticks += 1

        running = asyncio.create_task(run_ticks([Janitor("relay", 3_600.0, tick, wake_name(NAME))], desk.s.bell))
        await eventually(lambda: ticks == 1)

        async def delivered() -> bool:
            # Again and again, because the bell may not be listening yet.
            async with begin(desk.s.database, desk.s.feed) as tx:
                await tx.publish("payments", {}, to=NAME)
            return bool(desk.broker.received)

        await eventually(delivered)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_janitors_carry_every_relay_on(stage: OpenStage) -> None:
    async with stage() as s:
        brokers = [Broker("one"), Broker("two")]
        await declare_relays(s.database, brokers)
        running = asyncio.create_task(
            run_janitors(s.database, s.feed, s.admin, holder="a", relays=brokers, bell=s.bell)
        )
        for broker in brokers:
            sent = await Desk(s, broker).put(25)
            await eventually(lambda: len(broker.received) == 25)  # noqa: B023
            assert broker.times() == dict.fromkeys(sent, 1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_broker_that_is_away_is_asked_once_a_tick(stage: OpenStage) -> None:
    """A backlog of thousands must not be tried in one go, each batch with a time-out of its own."""
    async with open_desk(stage) as desk:
        await desk.put(50)
        suspects = "select id from payonce.outbox order by id desc limit 5"
        await desk.s.owner.execute(f"update payonce.outbox set suspect = true where id in ({suspects})")
        desk.broker.away = TimeoutError()
        await carry_on(desk.s.database, desk.broker)
        assert desk.broker.calls == [10]
        desk.broker.away = None
        await carry_on(desk.s.database, desk.broker)
        assert len(desk.broker.received) == 40
        assert desk.broker.calls[1:] == [10, 1, 1, 1, 1, 1, 10, 10, 5]


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
