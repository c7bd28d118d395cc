"""The dispatcher's own HTTP: what it sends, which answers count, and when a connection is used again."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from payonce.kit.http import Unsendable
from payonce.kit.http.connection import HEAD_MAX_BYTES
from payonce.kit.http.failures import Broken
from payonce.taskserver.wire import ResponseHead, Wire
from payonce.testing import eventually
from tests.kit.test_http_sockets import self_signed

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b"<close>"
STALL = b"<stall>"
BETWEEN_PARTS_S = 0.02
NOTICED_S = 0.05
"""Within it a client on the same machine hears that a connection is gone."""


@dataclass
class Peer:
    """Answers each request with what the script says next, and counts connections."""

    script: list[list[bytes]]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while self.script:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
                self.requests.append(head + await reader.readexactly(length))
                for part in self.script.pop(0):
                    if part is CLOSE:
                        return
                    if part is STALL:
                        await reader.read()
                        return
                    writer.write(part)
                    await writer.drain()
                    # Each part is to be a read of its own.
                    await asyncio.sleep(BETWEEN_PARTS_S)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def playing(
    *script: list[bytes], idle_max_s: float = 10.0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Peer, Wire]]:
    peer, wire = Peer(list(script)), Wire(idle_max_s)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=tls)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield peer, wire
    finally:
        await wire.close()
        server.close()


async def asked(wire: Wire, peer: Peer, method: str = "POST", body: bytes = b"") -> ResponseHead:
    async with asyncio.timeout(20):
        return await wire.exchange(method, f"{peer.url}/a%20b?c=d", [("X-Own", "kept")], body)


async def test_a_connection_is_used_again_and_the_request_is_whole() -> None:
    async with playing([OK], [OK]) as (peer, wire):
        assert await asked(wire, peer, body=b"abc") == ResponseHead(200, None)
        await asked(wire, peer)
        assert peer.connections == 1
        host = peer.url.removeprefix("http://").encode()
        head = b"POST /a%20b?c=d HTTP/1.1\r\nHost: " + host + b"\r\nX-Own: kept\r\nContent-Length: "
        assert peer.requests == [head + b"3\r\n\r\nabc", head + b"0\r\n\r\n"]


async def test_requests_at_once_have_a_connection_each() -> None:
    async with playing([OK], [OK], [OK]) as (peer, wire):
        await asyncio.gather(*(asked(wire, peer) for _ in range(3)))
        assert peer.connections == 3


async def test_a_connection_that_the_peer_has_closed_is_not_written_to() -> None:
    async with playing([OK, CLOSE], [OK]) as (peer, wire):
        await asked(wire, peer)
        await eventually(lambda: not peer.open, 20, "the peer has closed")
        await asyncio.sleep(NOTICED_S)
        assert await asked(wire, peer) == ResponseHead(200, None)
        assert peer.connections == 2


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"half", STALL], id="a body that stops"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", STALL], id="told to close"
        ),
        pytest.param([b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", STALL], id="of the older kind"),
        pytest.param(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", STALL], id="chunks that stop"
        ),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\n\r\nx", STALL], id="an encoding of its own"),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\nuntil the end", CLOSE], id="a body until the end"),
        pytest.param([b"HTTP/1.1 200 OK\r\n\r\n", CLOSE], id="no body until the end"),
        pytest.param([OK + b"HTTP/1.1 500 Unasked\r\n\r\n", STALL], id="more than was asked for"),
        pytest.param([OK + OK, STALL], id="the same twice"),
        pytest.param([OK, b"HTTP/1.1 500 Unasked\r\n\r\n", STALL], id="more, and later"),
    ],
)
async def test_an_answer_counts_and_its_connection_is_not_used_again(parts: list[bytes]) -> None:
    async with playing(parts, [OK]) as (peer, wire):
        assert await asked(wire, peer) == ResponseHead(200, None)
        await eventually(lambda: not peer.open, 20, "the connection is closed")
        assert (await asked(wire, peer)).status == 200
        assert peer.connections == 2


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([CLOSE], id="nothing"),
        pytest.param([b"HTTP/1.1 200 OK\r\nConte", CLOSE], id="half a head"),
        pytest.param([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", CLOSE], id="a head without its body"),
        pytest.param([b"SSH-2.0-OpenSSH\r\n", STALL], id="another language"),
        pytest.param([b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_MAX_BYTES * 2, STALL], id="a head that does not end"),
    ],
)
async def test_what_is_no_answer_is_told_and_never_sent_again(parts: list[bytes]) -> None:
    async with playing(parts, [OK]) as (peer, wire):
        with pytest.raises(Broken):
            await asked(wire, peer)
        await eventually(lambda: not peer.open, 20, "the connection is closed")
        assert len(peer.requests) == 1


async def test_what_comes_before_the_answer_is_not_the_answer() -> None:
    first = b"HTTP/1.1 100 Continue\r\n\r\n"
    late = b"HTTP/1.1 503 Later\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    async with playing([first, first + late], [OK]) as (peer, wire):
        assert await asked(wire, peer) == ResponseHead(503, "7")
        assert await asked(wire, peer) == ResponseHead(200, None)
        assert peer.connections == 1


async def test_a_redirect_is_an_answer() -> None:
    moved = b"HTTP/1.1 307 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    async with playing([moved], [OK]) as (peer, wire):
        assert (await asked(wire, peer)).status == 307
        assert len(peer.requests) == 1


async def test_the_answer_to_head_has_no_body_whatever_it_says() -> None:
    async with playing([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", STALL], [OK]) as (peer, wire):
        assert (await asked(wire, peer, "HEAD")).status == 200
        assert b"Content-Length" not in peer.requests[0]
        await eventually(lambda: not peer.open, 20, "the connection is closed")


async def test_a_request_that_is_called_off_closes_its_connection() -> None:
    async with playing([STALL], [OK]) as (peer, wire):
        asking = asyncio.create_task(asked(wire, peer))
        await eventually(lambda: len(peer.requests) == 1, 20, "the request has come")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: not peer.open, 20, "the connection is closed")
        assert (await asked(wire, peer)).status == 200


async def test_an_idle_connection_is_closed_in_time() -> None:
    async with playing([OK], [OK], idle_max_s=0.2) as (peer, wire):
        await asked(wire, peer)
        await eventually(lambda: not peer.open, 20, "the connection is closed")
        assert (await asked(wire, peer)).status == 200


async def test_a_login_in_the_address_becomes_a_header() -> None:
    async with playing([OK]) as (peer, wire):
        await wire.exchange("GET", peer.url.replace("://", "://me:secret@"), [], b"")
        assert b"Authorization: Basic bWU6c2VjcmV0\r\n" in peer.requests[0]
        assert b"secret" not in peer.requests[0]


@pytest.mark.parametrize(
    "header",
    [
        ("X-Own", "a\r\nX-Other: b"),
        ("X-Own", "a\nb"),
        ("X-Own", "a\0"),
        ("X\r\nOther", "b"),
        ("", "b"),
        ("X Own", "b"),
        ("Content-Length ", "7"),
        (" X-Own", "b"),
        ("X-Own:", "b"),
        ("X-Öwn", "b"),
    ],
)
async def test_what_is_no_line_of_a_header_is_not_sent(header: tuple[str, str]) -> None:
    async with playing([OK]) as (peer, wire):
        with pytest.raises(Unsendable):
            await wire.exchange("GET", peer.url, [header], b"")
        assert not peer.connections


async def test_the_value_of_a_header_goes_as_it_is() -> None:
    async with playing([OK]) as (peer, wire):
        await wire.exchange("GET", peer.url, [("X-Own", "\tä, b")], b"")
        assert "X-Own: \tä, b\r\n".encode() in peer.requests[0]


@pytest.mark.parametrize(
    ("url", "first_lines"),
    [
        ("http://localhost.:{port}", b"GET / HTTP/1.1\r\nHost: localhost:{port}\r\n"),
        ("http://127.0.0.1:{port}/a b/ü?c=d e#part", b"GET /a%20b/%C3%BC?c=d+e HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"),
    ],
)
async def test_a_url_is_read_as_clients_write_it(url: str, first_lines: bytes) -> None:
    async with playing([OK]) as (peer, wire):
        port = peer.url.rpartition(":")[2]
        assert (await wire.exchange("GET", url.replace("{port}", port), [], b"")).status == 200
        assert peer.requests[0].startswith(first_lines.replace(b"{port}", port.encode()))


async def test_an_address_of_the_newer_kind_is_sent_to() -> None:
    peer, wire = Peer([[OK]]), Wire()
    async with await asyncio.start_server(peer.serve, "::1", 0) as server:
        place = f"[::1]:{server.sockets[0].getsockname()[1]}"
        assert (await wire.exchange("GET", f"http://{place}/x", [], b"")).status == 200
        await wire.close()
    assert peer.requests == [f"GET /x HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()]


async def test_a_certificate_that_nobody_vouches_for_is_not_sent_to(tmp_path: Path) -> None:
    async with playing([OK], tls=self_signed(tmp_path)) as (peer, wire):
        with pytest.raises(Broken, match="certificate was not accepted"):
            await wire.exchange("GET", peer.url.replace("http://", "https://"), [], b"")
        assert not peer.requests
