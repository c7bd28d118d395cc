"""What aiohttp does unless it is told otherwise, and what this client never does."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from payonce.kit.http import HttpClient, sockets
from payonce.kit.http.response import Attempt
from payonce.kit.http.sockets import FILE_FROM_BYTES, SocketTransport
from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing.eventually import eventually
from tests.kit.test_http_connections import NOTICED_S, OK, PLAIN, Speaker, spoken_to
from tests.kit.test_http_sockets import Dropper, client_of, listening


async def passed_on(
    transport: SocketTransport,
    attempt: Attempt,
    request: aiohttp.ClientRequest,
    handler: aiohttp.ClientHandlerType,
) -> aiohttp.ClientResponse:
    """The transport's middleware, without what keeps aiohttp from trying again."""
    request.attempt = attempt  # type: ignore[attr-defined]
    return await handler(request)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_even_if_aiohttp_tried_again_nothing_would_be_sent(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SocketTransport, "_send_once", passed_on)
    dropper = Dropper(answered=1)
    async with listening(dropper) as port, client_of(port) as client:
        await client.request(method, "/x")
        with pytest.raises(Unknown, match="dropped before an answer"):
            await client.request(method, "/x", body=b"")
    assert dropper.requests == [method, method]


async def test_a_server_that_speaks_first_has_not_answered() -> None:
    """A plain aiohttp takes it for the answer to the first request."""
    requests: list[bytes] = []

    async def speaks_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PLAIN)
        requests.append(await reader.read(4))
        writer.close()

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with listening(speaks_first) as port:
        transport = SocketTransport(
            connect_timeout_s=5, connections_max=1, allow_private=True, resolve=resolve, tls=None
        )
        session = transport._session(is_proxied=False)
        async with HttpClient("vendor", f"http://vendor.example:{port}", transport=transport) as client:
            connect = session.connector.connect  # type: ignore[union-attr]

            async def slowly(*arguments: Any, **options: Any) -> Any:
                connection = await connect(*arguments, **options)
                # Long enough for the loop to read what the server says.
                await asyncio.sleep(NOTICED_S)
                return connection

            session.connector.connect = slowly  # type: ignore[method-assign,union-attr]
            with pytest.raises(Unknown, match="dropped before an answer"):
                await client.request("POST", "/x")


async def test_a_reset_is_not_the_end_of_a_body_without_a_length() -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"\r\n" + b'{"paid": true}')
        await writer.drain()
        await asyncio.sleep(NOTICED_S)
        # Closing with a linger of zero seconds sends a reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with listening(resets) as port, client_of(port) as client:
        with pytest.raises(Unknown, match="cut short"):
            await client.request("GET", "/x")


@pytest.mark.parametrize(
    "head",
    [
        OK + b"X: a\r\n\tb\r\nContent-Length: 5\r\n\r\n",
        OK + b"X: a\x01\r\nContent-Length: 5\r\n\r\n",
        OK + b"X y: a\r\nContent-Length: 5\r\n\r\n",
    ],
)
@pytest.mark.parametrize("length", [1, 1_000])
async def test_a_head_that_others_might_read_differently_is_no_answer(head: bytes, length: int) -> None:
    answer = head + b"hello"
    parts = [answer[start : start + length] for start in range(0, len(answer), length)]
    async with spoken_to(Speaker(*parts, hangs_up=True)) as client:
        with pytest.raises(Unknown, match="not HTTP"):
            await client.request("POST", "/x")


async def test_a_header_may_be_as_long_as_a_head() -> None:
    speaker = Speaker(OK + b"X: " + b"y" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n")
    async with spoken_to(speaker) as client:
        assert len((await client.request("GET", "/x")).headers["X"]) == 60_000


async def test_headers_whose_names_differ_in_case_alone_are_all_sent() -> None:
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker) as client:
        await client.request("GET", "/x", headers={"X-Key": "1", "x-key": "2"})
    assert [line for line in speaker.requests[0].split(b"\r\n") if line.startswith(b"x-key")] == [
        b"x-key: 1",
        b"x-key: 2",
    ]


