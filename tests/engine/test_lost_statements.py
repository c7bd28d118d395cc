"""Statements that the store cancels, or that are lost with a connection, are repeated where they cannot have taken
effect."""

import asyncio
from collections.abc import Callable

import asyncpg

from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.testing import OpenStage, eventually
from tests.conformance.wire import on_the_wire

QUEUE = "lost-statements"
LISTENS = """select exists (select from pg_stat_activity
    where datname = current_database() and query ilike 'listen%' and state = 'idle')"""


def losing_the_first(words: str, error: Exception) -> tuple[list[str], Callable[[str], str]]:
    """The first statement with these words fails like this; all of them are listed."""
    met: list[str] = []

    def see(statement: str) -> str:
        if words in statement:
            met.append(statement)
            if len(met) == 1:
                raise error
        return statement

    return met, see


async def test_an_exchange_that_lost_a_deadlock_is_asked_for_again(stage: OpenStage) -> None:
    async with stage() as s:
        queue = await s.queue(Policy(QUEUE))
        await s.feed.put([Message(queue=QUEUE, payload={})])
        asked, see = losing_the_first("claimed as", asyncpg.DeadlockDetectedError("deadlock detected"))
        with on_the_wire(see):
            exchange = await queue.exchange([], 1)
        assert (len(exchange.claims), len(asked)) == (1, 2)


async def test_a_ring_that_was_lost_with_its_connection_is_heard_over_the_next(stage: OpenStage) -> None:
    async with stage() as s:
        rung = asyncio.Event()
        s.notifier.subscribe(QUEUE, rung)
        # An earlier notification is not kept for a later listener.
        await eventually(lambda: s.database.work.fetchval(LISTENS), what="the notifier listens")
        sent, see = losing_the_first("pg_notify", asyncpg.InterfaceError("connection is closed"))
        with on_the_wire(see):
            s.notifier.notify({QUEUE})
            await eventually(rung.is_set, what="the notifier is heard")
        assert len(sent) == 2
