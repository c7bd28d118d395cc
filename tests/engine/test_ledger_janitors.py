"""The ledger's janitors: a leader seals, takes balance snapshots and reviews orphans by itself."""

import asyncio
from pathlib import Path

import pytest

from payonce.engine import janitors
from payonce.engine.audit import heads_in
from payonce.engine.janitors import run_janitors
from payonce.engine.janitors.snapshots import Snapshots
from payonce.engine.ledger import snapshots
from payonce.testing import OpenStage, Stage, eventually
from tests.engine.audit_notes import noted, verified
from tests.engine.effects_stage import open_context
from tests.engine.ledger_books import posted, transfer
from tests.engine.ledger_chain import verified_ledger
from tests.engine.test_orphans import KEYED, left_unknown, park

OFTEN_S = 0.05


async def test_a_leader_seals_anchors_and_reviews_by_itself(
    stage: OpenStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interval in ("SEAL_EVERY_S", "ORPHANS_EVERY_S", "SNAPSHOTS_EVERY_S"):
        monkeypatch.setattr(janitors, interval, OFTEN_S)
    async with open_context(stage, KEYED, "lost after") as context:
        s = context.s
        await left_unknown(context)
        await park(context)
        await noted(s, "a")
        await posted(s, transfer("p-1", 5))
        running = asyncio.create_task(
            run_janitors(s.database, s.feed, s.admin, holder="leader", anchor=tmp_path / "heads")
        )
        try:

            async def all_done() -> bool:
                found, ledger = await verified(s), await verified_ledger(s)
                assert ledger.ok, ledger.findings
                if ledger.postings != 1:
                    return False
                return await context.state() == [(1, "review")] and found.ok and found.notes == 2 and not found.unsealed

            await eventually(all_done)
            await eventually(lambda: (tmp_path / "heads").exists() and heads_in(tmp_path / "heads").ledger)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        anchored = heads_in(tmp_path / "heads")
        assert (await verified(s, *anchored.log)).ok
        assert (await verified_ledger(s, *anchored.ledger)).ok


async def snapshot_count(s: Stage) -> int:
    count: int = await s.owner.fetchval("select count(distinct account_id) from payonce.balance_snapshots")
    return count


async def test_snapshots_go_on_where_the_last_tick_ended(stage: OpenStage) -> None:
    async with stage() as s:
        for number in range(3):
            await posted(s, transfer(f"p-{number}", 5, f"clients/{number}", f"wallets/{number}"))
        few = Snapshots(s.database, lines_wanted=1, batch_accounts=2, batches_max=1)

        async def all_covered() -> bool:
            await few.tick()
            return await snapshot_count(s) == 6

        await few.tick()
        assert await snapshot_count(s) <= 2, "a tick has its bound"
        await eventually(all_covered)


async def test_a_balance_with_few_new_lines_gets_no_snapshot(stage: OpenStage) -> None:
    async with stage() as s:
        await posted(s, transfer("p-1", 5))
        assert snapshots.LINES_WORTHWHILE > 1
        assert await Snapshots(s.database).tick() == 0
