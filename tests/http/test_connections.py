"""Limits on connections, on unread answers and on pipelined requests, over real sockets."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from payonce.app.process import App
from payonce.http import openapi
from payonce.http.connections import SWEEP_MAX, Connections
from payonce.http.server import bound, listening, served
from payonce.http.turns import Turns
from payonce.settings import Settings, load_settings
from payonce.testing import eventually
from tests.http.conftest import OpenWeb

LARGE = b"x" * 4_000_000
LINE = b"y" * 1_000
LINES = 20_000
WITHIN_S = 30.0
PAUSE = threading.Event()
"""Never set: to wait for it is to read slowly."""


class Site:
    """Answers with its path; /large with more than sockets hold, /held when it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.began = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began += 1
        if scope["path"] == "/held":
            await self.let_go.wait()
        if scope["path"] == "/stream":
            await StreamingResponse(_lines())(scope, receive, send)
            return
        body = LARGE if scope["path"] == "/large" else scope["path"].encode()
        await PlainTextResponse(body)(scope, receive, send)


async def _lines() -> AsyncIterator[bytes]:
    for _ in range(LINES):
        yield LINE


@asynccontextmanager
async def site(connections: Connections) -> AsyncIterator[tuple[Site, int]]:
    answering = Site()
    async with served(answering, bound("127.0.0.1", 0), None, connections) as (port, _):
        yield answering, port


async def opened(
    port: int, path: str = "", source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=2**10)
    if path:
        writer.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
    return reader, writer


async def answer_of(reader: asyncio.StreamReader, ending: bytes) -> bytes:
    async with asyncio.timeout(WITHIN_S):
        return await reader.readuntil(ending)


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(WITHIN_S):
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            pass
    return True


async def test_an_answer_that_is_not_read_in_time_is_given_up() -> None:
    async with site(Connections(unread_limit_s=0.3, sweep_s=0.05)) as (_, port):
        reader, writer = await opened(port, "/large")
        transport = writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]

        def given_up() -> bool:
            # Seen by writing: a connection that was given up refuses what is sent.
            writer.write(b"x")
            return transport.is_closing()

        await eventually(given_up, WITHIN_S, "the server gives the answer up")
        writer.close()
        reader, writer = await opened(port, "/large")
        async with asyncio.timeout(WITHIN_S):
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(len(LARGE))) == len(LARGE)
        writer.close()


