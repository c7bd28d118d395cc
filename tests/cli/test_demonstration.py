"""The verdict of a demonstration: planted losses and duplicates are found, and disruptions hit busy workers."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from payonce.cli.demo.process_pool import Disruption, plan_disruptions
from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Reader
from payonce.examples.tally import INVARIANTS, store
from payonce.examples.tally.demo.run import Report
from payonce.examples.tally.model import POISON, Fault, Outcome, seeded_changes
from payonce.testing import ScratchDatabase

# Row 1 is well, row 2 was changed twice by one message, row 3 is parked, row 4 is lost, row 5 still waits.
PLANTED = """
    insert into tally.rows (id, value) values (1, 1), (2, 2), (3, 0), (4, 0), (5, 0);
    insert into tally.changes (row_id, message_id, changed_at) values
        (1, gen_random_uuid(), payonce.due_now()),
        (2, '{double}', payonce.due_now()), (2, '{double}', payonce.due_now());
    insert into payonce.messages (id, queue, state, ready_at, created_at, action, payload) values
        (gen_random_uuid(), 'tally-changes', 'parked', payonce.due_now(), payonce.due_now(), '', '{{"row_id": 3}}'),
        (gen_random_uuid(), 'tally-changes', 'ready', payonce.due_now(), payonce.due_now(), '', '{{"row_id": 5}}');
"""


def test_planted_losses_and_doublings_are_counted(database: ScratchDatabase) -> None:
    outcome, broken = asyncio.run(plant_and_judge(database))
    assert (outcome.requested, outcome.applied, outcome.doubled) == (5, 2, 1)
    assert (outcome.parked, outcome.unfinished, outcome.lost) == (1, 1, 1)
    assert outcome.parked_rows == {3}
    assert broken == {"no message changes a row twice": 1}


async def plant_and_judge(database: ScratchDatabase) -> tuple[Outcome, Mapping[str, int]]:
    owner = await asyncpg.connect(database.owner_url)
    try:
        await owner.execute(PLANTED.format(double=uuid4()))
        found = {name: len(await owner.fetch(query)) for name, query in INVARIANTS.items()}
    finally:
        await owner.close()
    async with Database.open(database.service_url) as opened:
        return await store.outcome(Reader(opened)), {name: count for name, count in found.items() if count}


GOOD = Outcome(
    requested=10, applied=9, doubled=0, parked=1, unfinished=0, lost=0, retries=0, parked_rows=frozenset({7})
)


def report_of(outcome: Outcome = GOOD, kills: int = 12) -> Report:
    return Report(
        seed=1,
        outcome=outcome,
        poison_rows=frozenset({7}),
        kills=kills,
        stops=2,
        restarts=18,
        seconds=1.0,
        log_path=Path("unused"),
    )


def test_a_kept_promise_has_no_complaints() -> None:
    assert report_of().complaints() == []


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"lost": 1}, "1 messages are neither applied nor parked"),
        ({"unfinished": 2}, "2 messages are neither applied nor parked"),
        ({"doubled": 1}, "1 rows were changed more than once"),
        ({"parked_rows": frozenset[int]()}, "1 poison messages were not parked, first of row 7"),
    ],
)
def test_a_broken_promise_is_a_complaint(change: dict[str, object], piece: str) -> None:
    figures = {name: getattr(GOOD, name) for name in GOOD.__struct_fields__}
    assert report_of(Outcome(**{**figures, **change})).complaints() == [piece]


def test_too_few_kills_prove_nothing() -> None:
    assert "only 9 workers were killed" in report_of(kills=9).complaints()[0]


def test_disruptions_are_spread_over_the_work_and_repeat_with_their_seed() -> None:
    disruptions = plan_disruptions(12, 2, 0.04, 0.8, random.Random(3))
    assert (
        disruptions
        == plan_disruptions(12, 2, 0.04, 0.8, random.Random(3))
        != plan_disruptions(12, 2, 0.04, 0.8, random.Random(4))
    )
    assert [kind for _, kind in disruptions].count(Disruption.KILL) == 12
    shares = [share for share, _ in disruptions]
    assert shares == sorted(shares)
    assert 0.04 <= shares[0] < shares[-1] < 0.9


def test_the_mix_repeats_with_its_seed_and_holds_every_fault() -> None:
    changes = list(seeded_changes(5_000, seed=1))
    assert changes == list(seeded_changes(5_000, seed=1)) != list(seeded_changes(5_000, seed=2))
    assert {change.fault for change in changes} == set(Fault)
    assert sum(change.fault is Fault.KILLS_ITS_WORKER for change in changes) == 2
    assert 2 < sum(change.fault in POISON for change in changes) < 50
