"""The simulated exchange and chain of the demonstration, on ports of the loopback for other processes."""

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.services.payouts.model import ETH
from payonce.services.payouts.resources import SIMULATED_SECRET
from payonce.testing.answers import answering
from payonce.testing.clock import MovedClock
from payonce.testing.faults import Fault, FaultPlan, Odds
from payonce.testing.faulty import Faulty, faulty_over_sockets
from payonce.vendors.changenow.books import Pace
from payonce.vendors.changenow.fates import Fates
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from payonce.vendors.evm.chain import OUTSIDE, Chain, Conditions, MinedTransaction
from payonce.vendors.evm.exchange_bridge import ExchangeBridge
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator

OPENING: Final = Amount.from_decimal("100000", ETH)
"""Enough for every simulated payout."""
BLOCK_S: Final = 12.0
SILENT: Final = (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER)
"""Not used for the chain's node, which drops the connection instead: the client learns the same, sooner."""
KEY_BYTES: Final = 32


@dataclass(frozen=True)
class SimulatorOptions:
    """The behaviour of the simulators; without faults by default."""

    seed: int = 1
    exchange_faults: float = 0.0
    chain_faults: float = 0.0
    fates: Fates | None = None
    pace: Pace | None = None
    conditions: Conditions | None = None
    block_s: float = BLOCK_S
    limit_per_s: float | None = None


@dataclass(frozen=True)
class DemoSimulators:
    changenow: ChangeNowSimulator
    chain: Chain
    node: ChainSimulator
    bridge: ExchangeBridge
    clock: MovedClock
    wallet: str
    faulty_apps: Sequence[Faulty]
    environment: dict[str, str]
    """The environment variables by which processes of payouts reach the simulators, with the keys."""

    @property
    def signing_key(self) -> bytes:
        return self.environment["SUCCESS_URL_SIGNING_KEY"].encode()

    async def carry(self) -> None:
        """Lets chain and exchange progress with the time."""
        await self.bridge.carry(self.node)

    async def deliver(self) -> None:
        """Delivers delayed requests now, so that they are seen."""
        for app in self.faulty_apps:
            await app.close()
        await self.carry()

    def faults(self) -> dict[str, int]:
        total: Counter[Fault] = Counter()
        for app in self.faulty_apps:
            total += app.enacted
        return {fault.value: total[fault] for fault in Fault if total[fault]}


@asynccontextmanager
async def open_simulators(options: SimulatorOptions) -> AsyncIterator[DemoSimulators]:
    clock = MovedClock()
    changenow = ChangeNowSimulator(
        clock=clock, seed=options.seed, limit_per_s=options.limit_per_s, fates=options.fates, pace=options.pace
    )
    chain = Chain(clock=clock, block_s=options.block_s, conditions=options.conditions)
    wallet = SimulatedKey(SIMULATED_SECRET, chain.chain_id).address
    chain.fund(wallet, OPENING)
    async with AsyncExitStack() as stack:
        behind = await stack.enter_async_context(
            HttpClient("exchange", "https://exchange.example", transport=changenow)
        )
        bridge = ExchangeBridge(chain, behind)

        async def hear(mined: MinedTransaction) -> None:
            """Reports deposits to the exchange directly, as it is in this process."""
            if mined.sender != OUTSIDE:
                changenow.deposit(mined.transaction.to, "eth", mined.amount.to_decimal(), mined.hash)

        node = ChainSimulator(chain, watcher=hear)
        faulty_apps = [
            faulty_over_sockets(changenow, _plan(options.seed, options.exchange_faults)),
            faulty_over_sockets(node, _plan(options.seed + 1, options.chain_faults, *SILENT)),
        ]
        exchange_url = await stack.enter_async_context(
            answering(faulty_apps[0] if options.exchange_faults else changenow)
        )
        chain_url = await stack.enter_async_context(answering(faulty_apps[1] if options.chain_faults else node))
        environment = {
            "CHANGENOW_API_KEY": "stand-in",
            "CHANGENOW_URL": exchange_url,
            "PAYONCE_CHAIN_URL": chain_url,
            "SUCCESS_URL_SIGNING_KEY": secrets.token_hex(KEY_BYTES),
            "TPS_HOSTPAY_SIGNING_KEY": secrets.token_hex(KEY_BYTES),
        }
        yield DemoSimulators(changenow, chain, node, bridge, clock, wallet, faulty_apps, environment)


def _plan(seed: int, share: float, *spared: Fault) -> FaultPlan:
    """All faults except wrong figures in answers, which no client can recognise."""
    return FaultPlan(seed, share, Odds(share).without(Fault.WRONG_ANSWER, *spared).weights)
