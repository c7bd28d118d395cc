"""Answers in every form of HTTP/1.1, and when a connection may serve the next request."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.http.connection import HEAD_MAX_BYTES
from payonce.kit.http.sockets import SocketTransport
from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing.eventually import eventually

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 5\r\n\r\nhello"
BETWEEN_PARTS_S = 0.001
NOTICED_S = 0.05
"""Within this time a client on the same machine notices a closed connection."""
CUT = "the answer was cut short"
NO_HTTP = "the answer was not HTTP"


class Speaker:
    """Answers every request with the same bytes in the given parts, then hangs up if `hangs_up`."""

    def __init__(self, *parts: bytes, hangs_up: bool = False) -> None:
        self.parts = parts
        self.hangs_up = hangs_up
        self.connections = 0
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.gone = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                self.requests.append(head + await reader.readexactly(int(length[1]) if length else 0))
                for part in self.parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(BETWEEN_PARTS_S)
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            writer.close()


@asynccontextmanager
async def spoken_to(speaker: Speaker, **options: object) -> AsyncIterator[HttpClient]:
    server = await asyncio.start_server(speaker, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with HttpClient("vendor", url, allow_private=True, **options) as client:  # type: ignore[arg-type]
            yield client
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        ((PLAIN,), 1),
        (tuple(PLAIN[at : at + 1] for at in range(len(PLAIN))), 1),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;more=1\r\nllo\r\n", b"0\r\nSum: 1\r\n\r\n"), 1),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + PLAIN), 1),
        ((OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello",), 2),
        ((b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",), 2),
        ((OK + b"Connection: Upgrade, keep-alive\r\nUpgrade: h2\r\nContent-Length: 5\r\n\r\nhello",), 1),
        ((PLAIN + PLAIN,), 2),
        ((PLAIN + b"H",), 2),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n" + PLAIN,), 2),
        ((PLAIN + b"and more that nobody asked for",), 2),
        ((OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello" + PLAIN,), 2),
    ],
)
async def test_an_answer_is_read_to_its_end_and_no_further(answer: Sequence[bytes], connections: int) -> None:
    speaker = Speaker(*answer)
    async with spoken_to(speaker) as client:
        for _ in range(2):
            found = await client.request("POST", "/x", body=b"asked")
            assert (found.status, found.body, "Link" in found.headers) == (200, b"hello", False)
    assert (speaker.connections, len(speaker.requests)) == (connections, 2)


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    speaker = Speaker(OK + b"\r\nhel", b"lo", hangs_up=True)
    async with spoken_to(speaker) as client:
        for _ in range(2):
            assert (await client.request("GET", "/x")).body == b"hello"
    assert speaker.connections == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OK + b"Content-Length: 9\r\n\r\nhello", CUT),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", CUT),
        (OK[:9], "dropped before an answer"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", "dropped before an answer"),
        (OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello", NO_HTTP),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", NO_HTTP),
        (b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nhel" + PLAIN, NO_HTTP),
        (OK + b"Content-Length: -1\r\n\r\nhello", NO_HTTP),
        (OK + b"Content-Length: 5, 5\r\n\r\nhello", NO_HTTP),
        (OK + b"Content-Length : 5\r\n\r\nhello", NO_HTTP),
        (OK + b"Transfer-Encoding: chunked, identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n", NO_HTTP),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n", NO_HTTP),
        (OK + b"X: a\r\n Content-Length: 5\r\n\r\nhello", NO_HTTP),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5 \nhello\r\n0\r\n\r\n", NO_HTTP),
        (b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", NO_HTTP),
        (OK + b"X: " + b"y" * 2 * HEAD_MAX_BYTES, NO_HTTP),
        (OK + b"X: y\r\n" * HEAD_MAX_BYTES, NO_HTTP),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * HEAD_MAX_BYTES, NO_HTTP),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * HEAD_MAX_BYTES, NO_HTTP),
    ],
)
async def test_a_partial_or_malformed_answer_is_unknown(answer: bytes, why: str) -> None:
    async with spoken_to(Speaker(answer, hangs_up=True)) as client:
        with pytest.raises(Unknown, match=why):
            await client.request("POST", "/x")


async def test_the_answer_to_head_has_no_body_whatever_its_length_says() -> None:
    speaker = Speaker(OK + b"Content-Length: 5\r\n\r\n")
    async with spoken_to(speaker, timeout_s=5) as client:
        for _ in range(2):
            found = await client.request("HEAD", "/x")
            assert (found.status, found.body, found.headers["Content-Length"]) == (200, b"", "5")


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize(("after", "connections"), [(b"", 1), (b"hello", 2)])
async def test_an_answer_that_can_have_no_body_has_none(status: int, after: bytes, connections: int) -> None:
    """Whatever length it declares, following bytes are neither part of it nor the response to the next request."""
    speaker = Speaker(b"HTTP/1.1 %d Nothing\r\nContent-Length: 5\r\n\r\n" % status + after)
    async with spoken_to(speaker, timeout_s=5) as client:
        for _ in range(2):
            found = await client.request("GET", "/x")
            assert (found.status, found.body) == (status, b"")
    assert speaker.connections == connections


async def test_requests_that_can_have_a_body_state_its_length() -> None:
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker) as client:
        for method in ("GET", "POST", "DELETE"):
            await client.request(method, "/x", query={"a": "b c&d"}, headers={"X-Key": "1"})
        await client.request("PUT", "/", body=b"z" * 2_000_000)
    get, post, delete, put = speaker.requests
    assert get.startswith(b"GET /x?a=b+c%26d HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-Key: 1\r\n" in get
    assert [b"Content-Length: 0\r\n" in each for each in (get, post, delete)] == [False, True, True]
    assert put.endswith(b"\r\nContent-Length: 2000000\r\n\r\n" + b"z" * 2_000_000)


@pytest.mark.parametrize("unasked", [b"", PLAIN])
async def test_an_idle_connection_with_activity_is_not_reused(unasked: bytes) -> None:
    """The server hangs up or sends unsolicited bytes: the next request uses another connection."""
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker) as client:
        await client.request("POST", "/x")
        (writer,) = speaker.writers
        if unasked:
            writer.write(unasked)
            await eventually(lambda: speaker.gone == 1)
        else:
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(NOTICED_S)
        assert (await client.request("POST", "/x")).body == b"hello"
    assert speaker.connections == 2


async def test_an_idle_connection_is_closed_in_time() -> None:
    speaker = Speaker(PLAIN)
    transport = SocketTransport(
        connect_timeout_s=5, connections_max=1, allow_private=True, resolve=None, tls=None, idle_max_s=0.05
    )
    async with spoken_to(speaker, transport=transport) as client:
        await client.request("GET", "/x")
        await eventually(lambda: speaker.gone == 1)
        await client.request("GET", "/x")
    assert speaker.connections == 2


@pytest.mark.parametrize("part", [b"", OK, OK + b"Content-Length: 5\r\n\r\nhel"])
async def test_an_abandoned_answer_is_not_read_by_the_next_request(part: bytes) -> None:
    speaker = Speaker(part)
    async with spoken_to(speaker) as client:
        with pytest.raises(Unknown, match=r"no answer within 0\.2 s"):
            await client.request("POST", "/x", timeout_s=0.2)
        await eventually(lambda: speaker.gone == 1)
        waiting = asyncio.create_task(client.request("POST", "/x"))
        await eventually(lambda: len(speaker.requests) == 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: speaker.gone == 2)
        speaker.parts = (PLAIN,)
        assert (await client.request("POST", "/x")).body == b"hello"
    assert speaker.connections == 3


async def test_closing_a_client_ends_its_requests() -> None:
    speaker = Speaker(b"")
    async with spoken_to(speaker) as client:
        waiting = asyncio.create_task(client.request("POST", "/x"))
        await eventually(lambda: len(speaker.requests) == 1)
        await client.close()
        with pytest.raises(Unknown, match="dropped before an answer"):
            await waiting


async def test_a_closed_client_sends_no_request_that_waits_for_a_connection() -> None:
    looked_up, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(host: str, port: int) -> Sequence[str]:
        looked_up.set()
        await go_on.wait()
        return ["127.0.0.1"]

    speaker = Speaker(PLAIN)
    server = await asyncio.start_server(speaker, "127.0.0.1", 0)
    url = f"http://vendor.example:{server.sockets[0].getsockname()[1]}"
    async with HttpClient("vendor", url, allow_private=True, resolve=slowly) as client:
        waiting = asyncio.create_task(client.request("POST", "/x"))
        await looked_up.wait()
        await client.close()
        go_on.set()
        with pytest.raises(NotSent, match="the client was closed"):
            await waiting
    server.close()
    await server.wait_closed()
    assert not speaker.requests


async def test_an_early_answer_to_a_long_request_ends_the_connection() -> None:
    """Unsent bytes would be read as the beginning of the next request."""
    connections, is_over = 0, asyncio.Event()

    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN)
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1_024)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HttpClient("vendor", url, allow_private=True) as client:
        for _ in range(2):
            assert (await client.request("POST", "/x", body=b"z" * 16_000_000)).body == b"hello"
    assert connections == 2
    is_over.set()
    server.close()
    await server.wait_closed()


async def test_more_requests_than_connections_take_turns() -> None:
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker, connections_max=2) as client:
        await asyncio.gather(*(client.request("POST", "/x") for _ in range(20)))
    assert (speaker.connections, len(speaker.requests)) == (2, 20)


async def test_the_next_address_is_tried_when_one_refuses() -> None:
    async def two(host: str, port: int) -> Sequence[str]:
        # The first one refuses connections.
        return ["127.0.0.2", "127.0.0.1"]

    speaker = Speaker(PLAIN)
    server = await asyncio.start_server(speaker, "127.0.0.1", 0)
    url = f"http://vendor.example:{server.sockets[0].getsockname()[1]}"
    async with HttpClient("vendor", url, allow_private=True, resolve=two) as client:
        assert (await client.request("GET", "/x")).body == b"hello"
    server.close()
    await server.wait_closed()
