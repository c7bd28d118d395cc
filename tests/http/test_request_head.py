"""What a proxy and this server might read as different requests is refused; what follows a request waits unparsed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from payonce.http.connections import Connections
from payonce.http.protocol import CHUNKS_PART_BYTES, HEAD_PART_BYTES, HEADERS_MAX, PunctualProtocol
from payonce.http.server import bound, served
from payonce.http.turns import STARTS_PER_PASS
from payonce.testing import eventually

WITHIN_S = 30.0
HOST = b"host: localhost\r\n"
POST = b"POST /one HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


class Site:
    """Reads the body, waits at /held until it is let go, and answers with the path."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.passes = 0
        """Of the event loop."""
        self.ended_in: list[int] = []
        """The pass in which the body of each request was whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.ended_in.append(self.passes)
        self.bodies.append(body)
        if scope["path"] == "/held":
            await self.let_go.wait()
        await PlainTextResponse(scope["path"])(scope, receive, send)

    async def count_passes(self) -> None:
        while True:
            self.passes += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def site() -> AsyncIterator[tuple[Site, int]]:
    answering = Site()
    async with served(answering, bound("127.0.0.1", 0), None, Connections()) as (port, _):
        yield answering, port


async def answered(port: int, said: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(WITHIN_S):
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400),
        (POST + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc", 400),
        (POST + b"content-length: 3\r\ncontent-length: 0\r\n\r\nabc", 400),
        (POST + b"content-length: 3, 3\r\n\r\nabc", 400),
        (POST + b"content-length: +3\r\n\r\nabc", 400),
        (POST + b"content-length: -3\r\n\r\nabc", 400),
        (POST + b"content-length: 99999999999999999999999\r\n\r\nabc", 400),
        (POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding: identity\r\n\r\n", 501),
        (POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED + b"3\nabc\n0\n\n", 400),
        (CHUNKED + b"3;a\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED + b"3\r\nabcXX0\r\n\r\n", 400),
        (CHUNKED + b"fffffffffffffffff\r\nabc", 400),
        (b"GET /one HTTP/1.1\nhost: localhost\n\n", 400),
        (b"GET /one HTTP/1.1\r\n" + HOST + b"a: b\rc: d\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\n" + HOST + b"a: b\x00c\r\n\r\n", 400),
        (b"GET /one\r\n\r\n", 505),
        (b"GET /one HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET /one HTTP/1.1\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: rebound.example\r\n" + HOST + b"\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: rebound.example@localhost\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: localhost/rebound.example\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: localhost?rebound.example\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: localhost#rebound.example\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: localhost, rebound.example\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: localhost:rebound\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\nhost: local\thost\r\n\r\n", 400),
        (b"GET http://rebound.example/one HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://localhost@rebound.example/one HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://rebound.example@localhost/one HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://localhost/one HTTP/1.1\r\nhost: rebound.example\r\n\r\n", 400),
        (b"GET http://localhost:81/one HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (POST + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc", 400),
        (POST + b"connection: x, Upgrade\r\nupgrade: websocket\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400),
        (POST + b"idempotency-key: a\r\nIdempotency-Key: b\r\n\r\n", 400),
        (POST + b"content-type: text/plain\r\ncontent-type: application/json\r\n\r\n", 400),
        (b"GET /one HTTP/1.1\r\n" + HOST + b"a:b\r\n" * HEADERS_MAX + b"\r\n", 431),
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_refused_and_its_connection_closed(
    said: bytes, status: int
) -> None:
    async with site() as (answering, port):
        answer = await answered(port, said + b"GET /two HTTP/1.1\r\n" + HOST + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert answer.count(b"HTTP/1.1 ") == 1
        # The head of a chunked request was fine: it began, and its body never ended.
        assert answering.bodies == []
        assert {scope["path"] for scope in answering.scopes} <= {"/one"}


@pytest.mark.parametrize(
    "said",
    [
        POST + b"content-length: 3\r\n\r\nabc",
        POST + b"content-length: 0\r\n\r\n",
        CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3;name=value\r\nabc\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding:\tChunked\r\n\r\n0\r\n\r\n",
        b"GET http://localhost/one HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET http://LOCALHOST:8080/one HTTP/1.1\r\nhost: localhost:8080\r\n\r\n",
        b"GET http://[::1]:8080/one HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n",
        b"GET /one HTTP/1.1\r\nHost: Pay.Example.com.:443\r\n\r\n",
        b"GET /one HTTP/1.1\r\n" + HOST + b"cookie: a=b\r\ncookie: c=d\r\n\r\n",
        b"GET /one HTTP/1.1\r\n" + HOST + b"a:b\r\n" * (HEADERS_MAX - 1) + b"\r\n",
    ],
)
async def test_a_request_that_can_be_read_in_one_way_is_answered(said: bytes) -> None:
    async with site() as (_, port):
        answer = await answered(port, said + b"GET /two HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("headers", [b"", HOST])
async def test_a_probe_with_http_1_0_needs_no_host(headers: bytes) -> None:
    async with site() as (_, port):
        answer = await answered(port, b"GET /one HTTP/1.0\r\n" + headers + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_what_follows_the_body_is_no_header() -> None:
    async with site() as (answering, port):
        trailers = b"authorization: Bearer a\r\nx-forwarded-for: 127.0.0.1\r\nhost: rebound.example\r\n"
        said = CHUNKED + b"3\r\nabc\r\n0\r\n" + trailers + b"\r\n"
        await answered(port, said + b"GET /two HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n")
        assert answering.bodies == [b"abc", b""]
        assert {name for name, _ in answering.scopes[0]["headers"]} == {b"host", b"transfer-encoding"}


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
async def test_nothing_is_upgraded_and_the_connection_is_closed(upgrade: bytes) -> None:
    """The parser would pass over every further request of it."""
    async with site() as (answering, port):
        said = b"GET /one HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: %b\r\n\r\n" % upgrade
        answer = await answered(port, said)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer
        assert answering.bodies == [b""]


async def test_a_refused_request_takes_no_answer_from_the_one_before_it() -> None:
    async with site() as (answering, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /held HTTP/1.1\r\n" + HOST + b"\r\nGET /two HTTP/2.0\r\n\r\n")
        await eventually(lambda: len(answering.bodies) == 1, WITHIN_S, "the first request is in progress")
        answering.let_go.set()
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
        assert answer.endswith(b"/held")
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()


@pytest.mark.parametrize("chunked", [True, False])
async def test_what_follows_a_body_waits_unparsed(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of data can hold the end of a body and thousands of requests."""
    begun = 0
    begin = PunctualProtocol.on_message_begin

    def counted(protocol: PunctualProtocol) -> None:
        nonlocal begun
        begun += 1
        begin(protocol)

    monkeypatch.setattr(PunctualProtocol, "on_message_begin", counted)
    body = b"x" * 600
    length = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    held = b"POST /held HTTP/1.1\r\n" + HOST + length + b"\r\n\r\n"
    held += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    following = b"GET /two HTTP/1.1\r\n" + HOST + b"\r\n"
    async with site() as (answering, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(held + following * 1_000)
        await eventually(lambda: len(answering.bodies) == 1, WITHIN_S, "the first request is in progress")
        assert begun <= 1 + 512 // len(following)
        answering.let_go.set()
        async with asyncio.timeout(WITHIN_S):
            await reader.readuntil(b"/held")
            for _ in range(1_000):
                await reader.readuntil(b"/two")
        assert answering.bodies == [body] + [b""] * 1_000
        writer.close()


async def test_chunks_are_read_in_turn_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a call, and a megabyte of data holds a hundred thousand of them."""
    read_in: list[int] = []
    on_body = PunctualProtocol.on_body

    async with site() as (answering, port):

        def counted(protocol: PunctualProtocol, body: bytes) -> None:
            read_in.append(answering.passes)
            on_body(protocol, body)

        monkeypatch.setattr(PunctualProtocol, "on_body", counted)
        chunk, count, connections = b"1\r\na\r\n", 20_000, 3
        counting = asyncio.create_task(answering.count_passes())
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
        for _, writer in lines:
            writer.write(CHUNKED + chunk * count + b"0\r\n\r\n" + b"GET /two HTTP/1.1\r\n" + HOST + b"\r\n")
        async with asyncio.timeout(WITHIN_S):
            for reader, writer in lines:
                await reader.readuntil(b"/two")
                writer.close()
        counting.cancel()
    assert sorted(answering.bodies) == [b""] * connections + [b"a" * count] * connections
    most = max(Counter(read_in).values())
    assert most <= STARTS_PER_PASS * (CHUNKS_PART_BYTES + HEAD_PART_BYTES) // len(chunk)


async def test_bodies_that_end_at_once_are_read_in_turn() -> None:
    """As many requests as there are connections may wait for their last byte."""
    count = 40
    async with site() as (answering, port):
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]
        for writer in writers:
            writer.write(POST + b"content-length: 2\r\n\r\na")
        await eventually(lambda: len(answering.scopes) == count, WITHIN_S, "every request has begun")
        counting = asyncio.create_task(answering.count_passes())
        for writer in writers:
            writer.write(b"b")
        await eventually(lambda: len(answering.bodies) == count, WITHIN_S, "every body is whole")
        counting.cancel()
        at_once = max(answering.ended_in.count(number) for number in set(answering.ended_in))
        assert at_once <= STARTS_PER_PASS
        for writer in writers:
            writer.close()
