"""The bank's client and its effects, written as those of a real vendor would be."""

from typing import Any, Final

import msgspec

from payonce.engine.effects import Blind, DidNot, Effect, Findable, Happened, Harmless, Keyed, Rebroadcast
from payonce.kit.http import HttpClient, Response
from payonce.kit.http.transport import Transport
from payonce.kit.money import Amount
from payonce.kit.outcomes import Refused, Unknown
from payonce.testing.crash.scenarios.store import EURO

TIMEOUT_S: Final = 10.0
KEY_VALID_FOR_S: Final = 3_600.0
HORIZON_S: Final = 60.0
"""Longer than the delay until the bank lists a payment."""


class Order(msgspec.Struct, frozen=True):
    reference: str
    minor: int


class Receipt(msgspec.Struct, frozen=True):
    number: str
    reference: str


class BankClient:
    def __init__(self, host: str, transport: Transport) -> None:
        self._http = HttpClient(host, f"https://{host}", transport=transport)

    async def charge(self, order: Order) -> Receipt:
        key = {"Idempotency-Key": order.reference}
        return receipt_of(await self._http.request("POST", "/charges", json=order, headers=key))

    async def broadcast(self, order: Order) -> Receipt:
        return receipt_of(await self._http.request("POST", "/broadcasts", json=order))

    async def quote(self, order: Order) -> Receipt:
        return receipt_of(await self._http.request("POST", "/quotes", json=order))

    async def wire(self, order: Order) -> Receipt:
        return receipt_of(await self._http.request("POST", "/wires", json=order))

    async def open_cart(self, order: Order) -> int:
        return int(_accepted(await self._http.request("POST", "/carts", json=order))["cart"])

    async def pay_cart(self, cart: int, order: Order) -> Receipt:
        return receipt_of(await self._http.request("POST", f"/carts/{cart}/pay", json=order))

    async def wipe_carts(self, order: Order) -> None:
        _accepted(await self._http.request("DELETE", "/carts", query={"reference": order.reference}))

    async def find(self, order: Order) -> Receipt | None:
        answer = await self._http.request("GET", "/payments", query={"reference": order.reference})
        shown = _accepted(answer)["payments"]
        return msgspec.convert(shown[0], Receipt) if shown else None


class Banks:
    """The handlers' resource: the bank that money leaves, and the one that receives it."""

    def __init__(self, home: BankClient, away: BankClient) -> None:
        self.home = home
        self.away = away


def _accepted(answer: Response) -> Any:
    if answer.status in (402, 404):
        raise Refused(f"the bank answered {answer.status}: {answer.excerpt()}")
    if not answer.is_success:
        raise Unknown(f"the bank answered {answer.status}: {answer.excerpt()}")
    return answer.json()


def receipt_of(answer: Response) -> Receipt:
    return msgspec.convert(_accepted(answer), Receipt)


class BankEffect(Effect[Order, Receipt]):
    """Common to all effects: an order with our reference, a receipt with the bank's number."""

    timeout_s = TIMEOUT_S
    request_type, outcome_type = Order, Receipt

    def __init__(self, bank: BankClient, minor: int) -> None:
        self.bank = bank
        self.minor = minor

    async def prepare(self) -> Order:
        return Order(self.reference, self.minor)

    def amount(self, request: Order) -> Amount | None:
        return Amount(request.minor, EURO)

    def vendor_ref(self, outcome: Receipt) -> str | None:
        return outcome.number


class Charge(BankEffect):
    kind, safety = "bank.charge", Keyed(KEY_VALID_FOR_S)

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.charge(request)


class Purchase(BankEffect):
    """Two requests: a wiped cart can no longer be paid."""

    kind = "bank.purchase"

    def __init__(self, bank: BankClient, minor: int) -> None:
        super().__init__(bank, minor)
        self.safety = Findable(HORIZON_S, bank.wipe_carts)

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.pay_cart(await self.bank.open_cart(request), request)

    async def resolve(self, request: Order) -> Happened[Receipt] | DidNot:
        found = await self.bank.find(request)
        return DidNot() if found is None else Happened(found)


class Broadcast(BankEffect):
    kind, safety = "bank.broadcast", Rebroadcast()

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.broadcast(request)


class Quote(BankEffect):
    kind, safety = "bank.quote", Harmless()

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.quote(request)

    def amount(self, request: Order) -> Amount | None:
        return None


class Wire(BankEffect):
    kind, safety = "bank.wire", Blind()

    async def perform(self, request: Order) -> Receipt:
        return await self.bank.wire(request)
