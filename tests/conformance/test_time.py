"""The clocks that tests move: who may move them, and with which effect."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from payonce.engine.database.connections import Database
from payonce.engine.database.migrate import known_migrations
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.kit.outcomes import Unavailable
from payonce.testing import OpenStage, ScratchDatabase, eventually
from payonce.testing.clock import Clock, make_production_again

WORK = Policy("work", lease_s=30)
DAY_S = 86_400


async def test_an_advanced_due_clock_makes_messages_due_and_ends_no_lease(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(WORK)
        await s.feed.put([Message(queue="work"), Message(queue="work", delay_s=3_600)])
        [first] = (await queue.exchange([], 10)).claims
        await s.clock.advance(3_600)
        [second] = (await queue.exchange([], 10)).claims
        assert await queue.reap() == 0
        assert first.message.id != second.message.id


async def test_an_advanced_lease_clock_ends_leases_and_makes_nothing_due(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(WORK)
        await s.feed.put([Message(queue="work"), Message(queue="work", delay_s=60)])
        await queue.exchange([], 10)
        await s.clock.advance_leases(3_600)
        assert await queue.reap() == 1
        assert (await s.admin.depth("work")).delayed == 1


async def test_a_frozen_clock_stands_still_and_runs_on_when_thawed(stage: OpenStage) -> None:
    async with stage() as s:
        at = await s.clock.now() + timedelta(days=365)
        await s.clock.freeze(at)
        assert await s.clock.now() == await s.clock.now() == at
        await s.clock.thaw()
        assert await s.clock.now() > at
        assert await s.clock.now() < at + timedelta(minutes=5)


async def test_a_moved_clock_wakes_every_waiter(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(WORK)
        rung = asyncio.create_task(queue.wait(60))

        async def woken() -> bool:
            # The listener may not be up yet, so one move may go unnoticed.
            await s.clock.advance(1)
            return rung.done()

        await eventually(woken, within_s=30)


async def test_a_year_yields_twelve_renewals_each_at_its_time(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(WORK)
        start = await s.clock.freeze()
        await s.feed.put([Message(queue="work", delay_s=30 * DAY_S)])
        renewed: list[int] = []

        async def drain() -> None:
            for claim in (await queue.exchange([], 10)).claims:
                renewed.append((await s.clock.now() - start).days)
                await s.feed.put([Message(queue="work", delay_s=30 * DAY_S)])
                assert claim.claimed_at == await s.clock.now()

        hops = await s.clock.run_to(start + timedelta(days=365), drain)
        assert renewed == [30 * month for month in range(1, 13)]
        assert hops == 12
        assert await s.clock.now() == start + timedelta(days=365)


async def test_schedules_are_hopped_to_as_well(stage: OpenStage) -> None:
    async with stage() as s:
        start = await s.clock.freeze()
        await s.owner.execute(
            "insert into payonce.schedules (name, rule, next_at) values ('daily', '1 day', $1)",
            start + timedelta(days=1),
        )
        assert await s.clock.next_due() == start + timedelta(days=1)


async def test_time_does_not_run_backwards(stage: OpenStage) -> None:
    async with stage() as s:
        now = await s.clock.freeze()
        with pytest.raises(ValueError, match="pass a later time"):
            await s.clock.run_to(now - timedelta(seconds=1), s.clock.idle)


async def test_a_service_cannot_move_a_clock(scratch: ScratchDatabase) -> None:
    async with Clock.open(scratch.owner_url):
        service = await asyncpg.connect(scratch.service_url)
        try:
            for statement in (
                "create or replace function payonce.due_now() returns timestamptz language sql return 'epoch'::date",
                "update payonce.test_clock set due_offset = '1 hour'",
                "update payonce.installation set purpose = 'test'",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await service.execute(statement)
        finally:
            await service.close()


@pytest.mark.parametrize("clock", ["due_now", "lease_now"])
@pytest.mark.parametrize(
    "definition",
    [
        "stable return 'epoch'::timestamptz",
        "stable as $$ select 'epoch'::timestamptz $$",
        "volatile return statement_timestamp()",
    ],
    ids=["standard body", "quoted body", "volatile"],
)
async def test_start_up_refuses_a_moved_clock_in_production(
    scratch: ScratchDatabase, clock: str, definition: str
) -> None:
    async with Database.open(scratch.service_url) as database:
        await database.check(known_migrations(()))
        await as_owner(
            scratch, f"create or replace function payonce.{clock}() returns timestamptz language sql {definition}"
        )
        with pytest.raises(Unavailable, match="clock functions"):
            await database.check(known_migrations(()))


async def test_start_up_takes_moved_clocks_in_a_test_database_until_it_is_production_again(
    scratch: ScratchDatabase,
) -> None:
    async with Database.open(scratch.service_url) as database:
        async with Clock.open(scratch.owner_url) as clock:
            await clock.advance(DAY_S)
        await database.check(known_migrations(()))
        await as_owner(scratch, "update payonce.installation set purpose = 'production'")
        with pytest.raises(Unavailable, match="clock functions"):
            await database.check(known_migrations(()))
        await make_production_again(scratch.owner_url)
        await database.check(known_migrations(()))


async def as_owner(scratch: ScratchDatabase, statement: str) -> None:
    owner = await asyncpg.connect(scratch.owner_url)
    try:
        await owner.execute(statement)
    finally:
        await owner.close()
