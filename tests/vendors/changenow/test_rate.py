"""However many processes ask, ChangeNOW sees no more than it allows; and a rest that it asks for holds for all."""

import asyncio
import re
import sys
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path

import pytest

from payonce.engine.database.rate_limits import SharedBudget
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, NotSent, Retry
from payonce.services.payouts.resources import open_changenow
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.testing.processes import Processes
from payonce.testing.server import serving
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import BUDGET_BURST, BUDGET_PER_S, REQUESTS_PER_S, ChangeNow
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from tests.vendors.changenow.at import ETH_BTC, USDT_ETH, order

CALLS = 60
WAIT_S = 30.0
PROCESSES = 2


async def test_the_limit_is_never_exceeded_by_two_clients(stage: OpenStage) -> None:
    simulator = ChangeNowSimulator()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            HttpClient("changenow", "https://changenow.example", transport=simulator)
        )
        stages = [await stack.enter_async_context(stage()) for _ in range(2)]
        clients = [
            ChangeNowClient(http, "k", SharedBudget(s.database, "changenow", BUDGET_PER_S, BUDGET_BURST, WAIT_S))
            for s in stages
        ]
        answers = await asyncio.gather(
            *(clients[number % 2].range(ETH_BTC) for number in range(CALLS)), return_exceptions=True
        )
    assert simulator.meter.requests == CALLS
    assert simulator.meter.turned_away == 0
    assert simulator.meter.peak_per_s <= REQUESTS_PER_S
    assert not [each for each in answers if isinstance(each, BaseException)]


@pytest.mark.timeout(240)
async def test_the_limit_is_never_exceeded_by_two_processes(stage: OpenStage, tmp_path: Path) -> None:
    # Its own meter would count together what it was slow to read.
    simulator = ChangeNowSimulator(limit_per_s=None)
    async with stage() as s, serving(simulator) as url:
        with Processes(tmp_path) as processes:
            command = (sys.executable, "-m", "tests.vendors.changenow.caller", url, s.scratch.service_url, str(CALLS))
            callers = [processes.start(*command, cwd=Path(__file__).parents[3]) for _ in range(PROCESSES)]
            for each in callers:
                await each.says("all were answered", 3 * WAIT_S)
            sent = sorted(float(at) for each in callers for at in re.findall(r"sent at ([\d.]+)", each.output))
    assert simulator.meter.requests == len(sent) == CALLS * PROCESSES
    assert max(sum(first <= at < first + 1 for at in sent) for first in sent) <= REQUESTS_PER_S


async def test_a_rest_that_the_vendor_asks_for_holds_every_process_back(stage: OpenStage) -> None:
    faulty = Faulty(ChangeNowSimulator(), Script([Fault.TOO_MANY_REQUESTS]), retry_after_s=30)
    async with stage() as s, stage() as other, HttpClient("cn", "https://changenow.example", transport=faulty) as http:
        await s.clock.freeze()
        ours, theirs = (
            ChangeNowClient(http, "k", SharedBudget(at.database, "changenow", BUDGET_PER_S, BUDGET_BURST, 1.0))
            for at in (s, other)
        )
        with pytest.raises(NotSent, match="too many requests"):
            await ours.create(order())
        for each in (ours, theirs):
            with pytest.raises(Retry, match=r"next turn in 30\.0 s"):
                await each.range(ETH_BTC)
            with pytest.raises(NotSent, match=r"next turn in 30\.0 s"):
                await each.create(order())
        assert faulty.enacted == {Fault.TOO_MANY_REQUESTS: 1}, "nobody asked the vendor meanwhile"
        await s.clock.advance(30)
        await theirs.range(ETH_BTC)


def counted(call: str, outcome: str) -> float:
    labels = {"vendor": "changenow", "call": call, "outcome": outcome}
    return REGISTRY.get_sample_value("payonce_vendor_call_seconds_count", labels) or 0.0


async def test_without_key_and_address_it_is_simulated_in_the_process_and_its_calls_are_counted(
    stage: OpenStage, tmp_path: Path
) -> None:
    settings = Settings.model_validate({"PAYONCE_DATA_DIR": str(tmp_path)})
    before = counted("create", "ok"), counted("range", "error")
    async with stage() as s, open_changenow(settings, s.database) as opened:
        client, simulator = opened
        assert isinstance(client, ChangeNow)
        assert isinstance(simulator, ChangeNowSimulator)
        assert not isinstance(simulator, ChangeNow)
        swap = await client.create(order())
        assert simulator.deposit(swap.payin_address, "eth", swap.from_amount, "0x01").exchange_id == swap.id
        simulator.take_down()
        with pytest.raises(Retry):
            await client.range(ETH_BTC)
    assert (counted("create", "ok"), counted("range", "error")) == (before[0] + 1, before[1] + 1)
    assert (tmp_path / "simulators" / "changenow.journal").exists()


@pytest.mark.parametrize("version", ["", "/", "/v2", "/v2/"])
async def test_a_key_and_an_address_lead_to_the_vendor(stage: OpenStage, tmp_path: Path, version: str) -> None:
    async with stage() as s, serving(ChangeNowSimulator(api_key="k-1")) as url:
        named = {"CHANGENOW_API_KEY": "k-1", "CHANGENOW_URL": f"{url}{version}"}
        settings = Settings.model_validate({"PAYONCE_DATA_DIR": str(tmp_path)})
        async with open_changenow(settings.having(PayoutsSettings.model_validate(named)), s.database) as [client]:
            assert isinstance(client, ChangeNow)
            assert (await client.estimate(USDT_ETH, Decimal(97))).to_amount > 0


async def test_an_address_without_a_key_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        named = PayoutsSettings.model_validate({"CHANGENOW_URL": "https://changenow.example"})
        settings = Settings.model_validate({}).having(named)
        with pytest.raises(Invalid, match="CHANGENOW_URL is set and CHANGENOW_API_KEY is not; set both, or neither"):
            async with open_changenow(settings, s.database):
                pass
