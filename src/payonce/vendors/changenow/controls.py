"""What is below `/simulator`: deposits told by the chain, the books for oracles in other processes, and switches."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.outcomes import Invalid
from payonce.vendors.changenow import documents
from payonce.vendors.changenow.books import Fate
from payonce.vendors.changenow.port import Pair

if TYPE_CHECKING:
    from payonce.vendors.changenow.simulator import ChangeNowSimulator


class TellDeposit(msgspec.Struct, frozen=True, rename="camel"):
    payin_address: str
    asset: str
    amount: str
    tx_hash: str
    network: str = "eth"


class TellOutage(msgspec.Struct, frozen=True, rename="camel"):
    down: bool
    for_s: float | None = None


class TellClock(msgspec.Struct, frozen=True, rename="camel"):
    advance_s: float


class TellFate(msgspec.Struct, frozen=True):
    id: str
    fate: Fate | None = None
    """None: the next status now."""


class TellPair(msgspec.Struct, frozen=True, rename="camel"):
    from_currency: str
    from_network: str
    to_currency: str
    to_network: str
    active: bool | None = None
    least: Decimal | None = None
    most: Decimal | None = None


def control_routes(simulator: "ChangeNowSimulator") -> list[Route]:
    def deposit(told: TellDeposit) -> Any:
        try:
            amount = Decimal(told.amount)
        except ArithmeticError:
            raise Invalid(f"{told.amount[:80]!r} is no decimal number such as 0.25") from None
        return documents.deposit(simulator.deposit(told.payin_address, told.asset, amount, told.tx_hash, told.network))

    def outage(told: TellOutage) -> Any:
        if told.down:
            simulator.take_down(told.for_s)
        else:
            simulator.bring_up()
        return {}

    def clock(told: TellClock) -> Any:
        simulator.advance(told.advance_s)
        return {"now": documents.moment(simulator.now)}

    def fate(told: TellFate) -> Any:
        return {"status": simulator.step(told.id) if told.fate is None else simulator.decide(told.id, told.fate)}

    def pair(told: TellPair) -> Any:
        named = Pair(told.from_currency, told.from_network, told.to_currency, told.to_network)
        if told.active is not None:
            simulator.switch(named, active=told.active)
        if told.least is not None:
            simulator.set_range(named, told.least, told.most)
        return {}

    async def books(request: Request) -> Response:
        meter = simulator.meter
        shown = documents.books(simulator.settle_all()) | {
            "requests": meter.requests, "turnedAway": meter.turned_away, "peakPerS": meter.peak_per_s
        }  # fmt: skip
        return _said(shown)

    return [
        Route("/simulator/books", books),
        Route("/simulator/deposits", _told(TellDeposit, deposit), methods=["POST"]),
        Route("/simulator/outage", _told(TellOutage, outage), methods=["POST"]),
        Route("/simulator/clock", _told(TellClock, clock), methods=["POST"]),
        Route("/simulator/fates", _told(TellFate, fate), methods=["POST"]),
        Route("/simulator/pairs", _told(TellPair, pair), methods=["POST"]),
    ]


def _told(shape: type[Any], act: Callable[[Any], Any]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return _said(act(msgspec.json.decode(await request.body(), type=shape)))
        except (msgspec.MsgspecError, Invalid) as problem:
            return _said({"error": str(problem)}, 400)

    return endpoint


def _said(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
