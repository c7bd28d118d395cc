"""A purge leaves messages on which money may depend: without them nobody would find out what became of it."""

from typing import Any

import asyncpg
import pytest

from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter
from payonce.testing import OpenStage
from tests.engine.controls_stage import PAY, open_till


async def test_a_purge_leaves_messages_with_open_effects(stage: OpenStage) -> None:
    async with open_till(stage) as till:
        kept = (await till.in_review("p-1")).effect.message_id
        works = await till.claim(2)
        await till.pay(works[0], "p-paid")
        for work in works:
            await till.park(work, "a bug")
        preview = await till.s.admin.preview(PAY.queue, State.PARKED, Filter())
        assert (preview.count, preview.with_open_effects) == (3, 1)
        assert await till.s.admin.purge(PAY.queue, State.PARKED, Filter(), "ada") == 2
        [left] = await till.s.admin.peek(PAY.queue, State.PARKED, 10)
        assert left.message.id == kept


async def test_an_effect_that_was_begun_while_the_purge_looked_keeps_its_message(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was claimed, its effect begun, and it was parked again, between the read and the lock."""
    async with open_till(stage) as till:
        review = await till.in_review()
        await till.s.owner.execute("update payonce.effects set state = 'abandoned', review_cause = null")
        fetch = asyncpg.Connection.fetch

        async def begun_before_the_deletion(self: Any, statement: str, *arguments: Any, **options: Any) -> Any:
            if "delete from payonce.messages" in statement:
                await till.s.owner.execute("update payonce.effects set state = 'unknown'")
            return await fetch(self, statement, *arguments, **options)

        monkeypatch.setattr(asyncpg.Connection, "fetch", begun_before_the_deletion)
        assert await till.s.admin.purge(PAY.queue, State.PARKED, Filter(), "ada") == 0
        [left] = await till.s.admin.peek(PAY.queue, State.PARKED, 10)
        assert left.message.id == review.effect.message_id
