"""Restored from a backup taken before 100 effects: nothing is sent, all 100 are found, the books are equal."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from payonce.embedded import backup, restore
from payonce.engine.controls.quarantine import blockers, open_quarantine, refuse_in_quarantine, release
from payonce.engine.effects import IntentCheck
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import explain, unmatched
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage, ScratchDatabase
from tests.engine.bank import SETTLED_S, SUSPENSE, Branch, open_branch

BEFORE = [f"before-{number}" for number in range(5)]
KNOWN = [f"known-{number}" for number in range(60)]
"""Ordered before the backup, paid after it."""
FORGOTTEN = [f"forgotten-{number}" for number in range(40)]
"""Ordered and paid after it."""
LATER_S = 2 * 3_600.0
"""By then the bank has forgotten the keys."""


@asynccontextmanager
async def restored(
    stage: OpenStage, scratch: ScratchDatabase, folder: Path, checks: Sequence[IntentCheck] = (refuse_in_quarantine,)
) -> AsyncIterator[Branch]:
    """100 payments after a backup, half of them in each way, and the database restored from it."""
    async with open_branch(stage) as b:
        await b.order(*BEFORE)
        await b.work()
        b.bank.faults = ["lost after"]
        await b.order("doubtful")
        await b.work()
        for number, payment in enumerate(KNOWN):
            await b.order(payment, way="wire" if number % 2 else "pay", minor=100 + number)
        backup(scratch.owner_url, folder / "payonce.dump")
        for number, payment in enumerate(FORGOTTEN):
            await b.order(payment, way="wire" if number % 2 else "pay", minor=1_000 + number)
        assert await b.work() == 100
        bank = b.bank
    restore(scratch.owner_url, folder / "payonce.dump", replace=True)
    async with open_branch(stage, bank, checks=checks) as b:
        await b.s.clock.advance(LATER_S)
        yield b


async def test_nothing_is_doubled_or_lost_by_a_restore(
    stage: OpenStage, scratch: ScratchDatabase, tmp_path: Path
) -> None:
    async with restored(stage, scratch, tmp_path) as b:
        booked = list(b.bank.booked)
        assert len(booked) == 106
        for _ in range(5):
            assert await b.work() >= 60
            await b.s.clock.advance(31)
        assert b.bank.booked == booked, "quarantine lets nothing through, however often it is tried"
        assert await b.paid() == 6, "the doubtful one was asked for, which is allowed"

        await refused_release(b)
        await b.s.clock.advance(SETTLED_S)
        run = await b.reconcile()
        assert run.lines == 106
        assert (run.adopted, run.unmatched) == (60, 40)
        assert (run.found, run.missing) == (0, 0)
        again = await b.reconcile()
        assert (again.adopted, again.unmatched, again.found, again.settled) == (0, 0, 0, 0)

        await refused_release(b)
        for item in await unmatched(b.read, limit=500):
            async with begin(b.s.database, b.s.feed) as tx:
                await explain(tx, item.id, "ann", "ordered after the backup; the customers were asked to order again")
        await released(b)
        await b.s.clock.advance(3_600)
        await b.work()

        assert b.bank.booked == booked, "no transfer was made twice"
        assert await b.paid() == 66
        assert await b.held(SUSPENSE) == sum(1_000 + number for number in range(40))
        await b.assert_books_equal()

        await b.order(*FORGOTTEN[::2], way="pay", minor=0)
        await b.s.owner.execute("update payments set minor = 1000 + substr(id, 11)::int where id like 'forgotten%'")
        assert (await b.reconcile()).adopted == 20
        await b.work()
        assert b.bank.booked == booked, "what is ordered again is taken from the record"
        assert await b.paid() == 86
        assert await b.held(SUSPENSE) == sum(1_000 + number for number in range(1, 40, 2))
        await b.assert_books_equal()


async def test_without_quarantine_the_same_restore_doubles(
    stage: OpenStage, scratch: ScratchDatabase, tmp_path: Path
) -> None:
    async with restored(stage, scratch, tmp_path, checks=()) as b:
        await b.work()
        assert sum(times > 1 for times in b.bank.times().values()) == 60


async def test_released_without_reconciling_the_same_restore_doubles(
    stage: OpenStage, scratch: ScratchDatabase, tmp_path: Path
) -> None:
    """A person answers for what they accept."""
    async with restored(stage, scratch, tmp_path) as b:
        await released(b, accept="in a hurry")
        await b.work()
        assert sum(times > 1 for times in b.bank.times().values()) == 60


async def refused_release(b: Branch) -> None:
    with pytest.raises(Invalid, match="cannot be released"):
        await released(b)


async def released(b: Branch, accept: str | None = None) -> None:
    found = await open_quarantine(b.read)
    assert found is not None
    assert found.reason == "restored from a backup"
    async with begin(b.s.database, b.s.feed) as tx:
        await release(tx, "ann", revision=found.revision, accept_unreconciled=accept)
    assert accept or await blockers(b.read, found) == []
