"""ChangeNOW's production client against its simulator, in process and over a socket, with faults in a given order."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from payonce.kit.http import HttpClient
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Order, Pair
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from tests.vendors.banks import BankClock, reached

KEY = "k-standard"
USDT_ETH = Pair("usdt", "eth", "eth", "eth")
ETH_BTC = Pair("eth", "eth", "btc", "btc")
ETH_XRP = Pair("eth", "eth", "xrp", "xrp")
CLIENT_BTC = "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"
CLIENT_XRP = "rN7n7otQDd6FczFgLdSqtcsAUxDkw6fzRH"
HOST = "0x52908400098527886e0f7030069857d2e4169ee7"
TX = "0x" + "ab" * 32


@dataclass
class AtChangeNow:
    simulator: ChangeNowSimulator
    client: ChangeNowClient
    faulty: Faulty
    clock: BankClock
    http: HttpClient


OpenChangeNow = Callable[..., AbstractAsyncContextManager[AtChangeNow]]


@asynccontextmanager
async def at_changenow(over_sockets: bool, *faults: Fault | None, **conduct: Any) -> AsyncIterator[AtChangeNow]:
    clock = BankClock()
    simulator = ChangeNowSimulator(clock=clock, **{"seed": 7, "limit_per_s": None} | conduct)
    faulty = Faulty(simulator, Script(list(faults)), over_sockets=over_sockets, slow_s=0.0, retry_after_s=7)
    async with reached(faulty, over_sockets) as http:
        yield AtChangeNow(simulator, ChangeNowClient(http, KEY), faulty, clock, http)


def order(pair: Pair = ETH_BTC, amount: str = "0.05", address: str = CLIENT_BTC, **others: Any) -> Order:
    return Order(pair, Decimal(amount), address, **{"extra_id": None, "refund_address": HOST} | others)


Ask = Callable[[ChangeNowClient], Awaitable[Any]]


def questions(exchange_id: str, clock: BankClock) -> dict[str, Ask]:
    """Every question that the client asks."""
    return {
        "estimate": lambda client: client.estimate(USDT_ETH, Decimal(97)),
        "exchange": lambda client: client.exchange(exchange_id),
        "range": lambda client: client.range(ETH_BTC),
        "min_amount": lambda client: client.min_amount(ETH_BTC),
        "currencies": lambda client: client.currencies(),
        "validate_address": lambda client: client.validate_address("btc", "btc", CLIENT_BTC, None),
        "exchanges": lambda client: client.exchanges(clock.now, clock.now, 0, 10),
    }


QUESTIONS = tuple(questions("", BankClock()))
