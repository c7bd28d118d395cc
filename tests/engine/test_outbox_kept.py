"""Entries that live until settled: a queue elsewhere may lose everything, and nothing is lost or done twice."""

from dataclasses import replace
from datetime import timedelta

import pytest

from payonce.engine.inbox import accept
from payonce.engine.outbox import (
    Kept,
    overdue_kept,
    park_kept,
    parked_entries,
    postpone_kept,
    put_back,
    redrive_entries,
    settle_kept,
)
from payonce.engine.outbox.model import REPEAT_FOR_S
from payonce.engine.transaction import begin
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.outbox_stage import NAME, TERMS, Desk, open_desk

KEEPING = replace(TERMS, keeps=True, ahead_s=86_400)
LATE_S = 60.0


async def overdue(desk: Desk) -> list[Kept]:
    return await overdue_kept(desk.s.database, NAME, late_s=LATE_S, limit=100)


async def test_a_kept_entry_lives_until_it_is_settled_with_its_business(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        assert await desk.states() == {"delivered": 1}
        assert await desk.step() == 0
        async with begin(desk.s.database, desk.s.feed) as tx:
            assert await accept(tx, "books", sent)
            assert await settle_kept(tx.connection, NAME, sent)
        assert await desk.states() == {}
        async with begin(desk.s.database, desk.s.feed) as tx:
            assert not await settle_kept(tx.connection, NAME, sent)


async def test_what_the_other_side_lost_is_put_back_with_attempts_and_due_time(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        due = await desk.s.clock.now() + timedelta(seconds=500)
        async with desk.s.database.transaction() as connection:
            assert await postpone_kept(connection, NAME, sent, attempts=0, delay_s=500, reason="vendor is down")
        await desk.s.clock.advance(500 + LATE_S - 1)
        assert await overdue(desk) == []
        await desk.s.clock.advance(1)
        found = await overdue(desk)
        assert found == [Kept(sent, "payments", 1, due)]
        assert await put_back(desk.s.database, NAME, found) == 1
        await desk.step()
        again = desk.broker.received[1]
        assert (again.message.attempts, again.ready_at) == (1, due)
        assert await desk.states() == {"delivered": 1}


async def test_a_refill_goes_on_where_the_page_before_ended(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        ids = await desk.put(25)
        while await desk.step():
            pass
        await desk.s.clock.advance(LATE_S)
        seen: list[Kept] = []
        while page := await overdue_kept(
            desk.s.database, NAME, late_s=LATE_S, limit=10, after=seen[-1] if seen else None
        ):
            seen += page
        assert [each.id for each in seen] == sorted(ids)


async def test_what_was_settled_or_retried_since_it_was_looked_at_is_not_put_back(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        settled, retried, parked, lost = await desk.put(4)
        await desk.step()
        await desk.s.clock.advance(LATE_S)
        found = await overdue(desk)
        async with desk.s.database.transaction() as connection:
            await settle_kept(connection, NAME, settled)
            await postpone_kept(connection, NAME, retried, attempts=0, delay_s=0, reason="later")
            await park_kept(connection, NAME, parked, attempts=0, reason="never")
        assert await put_back(desk.s.database, NAME, found) == 1
        assert (await desk.row(lost))["state"] == "waiting"
        assert await put_back(desk.s.database, NAME, found) == 0


async def test_parked_money_is_not_run_again(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await park_kept(connection, NAME, sent, attempts=0, reason="gave up, token=abcdefghijkl")
        await desk.s.clock.advance(10 * 86_400)
        assert await overdue(desk) == []
        assert await desk.step() == 0
        [shown] = await parked_entries(desk.s.database, NAME)
        assert (shown.message.attempts, shown.last_error) == (1, "gave up, token=[redacted]")
        await redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann")
        await desk.step()
        assert desk.broker.received[1].message.attempts == 0


async def test_a_run_that_was_taken_over_neither_retries_nor_parks(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await postpone_kept(connection, NAME, sent, attempts=0, delay_s=100, reason="by the successor")
            assert not await postpone_kept(connection, NAME, sent, attempts=0, delay_s=0, reason="stale")
            assert not await park_kept(connection, NAME, sent, attempts=0, reason="stale")
        row = await desk.row(sent)
        assert (row["state"], row["attempts"], row["last_error"]) == ("delivered", 1, "by the successor")


async def test_a_settle_while_it_is_delivered_again_ends_it(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        step = await desk.stand_still()
        async with desk.s.database.transaction() as connection:
            assert await settle_kept(connection, NAME, sent)
        assert desk.broker.resume is not None
        desk.broker.resume.set()
        await step
        assert await desk.states() == {}


async def test_a_park_while_it_is_delivered_again_holds(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        step = await desk.stand_still()
        async with desk.s.database.transaction() as connection:
            assert await park_kept(connection, NAME, sent, attempts=0, reason="never")
        assert desk.broker.resume is not None
        desk.broker.resume.set()
        await step
        assert await desk.states() == {"parked": 1}


async def test_kept_entries_are_put_back_at_any_age(stage: OpenStage) -> None:
    """Nobody has taken in what is not settled, so repeating it does nothing twice."""
    async with open_desk(stage, KEEPING) as desk:
        await desk.put()
        await desk.step()
        await desk.s.clock.advance(10 * REPEAT_FOR_S)
        assert await put_back(desk.s.database, NAME, await overdue(desk)) == 1
        assert await desk.step() == 1
        assert await desk.states() == {"delivered": 1}


async def test_a_refill_and_a_delay_have_bounds(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        with pytest.raises(Invalid, match="limit is 0"):
            await overdue_kept(desk.s.database, NAME, late_s=0, limit=0)
        with pytest.raises(Invalid, match="delay_s is -1"):
            async with desk.s.database.transaction() as connection:
                await postpone_kept(connection, NAME, sent, attempts=0, delay_s=-1, reason="x")
