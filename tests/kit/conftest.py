"""One small vendor, reached by the production client over a real socket and in process."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from payonce.kit.http import Application, HttpClient
from payonce.kit.outcomes import NotSent

OpenClient = Callable[..., AbstractAsyncContextManager[HttpClient]]
BOMB_BYTES = 5_000_000


class Vendor:
    """Answers by path and records the requests."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.places: list[Any] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, parts = b"", 0
        while True:
            message = await receive()
            body, parts = body + message["body"], parts + 1
            if not message["more_body"]:
                break
        self.places.append(scope["client"])
        self.seen.append(
            {
                "method": scope["method"],
                "path": scope["path"],
                "raw_path": scope["raw_path"].decode(),
                "query": scope["query_string"].decode(),
                "headers": [[name.decode(), value.decode()] for name, value in scope["headers"]],
                "body": body.decode("latin-1"),
            }
        )
        self.asked.set()
        await getattr(self, scope["path"].strip("/").split("/")[-1].replace("-", "_"), self.echo)(receive, send)

    async def echo(self, receive: Any, send: Any) -> None:
        await answer(send, json.dumps(self.seen[-1]).encode(), ("content-type", "application/json"))

    async def slow(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        self.gone.set()

    async def endless(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while not self.gone.is_set():
                await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
                await asyncio.sleep(0)
        except OSError:
            self.gone.set()

    async def cut(self, receive: Any, send: Any) -> None:
        await answer(send, b"only this", ("content-length", "1000"))

    async def redirect(self, receive: Any, send: Any) -> None:
        await answer(send, b"", ("location", "/echo"), status=302)

    async def busy(self, receive: Any, send: Any) -> None:
        await answer(send, b"slow down", ("retry-after", "7"), status=429)

    async def packed(self, receive: Any, send: Any) -> None:
        await answer(send, gzip.compress(b'{"fee": 0.10}'), ("content-encoding", "gzip"))

    async def half_packed(self, receive: Any, send: Any) -> None:
        await answer(send, gzip.compress(b"0123456789" * 100)[:-12], ("content-encoding", "gzip"))

    async def badly_packed(self, receive: Any, send: Any) -> None:
        await answer(send, b"not gzip at all", ("content-encoding", "gzip"))

    async def oddly_packed(self, receive: Any, send: Any) -> None:
        await answer(send, b"?", ("content-encoding", "br"))

    async def bomb(self, receive: Any, send: Any) -> None:
        await answer(send, gzip.compress(b"0" * BOMB_BYTES), ("content-encoding", "gzip"))

    async def cookies(self, receive: Any, send: Any) -> None:
        await answer(send, b"", ("set-cookie", "a=1"), ("set-cookie", "b=2"))

    async def words(self, receive: Any, send: Any) -> None:
        await answer(send, b"token=abcdef123456 is not JSON, " + b"and long " * 100, status=502)

    async def crash(self, receive: Any, send: Any) -> None:
        raise LookupError("a bug in the vendor")

    async def crash_halfway(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        raise LookupError("a bug in the vendor")


async def answer(send: Any, body: bytes, *headers: tuple[str, str], status: int = 200) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    if not any(name == "content-length" for name, _ in headers):
        pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(application: Application) -> AsyncIterator[int]:
    """A uvicorn on a port of its own, in this loop."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=5,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup(sockets=[listener])
    try:
        yield listener.getsockname()[1]
    finally:
        await server.shutdown(sockets=[listener])
        listener.close()


async def patient(attempt: Callable[[float], Awaitable[None]]) -> None:
    """Calls `attempt` with longer and longer time limits, for a busy machine may need more time to connect."""
    for limit_s in (0.05, 0.5):
        with suppress(NotSent, TimeoutError):
            await attempt(limit_s)
            return
    await attempt(5.0)


@asynccontextmanager
async def _vendor() -> AsyncIterator[Vendor]:
    yield Vendor()


@pytest.fixture
def vendor() -> AbstractAsyncContextManager[Vendor]:
    return _vendor()


@pytest.fixture(params=["sockets", "in process"])
def open_client(request: pytest.FixtureRequest) -> OpenClient:
    """`async with open_client(vendor, …) as client:`, the same over either transport."""

    @asynccontextmanager
    async def over_sockets(vendor: Vendor, path: str = "", **options: Any) -> AsyncIterator[HttpClient]:
        async with serving(vendor) as port:
            base_url = f"http://127.0.0.1:{port}{path}"
            async with HttpClient("vendor", base_url, allow_private=True, **options) as client:
                yield client

    @asynccontextmanager
    async def in_process(vendor: Vendor, path: str = "", **options: Any) -> AsyncIterator[HttpClient]:
        async with HttpClient("vendor", f"https://vendor.example{path}", transport=vendor, **options) as client:
            yield client

    return over_sockets if request.param == "sockets" else in_process
