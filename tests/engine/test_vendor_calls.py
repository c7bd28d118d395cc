"""Vendor calls by minute: every call of every process, and the vendors that fail now."""

import asyncio

import pytest

from payonce.engine import janitors
from payonce.engine.janitors import run_janitors
from payonce.engine.monitoring.alerts import alerts
from payonce.engine.monitoring.vendor_calls import (
    KEEP_S,
    CallCounts,
    call_observer,
    failing_vendors,
    forget_old_calls,
    vendor_calls,
)
from payonce.kit.http import HttpClient
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.vendors.evm.chain import Chain
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import ETH
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator


def call(vendor: str, outcome: str, count: int, name: str = "ask") -> None:
    for _ in range(count):
        call_observer(vendor)(name, outcome, 0.1)


async def test_calls_of_several_processes_are_added_up_by_vendor(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        first, second = CallCounts(s.database), CallCounts(s.database)
        call("bank", "ok", 2)
        call("bank", "no_answer", 3, "pay")
        call("bank", "error", 1)
        assert await first.tick() == 3
        assert await second.tick() == 3
        assert await first.tick() == 0
        [found] = await vendor_calls(s.read)
        assert (found.vendor, found.count, found.failed, found.failed_percent) == ("bank", 12, 8, 66)
        assert found.cause == "6 got no answer, 2 answered with a server error"
        assert found.failing_calls == ("pay", "ask")
        assert found.failing


@pytest.mark.parametrize(
    ("outcomes", "fails"),
    [
        ({"ok": 40, "error": 10}, True),
        ({"ok": 41, "error": 10}, False),
        ({"ok": 10, "refused": 90}, False),
        ({"no_answer": 2}, False),
        ({"no_answer": 3}, True),
        ({"ok": 5, "resting": 5}, True),
    ],
)
async def test_a_vendor_fails_when_a_fifth_of_some_calls_did(
    stage: OpenStage, outcomes: dict[str, int], fails: bool
) -> None:
    async with stage() as s:
        counts = CallCounts(s.database)
        for outcome, count in outcomes.items():
            call("bank", outcome, count)
        await counts.tick()
        assert [each.vendor for each in await failing_vendors(s.read)] == (["bank"] if fails else [])
        found = await alerts(s.read, [])
        assert (len(found.vendors), found.quiet) == ((1, False) if fails else (0, True))


async def test_what_is_older_than_five_minutes_is_over_and_old_minutes_are_forgotten(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        counts = CallCounts(s.database)
        call("bank", "no_answer", 9)
        await counts.tick()
        assert await failing_vendors(s.read)
        await s.clock.advance(301)
        assert not await failing_vendors(s.read)
        await forget_old_calls(s.database)
        assert await s.owner.fetchval("select count(*) from payonce.vendor_minutes") == 1
        await s.clock.advance(KEEP_S)
        await forget_old_calls(s.database)
        assert await s.owner.fetchval("select count(*) from payonce.vendor_minutes") == 0


async def test_five_minutes_are_the_present_one_and_the_four_before_it(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze((await s.clock.now()).replace(second=30, microsecond=0))
        counts = CallCounts(s.database)
        call("bank", "no_answer", 9)
        await counts.tick()
        await s.clock.advance(4 * 60 + 29)
        assert await failing_vendors(s.read)
        await s.clock.advance(1)
        assert not await failing_vendors(s.read)


async def test_the_janitors_of_a_process_write_its_calls(stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitors, "HISTORY_EVERY_S", 0.05)
    async with stage() as s:
        running = asyncio.create_task(run_janitors(s.database, s.feed, s.admin, holder="process-1"))
        try:
            # The janitors that count take a moment to start: called until some calls are written.
            async def written() -> bool:
                call("bank", "no_answer", 1)
                return bool(
                    await s.owner.fetchval("select sum(calls) from payonce.vendor_minutes where vendor = 'bank'")
                )

            await eventually(written)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_counts_that_could_not_be_written_are_written_by_the_next_tick(stage: OpenStage) -> None:
    async with stage() as s:
        counts = CallCounts(s.database)
        call("bank", "error", 4)
        await s.owner.execute("revoke insert on payonce.vendor_minutes from payonce_service")
        with pytest.raises(Exception, match="permission denied"):
            await counts.tick()
        await s.owner.execute("grant insert on payonce.vendor_minutes to payonce_service")
        await counts.tick()
        [found] = await vendor_calls(s.read)
        assert found.failed == 4


async def test_questions_to_a_node_are_counted_too_answered_or_not(stage: OpenStage) -> None:
    async with stage() as s:
        counts = CallCounts(s.database)
        chain = Chain()
        node = Faulty(ChainSimulator(chain), Script([None, Fault.REFUSED_CONNECTION]))
        async with HttpClient("node", "https://node.example", transport=node) as http:
            client = EvmClient(http, SimulatedKey("host", chain.chain_id), watch=call_observer("evm"))
            await client.market(ETH)
            with pytest.raises(Exception, match=r"(?i)refused|connect"):
                await client.market(ETH)
        await counts.tick()
        [found] = await vendor_calls(s.read)
        assert (found.vendor, found.by_outcome) == ("evm", {"ok": 1, "no_answer": 1})
