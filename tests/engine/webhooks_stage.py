"""A webhook receiver behind a real server, with books of its own and answers on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from payonce.engine.messages.process import Worker
from payonce.engine.webhooks import (
    Delivery,
    Endpoint,
    Sender,
    add_endpoint,
    announce,
    deliver,
    deliveries,
    endpoint,
    webhook_client,
)
from payonce.kit.crypto import Keyring
from payonce.kit.http import HttpClient
from payonce.kit.webhooks import Secret
from payonce.testing import OpenStage, Stage
from payonce.testing.server import serving

KEYS = Keyring({1: b"k" * 32})


@dataclass(frozen=True)
class Arrived:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Say:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


Event = MutableMapping[str, Any]


@dataclass
class Shop:
    """An ASGI application. Its books are the oracle: whatever is in `arrived` was sent, as often as it is there."""

    answers: list[Say] = field(default_factory=list)
    """Returned in order, then `usual` for ever."""
    usual: Say = Say()
    arrived: list[Arrived] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event | None = None
    """When set, a request blocks, read and unanswered, until it is released."""

    async def __call__(
        self, scope: Event, receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self.arrived.append(Arrived(scope["path"], headers, body))
        self.heard.set()
        if self.resume is not None:
            await self.resume.wait()
        say = self.answers.pop(0) if self.answers else self.usual
        pairs = [(name.encode(), value.encode()) for name, value in say.headers.items()]
        await send({"type": "http.response.start", "status": say.status, "headers": pairs})
        await send({"type": "http.response.body", "body": say.body})


@dataclass
class Post:
    s: Stage
    shop: Shop
    url: str
    sender: Sender
    worker: Worker

    async def add(self, *events: str, path: str = "/hook", **options: Any) -> tuple[Endpoint, Secret]:
        async with self.s.begin() as tx:
            return await add_endpoint(
                tx,
                KEYS,
                url=options.pop("url", self.url + path),
                events=events or ("*",),
                by="ada",
                allow_private=True,
                **options,
            )

    async def announce(
        self, event_type: str = "invoice.paid", data: dict[str, Any] | None = None, **options: Any
    ) -> str:
        async with self.s.begin() as tx:
            return await announce(tx, event_type, {"amount": "12.50"} if data is None else data, **options)

    async def run(self, for_s: float = 0.0) -> None:
        """Lets everything happen that falls due within that time."""
        await self.s.run(self.worker, for_s)

    async def deliveries(self, **which: Any) -> list[Delivery]:
        """The oldest first."""
        return (await deliveries(self.s.read, **which))[::-1]

    async def states(self) -> list[str]:
        return [str(each.state) for each in await self.deliveries()]

    async def look(self, endpoint_id: UUID) -> Endpoint:
        return await endpoint(self.s.read, endpoint_id)

    async def notes(self) -> list[tuple[str, str]]:
        """The audit log: actors and texts."""
        rows = await self.s.owner.fetch("select actor, text from payonce.audit_log order by id")
        return [(row["actor"], row["text"].replace(self.url, "SHOP")) for row in rows]

    async def now(self) -> datetime:
        return await self.s.clock.now()


@asynccontextmanager
async def open_post(
    stage: OpenStage, *, http: HttpClient | None = None, keys: Keyring | None = KEYS
) -> AsyncIterator[Post]:
    async with stage() as s, serving(shop := Shop()) as url:
        await s.clock.freeze()
        async with http or webhook_client(allow_private=True) as client:
            sender = Sender(client, s.database, keys)
            yield Post(s, shop, url, sender, await s.worker(deliver, resources=[sender]))
