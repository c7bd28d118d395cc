"""Publication of transfers: a relay that posts events, and a listener that stores them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from payonce.engine.outbox import EVENTS, Answer, Deferred, Delivered, Entry, RelayConfig
from payonce.kit.http import HttpClient
from payonce.kit.http.transport import Transport


class NewsRelay:
    """Posts one event at a time; the listener detects repetitions by id."""

    def __init__(self, host: str, transport: Transport) -> None:
        self.name = EVENTS
        self.config = RelayConfig()
        self._http = HttpClient(host, f"https://{host}", transport=transport)

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        return [await self._deliver(entry) for entry in entries]

    async def _deliver(self, entry: Entry) -> Answer:
        message = entry.message
        event = {"id": str(message.id), "about": message.correlation_id, **message.payload}
        answer = await self._http.request("POST", "/events", json=event)
        return Delivered() if answer.is_success else Deferred(f"the listener answered {answer.status}")


@dataclass
class Listener:
    """An ASGI application that stores each event once, by id."""

    events: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._application = Starlette(routes=[Route("/events", self._receive, methods=["POST"])])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)

    async def _receive(self, request: Request) -> Response:
        event = await request.json()
        self.events[event["id"]] = (event["about"], event["end"])
        return Response(status_code=204)
