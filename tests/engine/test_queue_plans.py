"""Statements that were planned while the queue was empty find a few messages among many as quickly as before."""

from payonce.engine.model import Answer, Ending, Message, Settlement
from payonce.engine.policy import Fixed, Policy
from payonce.queues.postgres import PostgresQueue
from payonce.testing import OpenStage, Stage
from tests.plans import index_entries_read

POLICY = Policy("errands", max_attempts=5, backoff=Fixed(60), lease_s=30)
AT_ONCE = 20
OTHERS = 3_000
READ_MAX = 15
"""Entries of indexes for each message of a batch. A walk of all that are claimed would read thousands."""


async def put_and_claim(s: Stage, queue: PostgresQueue, count: int) -> list[Settlement]:
    await s.feed.put([Message(queue=POLICY.queue) for _ in range(count)])
    claims = (await queue.exchange([], count)).claims
    assert len(claims) == count
    return [Settlement(claim, Ending.SUCCESS) for claim in claims]


async def lives(s: Stage, queue: PostgresQueue) -> None:
    """A batch that is renewed, of which some end and some are put off, and one is alone and ends within a
    transaction."""
    ends = await put_and_claim(s, queue, AT_ONCE)
    assert not await queue.extend([end.claim for end in ends])
    assert await queue.mark_alone(ends[0].claim)
    half = AT_ONCE // 2
    put_off = [Settlement(end.claim, Ending.RETRY, "not yet", 60.0) for end in ends[half:]]
    async with s.database.engine.acquire() as connection, connection.transaction():
        assert await queue.settle_within(connection, ends[0])
    assert set((await queue.exchange([*ends[1:half], *put_off], 0)).answers) == {Answer.SETTLED}


async def test_claims_are_found_among_many_by_plans_of_an_empty_table(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze()
        queue = await s.queue(POLICY)
        await lives(s, queue)
        await put_and_claim(s, queue, OTHERS)
        # Passes what these left in the index of the waiting, once for all.
        await put_and_claim(s, queue, 1)
        read = await index_entries_read(s, "messages", lambda: lives(s, queue))
        assert read <= AT_ONCE * READ_MAX, f"{read} entries of indexes were read for {AT_ONCE} messages"
