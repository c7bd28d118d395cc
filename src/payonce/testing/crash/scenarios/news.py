"""Who is told of transfers, outside: a relay that posts events, and a listener that keeps what it was told."""

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
    """Posts one event after the other; whoever listens tells repetitions by their id."""

    def __init__(self, host: str, transport: Transport) -> None:
        self.name = EVENTS
        self.config = RelayConfig()
        self._http = HttpClient(host, f"https://{host}", transport=transport)

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        return [await self._deliver(entry) for entry in entries]

    async def _deliver(self, entry: Entry) -> Answer:
        message = entry.message
        told = {"id": str(message.id), "about": message.correlation_id, **message.payload}
        answer = await self._http.request("POST", "/events", json=told)
        return Delivered() if answer.is_success else Deferred(f"the listener answered {answer.status}")


@dataclass
class Listener:
    """An ASGI application that keeps each event once, by its id."""

    told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._application = Starlette(routes=[Route("/events", self._hear, methods=["POST"])])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)

    async def _hear(self, request: Request) -> Response:
        event = await request.json()
        self.told[event["id"]] = (event["about"], event["end"])
        return Response(status_code=204)
