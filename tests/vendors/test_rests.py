"""A bank that says when to come again is left alone until then, by every process and with every kind of call."""

from collections.abc import Callable
from typing import Any

import pytest

from payonce.engine.database.rate_limits import SharedBudget
from payonce.kit.budget import Budget
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.client import SouthbankClient
from payonce.vendors.southbank.simulator import SouthbankSimulator
from tests.vendors.banks import EUR

REST_S = 30
BANKS: dict[str, tuple[Callable[[], Any], Callable[[HttpClient, Budget], Any]]] = {
    "northbank": (NorthbankSimulator, NorthbankClient),
    "southbank": (SouthbankSimulator, SouthbankClient),
}


@pytest.mark.parametrize("name", BANKS)
async def test_a_rest_that_a_bank_asks_for_holds_every_process_back(stage: OpenStage, name: str) -> None:
    bank, client = BANKS[name]
    simulator = bank()
    simulator.open_account("house")
    faulty = Faulty(simulator, Script([Fault.TOO_MANY_REQUESTS]), retry_after_s=REST_S)
    async with stage() as s, stage() as other, HttpClient(name, "https://bank.example", transport=faulty) as http:
        await s.clock.freeze()
        ours, theirs = (client(http, SharedBudget(at.database, name, 10.0, 5, 1.0)) for at in (s, other))
        with pytest.raises(NotSent, match="too many requests"):
            await ours.balance("house", EUR)
        for each in (ours, theirs):
            with pytest.raises(NotSent, match=r"next turn in 30\.0 s"):
                await each.balance("house", EUR)
        assert faulty.enacted == {Fault.TOO_MANY_REQUESTS: 1}, "nobody asked the bank meanwhile"
        await s.clock.advance(REST_S)
        assert not await theirs.balance("house", EUR)


async def test_an_answer_without_a_rest_holds_nobody_back(stage: OpenStage) -> None:
    bank = NorthbankSimulator()
    bank.open_account("house")
    faulty = Faulty(bank, Script([Fault.ERROR_BEFORE]))
    async with stage() as s, HttpClient("northbank", "https://bank.example", transport=faulty) as http:
        await s.clock.freeze()
        client = NorthbankClient(http, SharedBudget(s.database, "northbank", 10.0, 5, 0.0))
        with pytest.raises(Exception, match="503"):
            await client.balance("house", EUR)
        assert not await client.balance("house", EUR)
