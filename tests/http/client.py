"""Requests to the application in this process, as a server would hand them over."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from payonce.app.process import App
from payonce.engine.operators.api_keys import make_key
from payonce.testing import ScratchDatabase


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> Any:
        """The document, held against its promises."""
        assert self.headers["content-type"] == "application/problem+json", (self.headers, self.body)
        found = self.json
        assert found["status"] == self.status
        assert found["title"]
        assert found["detail"]
        assert found["trace_id"] == self.headers["trace-id"]
        return found


@dataclass
class WebClient:
    app: App
    web: FastAPI
    scratch: ScratchDatabase
    headers: dict[str, str] = field(default_factory=dict)
    client: str = "192.0.2.1"

    async def as_holder(self, holder: str, *scopes: str, tenant: str | None = None, **more: float) -> "WebClient":
        """The same, with a fresh key of theirs."""
        async with self.app.begin() as tx:
            made = await make_key(tx, holder, scopes, "tester", tenant=tenant, **more)
        return replace(self, headers={"authorization": f"Bearer {made.secret}"})

    async def get(self, path: str, **headers: str) -> Answer:
        return await self("GET", path, headers=headers)

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return await self("POST", path, body=body, headers=headers)

    async def __call__(
        self, method: str, path: str, *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """A header's underscores are dashes; a body that is not bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in (headers or {}).items()}}
        if raw and "content-type" not in given:
            given["content-type"] = "application/json"
        return await send_request(self.web, method, path, [raw], given, self.client)


async def send_request(
    web: ASGIApp, method: str, path: str, parts: list[bytes], headers: Mapping[str, str], client: str = "192.0.2.1"
) -> Answer:
    bare, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": unquote(bare),
        "raw_path": bare.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "server": ("127.0.0.1", 8080),
        "client": (client, 50_000),
        "state": {},
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }
    incoming = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)}
        for number, part in enumerate(parts, start=1)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await web(scope, receive, send)
    start, *rest = sent
    return Answer(
        start["status"],
        {name.decode(): value.decode("latin-1") for name, value in start["headers"]},
        b"".join(part.get("body", b"") for part in rest),
    )
