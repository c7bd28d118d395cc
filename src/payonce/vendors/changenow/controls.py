"""The control endpoints below `/simulator`: deposits from the chain, the books for test oracles, and switches."""

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
from payonce.vendors.simulator_http import control_endpoint, json_response

if TYPE_CHECKING:
    from payonce.vendors.changenow.simulator import ChangeNowSimulator


class DepositCommand(msgspec.Struct, frozen=True, rename="camel"):
    payin_address: str
    asset: str
    amount: str
    tx_hash: str
    network: str = "eth"


class OutageCommand(msgspec.Struct, frozen=True, rename="camel"):
    down: bool
    for_s: float | None = None


class ClockCommand(msgspec.Struct, frozen=True, rename="camel"):
    advance_s: float


class FateCommand(msgspec.Struct, frozen=True):
    id: str
    fate: Fate | None = None
    """None advances to the next status."""


class PairCommand(msgspec.Struct, frozen=True, rename="camel"):
    from_currency: str
    from_network: str
    to_currency: str
    to_network: str
    active: bool | None = None
    least: Decimal | None = None
    most: Decimal | None = None


def control_routes(simulator: "ChangeNowSimulator") -> list[Route]:
    def deposit(asked: DepositCommand) -> Any:
        try:
            amount = Decimal(asked.amount)
        except ArithmeticError:
            raise Invalid(f"{asked.amount[:80]!r} is no decimal number such as 0.25") from None
        return documents.deposit(
            simulator.deposit(asked.payin_address, asked.asset, amount, asked.tx_hash, asked.network)
        )

    def outage(asked: OutageCommand) -> Any:
        if asked.down:
            simulator.take_down(asked.for_s)
        else:
            simulator.bring_up()
        return {}

    def clock(asked: ClockCommand) -> Any:
        simulator.advance(asked.advance_s)
        return {"now": documents.moment(simulator.now)}

    def fate(asked: FateCommand) -> Any:
        return {"status": simulator.step(asked.id) if asked.fate is None else simulator.decide(asked.id, asked.fate)}

    def pair(asked: PairCommand) -> Any:
        named = Pair(asked.from_currency, asked.from_network, asked.to_currency, asked.to_network)
        if asked.active is not None:
            simulator.switch(named, active=asked.active)
        if asked.least is not None:
            simulator.set_range(named, asked.least, asked.most)
        return {}

    async def books(request: Request) -> Response:
        meter = simulator.meter
        shown = documents.books(simulator.settle_all()) | {
            "requests": meter.requests,
            "turnedAway": meter.turned_away,
            "peakPerS": meter.peak_per_s,
        }
        return json_response(shown)

    return [
        Route("/simulator/books", books),
        Route("/simulator/deposits", control_endpoint(DepositCommand, deposit), methods=["POST"]),
        Route("/simulator/outage", control_endpoint(OutageCommand, outage), methods=["POST"]),
        Route("/simulator/clock", control_endpoint(ClockCommand, clock), methods=["POST"]),
        Route("/simulator/fates", control_endpoint(FateCommand, fate), methods=["POST"]),
        Route("/simulator/pairs", control_endpoint(PairCommand, pair), methods=["POST"]),
    ]
