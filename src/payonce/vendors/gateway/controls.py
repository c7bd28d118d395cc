"""The control endpoints below `/simulator`: the books for test oracles, and switches."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.vendors.gateway import documents
from payonce.vendors.simulator_http import control_endpoint, json_response

if TYPE_CHECKING:
    from payonce.vendors.gateway.simulator import GatewaySimulator


class CardCommand(msgspec.Struct, frozen=True):
    token: str
    number: str | None = None
    """Another card behind the token."""
    script: Sequence[str] | None = None
    """The outcomes of its next charges."""


class OutageCommand(msgspec.Struct, frozen=True):
    down: bool
    for_s: float | None = None


class ClockCommand(msgspec.Struct, frozen=True):
    advance_s: float


def control_routes(simulator: "GatewaySimulator") -> list[Route]:
    def card(asked: CardCommand) -> Any:
        if asked.number is not None:
            simulator.replace_card(asked.token, asked.number)
        if asked.script is not None:
            simulator.script(asked.token, *asked.script)
        return {}

    def outage(asked: OutageCommand) -> Any:
        if asked.down:
            simulator.take_down(asked.for_s)
        else:
            simulator.bring_up()
        return {}

    def clock(asked: ClockCommand) -> Any:
        simulator.advance(asked.advance_s)
        return {"now": documents.moment(simulator.now)}

    async def books(request: Request) -> Response:
        meter, outbox = simulator.meter, simulator.outbox
        shown = documents.books(simulator.books) | {
            "requests": meter.requests,
            "turned_away": meter.turned_away,
            "peak_per_s": meter.peak_per_s,
            "webhooks": {"made": len(outbox.webhooks), "waiting": outbox.waiting},
        }
        return json_response(shown)

    return [
        Route("/simulator/books", books),
        Route("/simulator/cards", control_endpoint(CardCommand, card), methods=["POST"]),
        Route("/simulator/outage", control_endpoint(OutageCommand, outage), methods=["POST"]),
        Route("/simulator/clock", control_endpoint(ClockCommand, clock), methods=["POST"]),
    ]
