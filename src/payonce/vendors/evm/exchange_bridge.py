"""Connects the simulated chain with the simulated exchange: final deposits reach the exchange, refunds the chain."""

from typing import Any

import msgspec

from payonce.kit.http import HttpClient
from payonce.kit.money import Amount
from payonce.kit.outcomes import Unknown
from payonce.vendors.evm.chain import OUTSIDE, Chain, MinedTransaction
from payonce.vendors.evm.port import ETH
from payonce.vendors.evm.simulator import ChainSimulator


class DepositNotice(msgspec.Struct, frozen=True, rename="camel"):
    payin_address: str
    asset: str
    amount: str
    tx_hash: str
    network: str = "eth"


class ExchangeBridge:
    """Calls the exchange's simulator on its own routes, in this process or another."""

    def __init__(self, chain: Chain, http: HttpClient) -> None:
        self._chain = chain
        self._http = http

    async def notify_deposit(self, mined: MinedTransaction) -> None:
        """Is the chain's watcher. Transfers from outside are none of the exchange's deposits."""
        if mined.sender == OUTSIDE:
            return
        notice = DepositNotice(mined.transaction.to, "eth", mined.amount.to_text(), mined.hash)
        answer = await self._http.request("POST", "/simulator/deposits", json=notice)
        if not answer.is_success:
            raise Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")

    async def carry(self, node: ChainSimulator) -> None:
        """Mines due blocks, and delivers final deposits and refunds."""
        node.chain.catch_up()
        await node.notify()
        await self.carry_refunds()

    async def carry_refunds(self) -> int:
        """Puts the exchange's refunds on the chain, under the hashes that it has announced. Returns their number."""
        books: Any = (await self._http.request("GET", "/simulator/books")).json()
        refunds = [each for each in books["refunds"] if each["asset"] == "ETH.ETH"]
        for each in refunds:
            amount = Amount.from_decimal(each["amount"], ETH)
            self._chain.arrive(each["address"], amount, each["txHash"], transaction_hash=each["txHash"])
        return len(refunds)
