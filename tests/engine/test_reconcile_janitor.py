"""Automatic reconciliation runs, and the gauges that show them."""

import asyncio
from datetime import timedelta

from payonce.engine.controls.quarantine import begin_quarantine, blockers, open_quarantine
from payonce.engine.janitors import run_janitors
from payonce.engine.janitors.reconcile import reconcile_when_due, refresh_reconciliation_metrics
from payonce.engine.messages.transaction import begin
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.engine.reconcile import last_runs, unmatched, write_off
from payonce.testing import OpenStage, eventually
from tests.engine.bank import LOSSES, SETTLED_S, Branch, open_branch

EVERY_S = 900.0


async def look(b: Branch) -> None:
    await reconcile_when_due(b.s.database, b.s.feed, b.statement, "janitor")


async def finished(b: Branch) -> int:
    return sum(run.state == "finished" for run in await last_runs(b.read, "bank"))


async def test_a_statement_is_asked_for_in_its_own_rhythm(stage: OpenStage) -> None:
    async with open_branch(stage, every_s=EVERY_S) as b:
        for runs_so_far in (1, 1):
            await look(b)
            assert await finished(b) == runs_so_far
        await b.s.clock.advance(EVERY_S + 1)
        await look(b)
        assert await finished(b) == 2


async def test_a_statement_without_a_rhythm_waits_for_a_person(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await look(b)
        assert await finished(b) == 0


async def test_a_quarantine_is_reconciled_by_itself_once_all_of_before_is_shown(stage: OpenStage) -> None:
    async with open_branch(stage, every_s=EVERY_S) as b:
        await look(b)
        async with begin(b.s.database, b.s.feed) as tx:
            await begin_quarantine(tx, "a test", "ann", await b.s.clock.now() - timedelta(days=3))
        await look(b)
        assert await finished(b) == 1
        await b.s.clock.advance(SETTLED_S + 1)
        await look(b)
        found = await open_quarantine(b.read)
        assert found is not None
        assert await blockers(b.read, found) == []


async def test_a_process_reconciles_and_remembers_its_server_while_it_keeps_house(stage: OpenStage) -> None:
    async with open_branch(stage, every_s=EVERY_S) as b:
        house = asyncio.create_task(
            run_janitors(
                b.s.database, b.s.feed, b.s.admin, holder="process-1", statements=[b.statement], notifier=b.s.notifier
            )
        )
        try:
            await eventually(lambda: finished(b))
            await eventually(lambda: b.s.owner.fetchval("select seen_at is not null from payonce.served_identity"))
        finally:
            house.cancel()
            await asyncio.gather(house, return_exceptions=True)


async def test_gauges_show_what_is_open_and_for_how_long(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        b.bank.book("bank.fee", None, -712, await b.s.clock.now())
        await b.after_the_lag()
        await b.s.clock.advance(600)
        await refresh_reconciliation_metrics(b.s.database)
        bank = {"vendor": "bank"}
        assert REGISTRY.get_sample_value("payonce_unmatched", {**bank, "direction": "theirs"}) == 1
        assert REGISTRY.get_sample_value("payonce_unmatched_amount", {**bank, "asset": "EUR"}) == 7.12
        oldest_s = REGISTRY.get_sample_value("payonce_unmatched_oldest_seconds", bank)
        reconciled_s = REGISTRY.get_sample_value("payonce_reconciled_seconds", bank)
        assert oldest_s is not None
        assert reconciled_s is not None
        assert 600 <= oldest_s < 660
        assert 600 <= reconciled_s < 660
        assert REGISTRY.get_sample_value("payonce_quarantined") == 0
        [item] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await write_off(tx, item.id, LOSSES, "ann", "a fee")
            await begin_quarantine(tx, "a test", "ann", await b.s.clock.now())
        await refresh_reconciliation_metrics(b.s.database)
        assert REGISTRY.get_sample_value("payonce_unmatched", {**bank, "direction": "theirs"}) == 0
        assert REGISTRY.get_sample_value("payonce_unmatched_amount", {**bank, "asset": "EUR"}) is None
        assert REGISTRY.get_sample_value("payonce_quarantined") == 1
