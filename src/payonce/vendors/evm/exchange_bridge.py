"""Between the simulated chain and the simulated exchange: deposits go there when they are final, refunds come back."""

from typing import Any

import msgspec

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.kit.outcomes import Unknown
from payonce.vendors.evm.chain import OUTSIDE, Chain, Mined
from payonce.vendors.evm.port import ETH
from payonce.vendors.evm.simulator import ChainSimulator


class TellDeposit(msgspec.Struct, frozen=True, rename="camel"):
    payin_address: str
    asset: str
    amount: str
    tx_hash: str
    network: str = "eth"


class ExchangeBridge:
    """Speaks to the exchange over the paths that only its simulator has, in this process or another one."""

    def __init__(self, chain: Chain, http: HttpClient) -> None:
        self._chain = chain
        self._http = http

    async def tell_deposit(self, mined: Mined) -> None:
        """For the chain's watcher. What others send does not concern the exchange."""
        if mined.sender == OUTSIDE:
            return
        told = TellDeposit(mined.transaction.to, "eth", mined.amount.to_text(), mined.hash)
        answer = await self._http.request("POST", "/simulator/deposits", json=told)
        if not answer.is_success:
            raise Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")

    async def carry(self, node: ChainSimulator) -> None:
        """What chain and exchange do by themselves as time goes by: blocks, deposits that are final, refunds."""
        node.chain.catch_up()
        await node.tell()
        await self.carry_refunds()

    async def carry_refunds(self) -> int:
        """What the exchange has sent back arrives on the chain, each under the hash that the exchange names."""
        books: Any = (await self._http.request("GET", "/simulator/books")).json()
        refunds = [each for each in books["refunds"] if each["asset"] == "ETH.ETH"]
        for each in refunds:
            amount = Amount.from_decimal(each["amount"], ETH)
            self._chain.arrive(each["address"], amount, each["txHash"], transaction_hash=each["txHash"])
        return len(refunds)
