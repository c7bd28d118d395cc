"""Repeated messages are accepted once, in the transaction that does their business."""

import asyncio

import pytest

from payonce.engine.janitors.prune import Prune
from payonce.engine.messages.inbox import KEEP_S, accept, forget_accepted
from payonce.engine.messages.transaction import begin
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, Stage, eventually
from tests.locks import waits_for_a_lock


async def taken(s: Stage, consumer: str, what: object) -> bool:
    async with begin(s.database, s.feed) as tx:
        return await accept(tx, consumer, str(what))


async def count(s: Stage) -> int:
    return int(await s.owner.fetchval("select count(*) from payonce.inbox"))


async def test_an_id_is_taken_in_once_by_each_consumer(stage: OpenStage) -> None:
    async with stage() as s:
        what = new_id()
        assert [await taken(s, "a", what), await taken(s, "a", what), await taken(s, "b", what)] == [True, False, True]


async def test_what_was_rolled_back_is_taken_in_the_next_time(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.database.work.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            assert await accept(connection, "a", "evt-1")
            await transaction.rollback()
        assert await taken(s, "a", "evt-1")


@pytest.mark.parametrize("commits", [True, False])
async def test_of_two_at_once_the_second_waits_and_follows_how_the_first_ended(stage: OpenStage, commits: bool) -> None:
    async with stage() as s:
        async with s.database.work.acquire() as connection:
            first = connection.transaction()
            await first.start()
            assert await accept(connection, "a", "evt-1")
            second = asyncio.create_task(taken(s, "a", "evt-1"))
            await eventually(lambda: waits_for_a_lock(s))
            assert not second.done()
            await (first.commit() if commits else first.rollback())
        assert await second is not commits


async def test_of_many_at_once_one_takes_it(stage: OpenStage) -> None:
    async with stage() as s, stage() as other:
        answers = await asyncio.gather(*(taken(at, "a", "evt-1") for at in (s, other) * 8))
        assert answers.count(True) == 1


async def test_an_id_is_remembered_for_as_long_as_it_may_come_again(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await taken(s, "a", "old")
        await s.clock.advance(KEEP_S - 1)
        await taken(s, "a", "young")
        assert await forget_accepted(s.database) == 0
        assert not await taken(s, "a", "old")
        await s.clock.advance(1)
        assert await forget_accepted(s.database) == 1
        assert not await taken(s, "a", "young")
        assert await count(s) == 1


async def test_forgetting_goes_in_bounded_batches(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await s.owner.execute(
            "insert into payonce.inbox (consumer, id) select 'a', n::text from generate_series(1, 95) n"
        )
        await s.clock.advance(KEEP_S)
        monkeypatch.setattr("payonce.engine.messages.inbox.FORGET_IDS", 10)
        monkeypatch.setattr("payonce.engine.messages.inbox.FORGET_BATCHES_MAX", 4)
        assert [await forget_accepted(s.database) for _ in range(4)] == [40, 40, 15, 0]


async def test_the_janitor_forgets(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        await taken(s, "a", "old")
        await s.clock.advance(KEEP_S)
        await Prune(s.database).tick()
        assert await count(s) == 0


async def test_forgetting_sooner_than_senders_repeat_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="senders repeat"):
            await forget_accepted(s.database, KEEP_S - 1)


async def test_what_was_taken_in_cannot_be_rewritten(stage: OpenStage) -> None:
    async with stage() as s:
        await taken(s, "a", "evt-1")
        with pytest.raises(Exception, match="permission denied"):
            await s.database.work.execute("update payonce.inbox set accepted_at = 'epoch'")


@pytest.mark.parametrize(("consumer", "what"), [("", "1"), ("a", ""), ("a", "x" * 201), ("a", "\x00")])
async def test_senseless_names_are_refused(stage: OpenStage, consumer: str, what: str) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="inbox"):
            await taken(s, consumer, what)
