"""A service that cannot continue pauses its queue in its own transaction, once and with an error in the log."""

from contextlib import suppress

import pytest

from payonce.engine.audit import Severity, notes
from payonce.engine.messages.declarations import queue_declaration
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import begin
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage

WORK = Policy("work")


class Undone(Exception):
    """What rolls a transaction back."""


async def test_a_pause_is_there_if_and_only_if_its_transaction_commits(stage: OpenStage) -> None:
    async with stage() as s:
        await s.feed.declare([WORK])
        with suppress(Undone):
            async with begin(s.database, s.feed) as tx:
                assert await tx.pause(WORK.queue, "no key", by="service")
                raise Undone
        assert not (await s.admin.depth(WORK.queue)).paused
        assert await notes(s.read, location="queues.pause") == []
        async with begin(s.database, s.feed) as tx:
            assert await tx.pause(WORK.queue, "no key", by="service")
        assert (await s.admin.depth(WORK.queue)).paused
        [told] = await notes(s.read, location="queues.pause", severity=Severity.ERROR)
        assert (told.reference, told.actor) == (WORK.queue, "service")
        assert "no key; after the repair: payonce queues resume work" in told.text


async def test_whoever_paused_first_has_said_why(stage: OpenStage) -> None:
    async with stage() as s:
        await s.feed.declare([WORK])
        await s.admin.pause(WORK.queue, "the bank is closed", "ann")
        async with begin(s.database, s.feed) as tx:
            assert not await tx.pause(WORK.queue, "no key", by="service")
        found = await queue_declaration(s.read, WORK.queue)
        assert found is not None
        assert found.paused_reason == "the bank is closed"
        assert len(await notes(s.read, location="queues.pause")) == 1


async def test_a_queue_that_nobody_declared_cannot_be_paused(stage: OpenStage) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="there is no queue 'other'"):
            async with begin(s.database, s.feed) as tx:
                await tx.pause("other", "no key", by="service")
