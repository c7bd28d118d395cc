"""The gateway's production client against its simulator, in process and over a socket, with faults in a given order."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from payonce.kit.http import HttpClient
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.port import INVOICE, ChargeOrder, RefundOrder
from payonce.vendors.gateway.simulator import GatewaySimulator
from tests.vendors.banks import BankClock, reached

KEY = "sk_test_gateway1"
PAYS = "4242424242424242"
DECLINES = {
    "card_declined": "4000000000000002",
    "insufficient_funds": "4000000000009995",
    "expired_card": "4000000000000069",
    "invalid_cvv": "4000000000000127",
}
OTHER_CARD = "5555555555554444"


@dataclass
class AtGateway:
    simulator: GatewaySimulator
    client: GatewayClient
    faulty: Faulty
    clock: BankClock
    http: HttpClient
    token: str
    """Of a card that pays."""


OpenGateway = Callable[..., AbstractAsyncContextManager[AtGateway]]


@asynccontextmanager
async def at_gateway(over_sockets: bool, *faults: Fault | None, **conduct: Any) -> AsyncIterator[AtGateway]:
    clock = BankClock()
    given: dict[str, Any] = {"clock": clock, "seed": 7, "limit_per_s": None} | conduct
    simulator = GatewaySimulator(**given)
    token = simulator.tokenise(PAYS)
    faulty = Faulty(simulator, Script(list(faults)), over_sockets=over_sockets, slow_s=0.0, retry_after_s=7)
    async with reached(faulty, over_sockets) as http:
        yield AtGateway(simulator, GatewayClient(http, KEY), faulty, clock, http, token)


def order(token: str, reference: str = "inv-1:1", amount: int = 2_900, **others: Any) -> ChargeOrder:
    invoice = reference.partition(":")[0]
    fields = {"key": reference, "currency": "AED", "metadata": {INVOICE: invoice, "action": "renewal"}} | others
    return ChargeOrder(amount=amount, payment_method=token, reference=reference, **fields)


def refund_of(charge: str, reference: str = "ref-1:1", amount: int = 1_000, **others: Any) -> RefundOrder:
    fields = {"key": reference, "currency": "AED", "reason": "asked for"} | others
    return RefundOrder(charge=charge, amount=amount, reference=reference, **fields)


Ask = Callable[[GatewayClient], Awaitable[Any]]


def questions(token: str) -> dict[str, Ask]:
    """Every question that the client asks."""
    return {
        "find_charge": lambda client: client.find_charge("inv-1:1"),
        "find_refund": lambda client: client.find_refund("ref-1:1"),
        "token": lambda client: client.token(token),
        "statement": lambda client: client.statement(None, 10),
    }


QUESTIONS = tuple(questions(""))
