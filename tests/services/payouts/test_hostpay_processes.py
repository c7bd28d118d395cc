"""Hostpay in processes that die between nonce, bytes, broadcast and record: one transfer by the chain's books."""

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from payonce.kit.outcomes import Invalid
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import Payout, State
from payonce.services.payouts.resources import open_payouts
from payonce.settings import load_settings
from payonce.testing import OpenStage, eventually
from payonce.testing.processes import Child, Processes
from payonce.testing.server import serving
from tests.services.payouts.hostpay_process import Duty
from tests.services.payouts.hostpay_stage import House, braked_worker, open_house

ROOT = Path(__file__).parents[3]
CROSSINGS = 8
"""Of one payment: the intent's commit, the send, the commit of its outcome and the one that settles; two sides each."""
STEP_S = 15.0
LEASE_ENDS_S = 61.0
WITHIN_S = 90.0
SERVED = [pay_swap.policy.queue, follow_payment.policy.queue]
AT_WORK = """
    select exists (select from payonce.messages where worker = any($1) and state = 'leased'
        or queue = any($2) and state in ('ready', 'alone') and ready_at <= payonce.due_now())
"""


@dataclass
class Street:
    """The chain and the exchange, with doors to the street."""

    house: House
    duty: Duty
    processes: Processes
    crew: list[Child] = field(default_factory=list)

    async def begin(self, dies_at: int = 0) -> Child:
        duty = msgspec.structs.replace(self.duty, dies_at=dies_at)
        command = (sys.executable, "-m", "tests.services.payouts.hostpay_process", msgspec.json.encode(duty).decode())
        child = self.processes.start(*command, name="hostpay", cwd=ROOT)
        await child.says("ready", WITHIN_S)
        return child

    async def time_goes_by(self) -> None:
        """Not while one that lives has something to do: were it to stand still for a moment, hours would pass for it,
        and its exchanges be over."""
        house = self.house
        living = [f"hostpay-{child.pid}" for child in self.processes.children if child.running]
        if living and await house.s.owner.fetchval(AT_WORK, living, SERVED):
            return
        house.clock.now = await house.s.clock.advance(STEP_S)
        house.chain.catch_up()
        await house.simulator.notify()

    async def take_over(self) -> None:
        """Whatever the dead held has ended."""
        await self.house.s.clock.advance_leases(LEASE_ENDS_S)

    async def finished(self, *payouts: Payout) -> None:
        async def all_finished() -> bool:
            await self.time_goes_by()
            return all([await self.house.state(payout) is State.FINISHED for payout in payouts])

        await eventually(all_finished, WITHIN_S, "every payout is finished")


@asynccontextmanager
async def open_street(stage: OpenStage, folder: Path) -> AsyncIterator[Street]:
    async with open_house(stage) as house, serving(house.node) as node_url, serving(house.context) as exchange_url:
        with Processes(folder) as processes:
            duty = Duty(
                url=house.s.scratch.service_url,
                node_url=node_url,
                exchange_url=exchange_url,
                chain_id=house.chain.chain_id,
            )
            yield Street(house, duty, processes)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    # The explorer strikes at all of them, in a process that is forked and not started.
    "dies_at",
    [pytest.param(at, marks=[] if at % 3 == 2 else pytest.mark.full) for at in range(1, CROSSINGS + 1)],
)
async def test_a_process_killed_anywhere_in_a_payment_pays_once(stage: OpenStage, tmp_path: Path, dies_at: int) -> None:
    async with open_street(stage, tmp_path) as street:
        payout = await street.house.waiting_for_hostpay()
        victim = await street.begin(dies_at)
        await victim.ended(WITHIN_S)
        assert "dies " in victim.output
        await street.take_over()
        await street.begin()
        await street.finished(payout)
        assert [each.transaction.nonce for each in street.house.transfers()] == [0]
        await street.house.sound(payout)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_two_processes_killed_at_random_pay_each_deposit_once(
    stage: OpenStage, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with open_street(stage, tmp_path) as street:
        payouts = [await street.house.waiting_for_hostpay(number) for number in range(1, 7)]
        crew = [await street.begin(chance.randrange(3, 25)), await street.begin(chance.randrange(3, 25))]
        for place in (0, 1):
            await _until_dead(street, crew[place])
            await street.take_over()
            crew[place] = await street.begin()
        await street.finished(*payouts)
        nonces = [each.transaction.nonce for each in street.house.transfers()]
        assert nonces == list(range(len(payouts)))
        await street.house.sound(*payouts)


async def _until_dead(street: Street, child: Child) -> None:
    """Or until there is nothing more that it could die of."""

    async def dead() -> bool:
        await street.time_goes_by()
        return not child.running or not await street.house.s.owner.fetchval("select count(*) from payonce.messages")

    await eventually(dead, WITHIN_S, "the process dies")
    child.kill()


async def test_a_role_is_opened_on_a_chain_and_an_exchange_of_other_processes(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(stage) as house, serving(house.node) as node_url, serving(house.context) as exchange_url:
        given = {"PAYONCE_CHAIN_URL": node_url, "CHANGENOW_API_KEY": "key", "SUCCESS_URL_SIGNING_KEY": "k" * 32}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Invalid, match="CHANGENOW_URL is not: a simulated wallet cannot pay the real exchange"):
            async with open_payouts(load_settings(), house.s.database):
                pass
        monkeypatch.setenv("CHANGENOW_URL", exchange_url)
        monkeypatch.setenv("HOST_WALLET_ADDRESS", stranger := "0x" + "e3" * 20)
        with pytest.raises(
            Invalid, match=f"{stranger}, and the wallet that pays is {house.wallet.address}: .+ leave it"
        ):
            async with open_payouts(load_settings(), house.s.database):
                pass
        monkeypatch.setenv("HOST_WALLET_ADDRESS", "0x" + house.wallet.address[2:].upper())
        payout = await house.waiting_for_hostpay()
        async with open_payouts(load_settings(), house.s.database) as opened:
            [host] = [each for each in opened if isinstance(each, HostWallet)]
            assert host.wallet.address == house.wallet.address
            worker = await braked_worker(house.s, (pay_swap, follow_payment), opened)
            await worker.step()
            assert await house.state(payout) is State.PAYING
