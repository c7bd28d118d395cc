"""A wallet on the simulated chain with the production client, in process or over a socket, with scripted faults."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from payonce.kit.money import Amount, Asset, well_known
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.vendors.evm.chain import Chain
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import ETH, Payment, Receipt, Signed
from payonce.vendors.evm.simulated_key import SimulatedKey
from payonce.vendors.evm.simulator import ChainSimulator
from tests.vendors.banks import BankClock, reached

USDT = well_known("USDT")
CONTRACT = "0x" + "da" * 20
CLIENT = "0x" + "c1" * 20
OTHER = "0x" + "c2" * 20


def ether(text: str) -> Amount:
    return Amount.from_decimal(text, ETH)


@dataclass
class OnChain:
    chain: Chain
    simulator: ChainSimulator
    wallet: EvmClient
    faulty: Faulty
    clock: BankClock

    async def signed(self, nonce: int = 0, value: str = "1.5", to: str = CLIENT, asset: Asset = ETH) -> Signed:
        payment = Payment.of(to, Amount.from_decimal(value, asset))
        return self.wallet.sign(payment, nonce, (await self.wallet.market(asset)).fees)

    async def receipt(self, transaction_hash: str) -> Receipt | None:
        found = (await self.wallet.status([transaction_hash])).receipts
        return found[0] if found else None

    async def nonces(self) -> tuple[int, int]:
        """The pending and the final nonce."""
        return (await self.wallet.market(ETH)).pending_nonce, (await self.wallet.status([])).final_nonce

    def paid(self, to: str = CLIENT, asset: Asset = ETH) -> Amount:
        return self.chain.balance(to, asset)

    def adds_up(self) -> None:
        sums: dict[Asset, int] = {}
        for (_, asset), minor in self.chain.balances().items():
            sums[asset] = sums.get(asset, 0) + minor
        assert not any(sums.values())


OpenChain = Callable[..., AbstractAsyncContextManager[OnChain]]


@asynccontextmanager
async def on_chain(over_sockets: bool, *faults: Fault | None, **options: Any) -> AsyncIterator[OnChain]:
    clock = BankClock()
    chain = Chain(clock=clock, **options)
    key = SimulatedKey("host", chain.chain_id)
    chain.fund(key.address, ether("10"))
    chain.fund(key.address, Amount.from_decimal("500", USDT))
    simulator = ChainSimulator(chain, tokens={CONTRACT: USDT})
    # The first call reads the fees; the faults are for the calls after it.
    faulty = Faulty(simulator, Script([None, *faults]), over_sockets=over_sockets, slow_s=0.0)
    async with reached(faulty, over_sockets, "node") as http:
        yield OnChain(chain, simulator, EvmClient(http, key, {USDT: CONTRACT}), faulty, clock)