async def test_a_body_does_not_wait_for_a_consent_that_a_header_asks_for() -> None:
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker, timeout_s=5) as client:
        await client.request("POST", "/x", body=b"asked", headers={"Expect": "100-continue"})
    assert speaker.requests[0].endswith(b"asked")


async def test_a_body_that_trickles_in_has_no_more_time_than_the_request() -> None:
    left = asyncio.Event()

    async def trickles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: 1000000\r\n\r\n")
        gone = asyncio.create_task(reader.read())
        while not gone.done():
            writer.write(b"x")
            await asyncio.wait({gone}, timeout=0.01)
        await asyncio.gather(gone, return_exceptions=True)
        writer.close()
        left.set()

    async with listening(trickles) as port, client_of(port) as client:
        with pytest.raises(Unknown, match=r"no answer within 0\.3 s"):
            await client.request("GET", "/x", timeout_s=0.3)
        await left.wait()


async def test_logins_of_a_netrc_file_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login ann password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    speaker = Speaker(PLAIN)
    async with spoken_to(speaker) as client:
        await client.request("GET", "/x")
    assert b"authorization" not in speaker.requests[0].lower()


async def test_a_deflated_answer_that_nobody_asked_for_is_not_inflated() -> None:
    async with spoken_to(Speaker(OK + b"Content-Encoding: deflate\r\nContent-Length: 5\r\n\r\nhello")) as client:
        with pytest.raises(Unknown, match="encoding that was not asked for"):
            await client.request("GET", "/x")


async def test_closing_a_client_refuses_who_waits_for_a_connection() -> None:
    """aiohttp cancels them, as if somebody had called them off."""
    speaker = Speaker(b"")
    async with spoken_to(speaker, connections_max=1) as client:
        sent = asyncio.create_task(client.request("POST", "/x"))
        await eventually(lambda: len(speaker.requests) == 1)
        waiting = asyncio.create_task(client.request("POST", "/x"))
        await asyncio.sleep(NOTICED_S)
        await client.close()
        with pytest.raises(NotSent, match="the client was closed"):
            await waiting
        with pytest.raises(Unknown, match="dropped before an answer"):
            await sent
    assert len(speaker.requests) == 1


class Reluctant:
    """Reads the head of a request and, once `go_on` is set, its body. The body does not fit into its buffers."""

    body = b"z" * (FILE_FROM_BYTES - 1)

    def __init__(self, answer: bytes = b"") -> None:
        self.answer = answer
        self.received: list[bytearray] = []
        self.ended = 0
        self.go_on = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = bytearray(await reader.readuntil(b"\r\n\r\n"))
        self.received.append(received)
        writer.write(self.answer)
        await self.go_on.wait()
        try:
            while part := await reader.read(65_536):
                received.extend(part)
        except ConnectionError:
            pass
        self.ended += 1
        writer.close()


@asynccontextmanager
async def served(reluctant: Reluctant, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpClient]:
    genuine = sockets._guarded_socket

    def small(allow_private: bool, info: tuple[Any, ...]) -> socket.socket:
        opened = genuine(allow_private, info)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        return opened

    monkeypatch.setattr(sockets, "_guarded_socket", small)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    listener.bind(("127.0.0.1", 0))
    server = await asyncio.start_server(reluctant, sock=listener, limit=1_024)
    try:
        async with client_of(listener.getsockname()[1]) as client:
            yield client
            reluctant.go_on.set()
            await eventually(lambda: reluctant.ended == len(reluctant.received))
    finally:
        server.close()
        await server.wait_closed()


async def test_a_request_that_is_called_off_stops_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    reluctant = Reluctant()
    async with served(reluctant, monkeypatch) as client:
        sending = asyncio.create_task(client.request("POST", "/x", body=reluctant.body))
        await eventually(lambda: bool(reluctant.received))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    (received,) = reluctant.received
    assert len(received) < len(reluctant.body)


async def test_a_connection_with_an_unsent_rest_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of this size is handed to the event loop at once, which then still holds most of it."""
    reluctant = Reluctant(PLAIN)
    async with served(reluctant, monkeypatch) as client:
        for _ in range(2):
            assert (await client.request("POST", "/x", body=b"z" * 60_000)).body == b"hello"
    assert len(reluctant.received) == 2
