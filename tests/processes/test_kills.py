"""Workers that die without a word: everything is applied once, and a message that kills its workers parks alone."""

import random

import pytest

from payonce.testing import eventually
from payonce.testing.processes import Child
from tests.processes.testbed import ProcessTestbed

CREW = 3
SLOTS = 10


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_workers_killed_at_random_moments_lose_and_double_nothing(testbed: ProcessTestbed, seed: int) -> None:
    await kill_in_mid_load(testbed, messages=800, kills=5, seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 15))
async def test_many_kills_in_a_long_load_lose_and_double_nothing(testbed: ProcessTestbed, seed: int) -> None:
    await kill_in_mid_load(testbed, messages=2_000, kills=15, seed=seed)


async def test_a_message_that_kills_its_workers_is_parked_and_its_neighbours_are_applied(
    testbed: ProcessTestbed,
) -> None:
    """Guards running suspects alone: parked for the deaths in company, neighbours would be parked with it."""
    crew = [testbed.begin_worker(slots=SLOTS) for _ in range(2)]
    await testbed.serving(*crew)
    held, neighbours, poison = range(SLOTS + 2), range(SLOTS + 2, 150), 1_000
    await in_hand(testbed, held)
    await testbed.put([poison], deed="die")

    def replace_the_dead() -> None:
        for place, worker in enumerate(crew):
            if not worker.running:
                crew[place] = testbed.begin_worker(slots=SLOTS)

    def died_in_company() -> bool:
        replace_the_dead()
        return len(testbed.journal.notes("began", poison)) >= 2

    async def at_rest() -> bool:
        replace_the_dead()
        return not await testbed.ask("select exists (select from payonce.messages where state <> 'parked')")

    await eventually(died_in_company, 45, "the poison has killed two workers")
    let_go(testbed, held)
    await testbed.put(neighbours, takes_s=0.05)

    await eventually(at_rest, 45, "every message but the poison is applied")
    await testbed.each_applied_once(but=[poison])
    assert await testbed.endings(poison) == ["retry", "retry", "parked"], "twice in company, once alone"
    assert await testbed.taken_over() > 3, "neighbours died with it, or the test shows nothing"


async def kill_in_mid_load(testbed: ProcessTestbed, messages: int, kills: int, seed: int) -> None:
    """The first to be killed has a message in hand; the other moments are spread over the first four fifths."""
    chance = random.Random(seed)
    crew = [testbed.begin_worker(slots=SLOTS) for _ in range(CREW)]
    await testbed.serving(*crew)
    held = range(messages, messages + (CREW - 1) * SLOTS + 1)
    await in_hand(testbed, held)
    await testbed.put(range(messages), takes_s=0.02)
    for moment in sorted(chance.randrange(messages * 4 // 5) for _ in range(kills)):
        await testbed.reached(moment)
        victim = await serving_one(testbed, crew, chance)
        crew[victim].kill()
        crew[victim] = testbed.begin_worker(slots=SLOTS)
        let_go(testbed, held)
    await testbed.drained()
    await testbed.each_applied_once()
    assert await testbed.taken_over() > 0, "nobody died with a message in hand, so the test shows nothing"


async def in_hand(testbed: ProcessTestbed, rows: range) -> None:
    """More messages than all workers but one have slots for, held: each worker has one, whenever it is killed."""
    await testbed.put(rows, deed="hold")
    for row in rows:
        await testbed.noted("holding", row)


def let_go(testbed: ProcessTestbed, rows: range) -> None:
    for row in rows:
        testbed.journal.let_go(row)


async def serving_one(testbed: ProcessTestbed, crew: list[Child], chance: random.Random) -> int:
    """The place of a worker that serves; the others are still starting."""
    serving = await eventually(
        lambda: [place for place, worker in enumerate(crew) if testbed.journal.notes("ready", pid=worker.pid)]
    )
    return chance.choice(serving)