async def test_a_stream_that_is_read_slowly_comes_to_its_end() -> None:
    """It fills up what the client takes: however long it reads, as much is unsent as before."""
    async with site(Connections(unread_limit_s=0.2, sweep_s=0.01)) as (_, port):
        reader, writer = await opened(port, "/stream")
        async with asyncio.timeout(WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in head
            read_bytes, began = 0, time.monotonic()
            while part := await reader.read(65_536):
                read_bytes += len(part)
                if part.endswith(b"\r\n0\r\n\r\n"):
                    break
                if time.monotonic() - began < 2.0:
                    await asyncio.to_thread(PAUSE.wait, 0.01)
        assert read_bytes > LINES * len(LINE)
        writer.close()


async def test_connections_that_are_late_together_are_given_up_a_few_at_a_time() -> None:
    limits = Connections(unread_limit_s=0.3, sweep_s=0.05)
    count = 3 * SWEEP_MAX
    async with site(limits) as (_, port):
        writers = [(await opened(port, "/large"))[1] for _ in range(count)]
        for writer in writers:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        most, before = 0, count
        while len(limits):
            most, before = max(most, before - len(limits)), len(limits)
            await asyncio.sleep(0)
        assert most <= SWEEP_MAX
        for writer in writers:
            writer.close()


async def test_an_address_at_its_limit_gives_up_idle_connections_and_none_in_progress() -> None:
    async with site(Connections(most=100, most_per_address=2, idle_least_s=0.0)) as (answering, port):
        idle, first = await opened(port, "/idle")
        await answer_of(idle, b"/idle")
        held, second = await opened(port, "/held")
        await eventually(lambda: answering.began == 2, WITHIN_S, "the second request is in progress")
        third_reader, third = await opened(port, "/held")
        assert await closed(idle)
        await eventually(lambda: answering.began == 3, WITHIN_S, "the third request is in progress")
        refused, fourth = await opened(port)
        said = await answer_of(refused, b"}")
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections" in said
        other, fifth = await opened(port, "/other", source="127.0.0.9")
        await answer_of(other, b"/other")
        answering.let_go.set()
        await answer_of(held, b"/held")
        await answer_of(third_reader, b"/held")
        for writer in (first, second, third, fourth, fifth):
            writer.close()


@pytest.mark.parametrize(
    ("most", "most_per_address", "answered"), [(10, 500, 10), (1_000, 2, 6)], ids=["in all", "per address"]
)
async def test_a_listening_process_has_the_limits_of_its_settings(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, most: int, most_per_address: int, answered: int
) -> None:
    """A connection too many is refused, or closes one that was idle for a while: as many as the limit are left."""
    assert settings.access.http_connections > answered, "the settings without these variables"
    monkeypatch.setenv("PAYONCE_HTTP_CONNECTIONS", str(most))
    monkeypatch.setenv("PAYONCE_HTTP_CONNECTIONS_PER_ADDRESS", str(most_per_address))
    async with App.open(load_settings()) as app, listening(app, "127.0.0.1", 0) as port:
        lines = [await opened(port, source=f"127.0.0.{last}") for last in (2, 3, 4) for _ in range(5)]
        alive = [await is_answered(*line) for line in lines]
        assert sum(alive) == answered
        for _, writer in lines:
            writer.close()


async def is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return (await answer_of(reader, b"}")).startswith(b"HTTP/1.1 200 ")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


async def test_a_connection_whose_body_still_comes_gives_way_to_a_new_one() -> None:
    """Else slow bodies from a few addresses shut everybody out."""
    head = b"POST /held HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n"
    async with site(Connections(most=2, most_per_address=2, idle_least_s=0.0)) as (answering, port):
        slow, first = await opened(port, source="127.0.0.2")
        first.write(head + b"x")
        await eventually(lambda: answering.began == 1, WITHIN_S, "the slow request is in progress")
        whole, second = await opened(port, source="127.0.0.2")
        second.write(head + b"xy")
        await eventually(lambda: answering.began == 2, WITHIN_S, "the whole request is in progress")
        _, third = await opened(port, "/held", source="127.0.0.3")
        await eventually(lambda: answering.began == 3, WITHIN_S, "a new connection is admitted")
        assert await closed(slow)
        refused, fourth = await opened(port, source="127.0.0.4")
        assert (await answer_of(refused, b"}")).startswith(b"HTTP/1.1 503 ")
        answering.let_go.set()
        await answer_of(whole, b"/held")
        for writer in (first, second, third, fourth):
            writer.close()


async def test_in_all_the_address_with_the_most_connections_gives_one_up() -> None:
    async with site(Connections(most=4, most_per_address=4, idle_least_s=0.0)) as (_, port):
        crowd = [await opened(port, "/idle", source="127.0.0.2") for _ in range(4)]
        for reader, _ in crowd:
            await answer_of(reader, b"/idle")
        other, writer = await opened(port, "/other", source="127.0.0.3")
        await answer_of(other, b"/other")
        assert await closed(crowd[0][0])
        crowd[1][1].write(b"GET /again HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await answer_of(crowd[1][0], b"/again")
        for _, each in [*crowd, (other, writer)]:
            each.close()


async def test_a_trusted_proxy_is_bounded_only_in_all() -> None:
    async with site(Connections(most=10, most_per_address=1, proxies="127.0.0.0/8")) as (_, port):
        lines = [await opened(port, "/held" if number else "/one") for number in range(3)]
        await answer_of(lines[0][0], b"/one")
        lines[0][1].write(b"GET /two HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await answer_of(lines[0][0], b"/two")
        for _, writer in lines:
            writer.close()


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "byte by byte"])
async def test_pipelined_requests_are_answered_in_order_and_few_of_them_wait(at_once: bool) -> None:
    count = 100 if at_once else 10
    body = b"y" * 10_000
    async with site(Connections()) as (answering, port):
        reader, writer = await opened(port, "/held")
        sent = b"".join(
            b"POST /%d/ HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (number, len(body), body)
            for number in range(count)
        )
        for part in [sent] if at_once else [sent[at : at + 1_000] for at in range(0, len(sent), 1_000)]:
            writer.write(part)
            await asyncio.sleep(0)
        answering.let_go.set()
        await answer_of(reader, b"/held")
        for number in range(count):
            await answer_of(reader, b"\r\n\r\n/%d/" % number)
        writer.close()


async def test_requests_start_in_turn_by_address_a_few_at_a_time_and_pipelined_ones_last() -> None:
    turns, started = Turns(per_pass=3), list[str]()
    for number in range(5):
        turns.request("a", lambda number=number: started.append(f"a{number}"), pipelined=False)  # type: ignore[misc]
        turns.request("c", lambda number=number: started.append(f"c{number}"), pipelined=True)  # type: ignore[misc]
    turns.request("b", lambda: started.append("b0"), pipelined=False)
    passes = []
    while len(started) < 11:
        await asyncio.sleep(0)
        passes.append(list(started))
    assert passes[0] == ["a0", "b0", "a1"]
    assert passes[1][3:] == ["a2", "a3", "a4"]
    assert started[6:] == [f"c{number}" for number in range(5)]


async def test_the_description_is_rendered_once(web: OpenWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []

    def dumps(document: object, **how: Any) -> str:
        rendered.append(json.dumps(document, **how))
        return rendered[-1]

    monkeypatch.setattr(openapi, "json", SimpleNamespace(dumps=dumps))
    async with web() as ask:
        answers = await asyncio.gather(*(ask.get("/openapi.json") for _ in range(30)))
        first = answers[0]
        assert {answer.body for answer in answers} == {rendered[0].encode()}
        assert len(rendered) == 1, "the event loop has leases to renew meanwhile"
        unchanged = await ask.get("/openapi.json", if_none_match=first.headers["etag"])
        assert (unchanged.status, unchanged.body) == (304, b"")
