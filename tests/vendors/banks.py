"""The two banks with the production clients, in process and over a socket, with faults in a given order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from payonce.kit.http import HttpClient
from payonce.kit.http.response import Attempt
from payonce.kit.http.sockets import SocketTransport
from payonce.kit.http.transport import Outgoing
from payonce.kit.money import Amount, well_known
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.testing.server import serving
from payonce.vendors.northbank.client import NorthbankClient
from payonce.vendors.northbank.port import TransferOrder
from payonce.vendors.northbank.simulator import NorthbankSimulator
from payonce.vendors.southbank.client import SouthbankClient
from payonce.vendors.southbank.port import PaymentOrder
from payonce.vendors.southbank.simulator import SouthbankSimulator

EUR, JPY = well_known("EUR"), well_known("JPY")
PATIENCE_S = 30.0
"""Of the client over sockets: for a machine that stands still, and never for a vendor that is silent."""
LAG_S = 5.0


def euro(text: str) -> Amount:
    return Amount.from_decimal(text, EUR)


class BankClock:
    """A bank's own clock, moved by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class AtNorthbank:
    bank: NorthbankSimulator
    client: NorthbankClient
    faulty: Faulty
    clock: BankClock


@dataclass
class AtSouthbank:
    bank: SouthbankSimulator
    client: SouthbankClient
    faulty: Faulty
    clock: BankClock


OpenNorthbank = Callable[..., AbstractAsyncContextManager[AtNorthbank]]
OpenSouthbank = Callable[..., AbstractAsyncContextManager[AtSouthbank]]


class UntilSilence:
    """Sockets on which the client's time is up when the vendor has fallen silent: neither before, when the vendor would
    not have done yet what it is to have done, nor long after."""

    def __init__(self, faulty: Faulty) -> None:
        self._faulty = faulty
        self._sockets = SocketTransport(
            connect_timeout_s=PATIENCE_S, connections_max=10, allow_private=True, resolve=None, tls=None
        )

    async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
        answer = asyncio.create_task(self._sockets.exchange(outgoing, attempt))
        silence = asyncio.create_task(self._faulty.silent.wait())
        try:
            await asyncio.wait({answer, silence}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self._faulty.silent.clear()
                raise TimeoutError
            await answer
        finally:
            answer.cancel()
            silence.cancel()
            await asyncio.gather(answer, silence, return_exceptions=True)

    async def close(self) -> None:
        await self._sockets.close()


@asynccontextmanager
async def reached(faulty: Faulty, over_sockets: bool, name: str = "bank") -> AsyncIterator[HttpClient]:
    if not over_sockets:
        async with HttpClient(name, f"https://{name}.example", transport=faulty) as http:
            yield http
        return
    async with (
        serving(faulty) as url,
        HttpClient(name, url, allow_private=True, timeout_s=PATIENCE_S, transport=UntilSilence(faulty)) as http,
    ):
        yield http


@asynccontextmanager
async def at_northbank(over_sockets: bool, *faults: Fault | None) -> AsyncIterator[AtNorthbank]:
    clock = BankClock()
    bank = NorthbankSimulator(clock=clock)
    bank.open_account("house")
    bank.open_account("ann", euro("100.00"), Amount(5_000, JPY))
    faulty = Faulty(bank, Script(list(faults)), over_sockets=over_sockets, slow_s=0.0)
    async with reached(faulty, over_sockets) as http:
        yield AtNorthbank(bank, NorthbankClient(http), faulty, clock)


@asynccontextmanager
async def at_southbank(over_sockets: bool, *faults: Fault | None) -> AsyncIterator[AtSouthbank]:
    clock = BankClock()
    bank = SouthbankSimulator(clock=clock, lag_s=LAG_S)
    bank.open_account("house", euro("100.00"), Amount(5_000, JPY))
    bank.open_account("bob")
    faulty = Faulty(bank, Script(list(faults)), over_sockets=over_sockets, slow_s=0.0)
    async with reached(faulty, over_sockets) as http:
        yield AtSouthbank(bank, SouthbankClient(http), faulty, clock)


def order_at_northbank(key: str = "k-1", value: str = "12.50", target: str = "house") -> TransferOrder:
    return TransferOrder(key, "ann", target, value, "EUR")


def order_at_southbank(reference: str = "r-1", value: str = "12.50", creditor: str = "bob") -> PaymentOrder:
    return PaymentOrder(reference, "house", creditor, value, "EUR")
