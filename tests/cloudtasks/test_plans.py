"""Statements that were planned while their tables were empty find a few rows among many as quickly as before."""

from collections.abc import Awaitable, Callable

import pytest

from payonce.engine.messages.model import Ending, SettleAnswer, Settlement
from payonce.testing import OpenStage
from tests.cloudtasks.testbed import Runs, staged_runs
from tests.plans import EMPTY, index_entries_read, plan_while_empty

AT_ONCE = 20
OTHERS = 3_000
READ_MAX = 15
"""Entries of indexes for each message of a batch: it is found to be locked, changed, looked at, and its versions are
passed on the way. A walk of all would read thousands."""


async def lives(runs: Runs) -> None:
    """A batch that is begun and renewed, and of which some end and some are put off."""
    ids = await runs.put(*({} for _ in range(AT_ONCE)))
    for number in ids:
        runs.bring(number)
    claims = (await runs.queue.exchange([], AT_ONCE)).claims
    assert len(claims) == AT_ONCE
    assert not await runs.queue.extend(claims)
    half = AT_ONCE // 2
    ends = [Settlement(claim, Ending.SUCCESS) for claim in claims[:half]]
    ends += [Settlement(claim, Ending.RETRY, "not yet", 60.0) for claim in claims[half:]]
    assert set((await runs.queue.exchange(ends, 0)).answers) == {SettleAnswer.SETTLED}


async def lives_in_doubt(runs: Runs) -> None:
    """A batch that was begun, and whose answer was lost."""
    for number in await runs.put(*({} for _ in range(AT_ONCE))):
        runs.bring(number)
    claims = (await runs.queue.exchange([], AT_ONCE)).claims
    runs.queue._doubtful = [(claim.message.id, claim.token) for claim in claims]
    assert await runs.queue.give_back([]) == AT_ONCE


@EMPTY
@pytest.mark.parametrize("live", [lives, lives_in_doubt])
async def test_runs_are_found_among_many_by_plans_of_an_empty_table(
    stage: OpenStage, live: Callable[[Runs], Awaitable[None]], analysed: bool
) -> None:
    async with staged_runs(stage) as runs:
        await plan_while_empty(runs.s, "outbox", lambda: live(runs), analysed)
        await runs.put(*({} for _ in range(OTHERS)))
        read = await index_entries_read(runs.s, "outbox", lambda: live(runs))
        assert read <= AT_ONCE * READ_MAX, f"{read} entries of indexes were read for {AT_ONCE} messages"
