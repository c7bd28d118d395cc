"""A settlement that the store refuses does not block the rest of its batch."""

import asyncpg
import pytest

from payonce.engine.messages.model import SettleAnswer, State
from tests.conformance.backend import (
    PLAIN,
    QUEUE,
    Backend,
    claim,
    claim_one,
    failed,
    ids,
    let_leases_end,
    message,
    parked,
    retry,
    settle,
    stored,
    success,
)


@pytest.mark.parametrize("bad", [0, 7, 19])
async def test_one_refused_settlement_does_not_block_its_batch(backend: Backend, bad: int) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(20)])
    claims = await claim(queue, 20)
    refused = claims[bad]
    await backend.refuse_to_log(refused.message.id)
    answers = await settle(queue, *map(success, claims))
    expected = [SettleAnswer.SETTLED] * 20
    expected[bad] = SettleAnswer.STALE
    assert answers == expected
    assert [found.message.id for found in await stored(backend, State.LEASED)] == [refused.message.id]


async def test_a_refused_settlement_among_mixed_endings_leaves_the_others_settled(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(5)])
    bad, again, done, stuck, rejected = await claim(queue)
    await backend.refuse_to_log(bad.message.id)
    answers = await settle(queue, success(bad), retry(again), success(done), parked(stuck), failed(rejected))
    depth = await backend.admin.depth(QUEUE)
    assert (depth.ready, depth.parked, depth.leased) == (1, 1, 1)
    assert answers == [SettleAnswer.STALE, *[SettleAnswer.SETTLED] * 4], "what was settled must be said to be settled"


async def test_a_refused_settlement_runs_again_after_its_lease(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    claimed = await claim_one(queue)
    await backend.refuse_to_log(sent)
    assert await settle(queue, success(claimed)) == [SettleAnswer.STALE]
    assert await claim(queue) == []
    [held] = await stored(backend, State.LEASED)
    assert held.message.id == sent


async def test_a_row_that_cannot_be_reaped_does_not_keep_the_others_from_coming_back(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message() for _ in range(5)])
    await claim(queue)
    await backend.refuse_to_log(sent[0])
    for _ in range(3):
        try:
            await let_leases_end(backend, queue)
        except asyncpg.PostgresError:
            continue
    assert set(sent[1:]) <= set(ids(await claim(queue)))


@pytest.mark.parametrize("reason", ["NUL \x00 inside", "lone \ud800 surrogate", "x" * 100_000])
async def test_any_reason_can_be_settled(backend: Backend, reason: str) -> None:
    queue = await backend.queue(PLAIN)
    [sent] = await backend.feed.put([message()])
    assert await settle(queue, parked(await claim_one(queue), reason)) == [SettleAnswer.SETTLED]
    [found] = await stored(backend, State.PARKED)
    assert found.message.id == sent
    assert found.last_error
    assert found.last_error[:1] == reason[:1]
