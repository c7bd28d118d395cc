"""Statements planned while the queue was empty find a few messages among many as quickly as before."""

import pytest

from payonce.engine.database.commits import settled_transaction
from payonce.engine.messages.model import Ending, Message, SettleAnswer, Settlement
from payonce.engine.messages.policy import Fixed, Policy
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage
from tests.plans import EMPTY, index_entries_read, plan_while_empty

POLICY = Policy("errands", max_attempts=5, backoff=Fixed(60), lease_s=30)
AT_ONCE = 20
OTHERS = 3_000
READ_MAX = 15
"""Index entries per message of a batch. A scan of all claimed messages would read thousands."""


async def put_and_claim(s: Stage, queue: PostgresQueue, count: int) -> list[Settlement]:
    await s.feed.put([Message(queue=POLICY.queue) for _ in range(count)])
    claims = (await queue.exchange([], count)).claims
    assert len(claims) == count
    return [Settlement(claim, Ending.SUCCESS) for claim in claims]


async def lives(s: Stage, queue: PostgresQueue) -> None:
    """A batch that is renewed, of which some end, some are deferred, and one ends isolated within a transaction."""
    ends = await put_and_claim(s, queue, AT_ONCE)
    assert not await queue.extend([end.claim for end in ends])
    assert await queue.mark_alone(ends[0].claim)
    half = AT_ONCE // 2
    put_off = [Settlement(end.claim, Ending.RETRY, "not yet", 60.0) for end in ends[half:]]
    async with s.database.engine.acquire() as connection, settled_transaction(s.database, connection):
        assert await queue.settle_within(connection, ends[0])
    assert set((await queue.exchange([*ends[1:half], *put_off], 0)).answers) == {SettleAnswer.SETTLED}


@EMPTY
async def test_claims_are_found_among_many_by_plans_of_an_empty_table(stage: OpenStage, analysed: bool) -> None:
    async with stage() as s:
        await s.clock.freeze()
        queue = await s.queue(POLICY)
        await plan_while_empty(s, "messages", lambda: lives(s, queue), analysed)
        await put_and_claim(s, queue, OTHERS)
        # Passes the entries that these left in the index of waiting messages, once for all.
        await put_and_claim(s, queue, 1)
        read = await index_entries_read(s, "messages", lambda: lives(s, queue))
        assert read <= AT_ONCE * READ_MAX, f"{read} entries of indexes were read for {AT_ONCE} messages"


@EMPTY
async def test_a_sweep_that_finds_nothing_passes_over_all_living_leases(stage: OpenStage, analysed: bool) -> None:
    async with stage() as s:
        await s.clock.freeze()
        queue = await s.queue(POLICY)
        await plan_while_empty(s, "messages", queue.reap, analysed)
        await put_and_claim(s, queue, OTHERS)
        assert await index_entries_read(s, "messages", queue.reap) <= READ_MAX


@pytest.mark.parametrize("ending", [Ending.SUCCESS, Ending.RETRY, Ending.FAILED])
@pytest.mark.parametrize("stale_first", [True, False])
async def test_of_two_runs_of_one_message_that_end_together_the_latest_counts(
    stage: OpenStage, ending: Ending, stale_first: bool
) -> None:
    async with stage() as s:
        await s.clock.freeze()
        queue = await s.queue(POLICY)
        [lost] = await put_and_claim(s, queue, 1)
        await s.clock.advance_leases(POLICY.lease_s)
        assert await queue.reap() == 1
        [held] = (await queue.exchange([], 1)).claims
        ends = [Settlement(lost.claim, Ending.PARKED, "too late"), Settlement(held, ending, "in time", 5.0)]
        await queue.exchange(ends if stale_first else ends[::-1], 0)
        rows = await s.owner.fetch("select state, last_error from payonce.messages")
        assert [tuple(row) for row in rows] == ([("ready", "in time")] if ending is Ending.RETRY else [])
