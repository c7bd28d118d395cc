"""The server of the simulators: kept connections, whole answers, and clients who leave."""

import asyncio
from typing import Any

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Unknown
from payonce.testing.answers import answering
from payonce.testing.eventually import eventually
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty


class Simulator:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.clients: set[Any] = set()
        self.left = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.clients.add(scope["client"])
        self.asked.append((scope["method"], scope["path"], scope["query_string"], (await receive())["body"]))
        if scope["path"] == "/crash":
            raise LookupError("a bug of the simulator")
        if scope["path"] == "/silence":
            assert (await receive())["type"] == "http.disconnect"
            self.left += 1
            return
        headers = [(b"content-length", b"5"), (b"x-asked", scope["path"].encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})


async def test_one_connection_serves_requests_of_every_kind() -> None:
    simulator = Simulator()
    async with answering(simulator) as url, HttpClient("vendor", url, allow_private=True) as http:
        for _ in range(2):
            found = await http.request("POST", "/a b", query={"q": "1"}, body=b"x" * 300_000)
            assert (found.status, found.body, found.headers["X-Asked"]) == (201, b"hello", "/a b")
            assert "Date" in found.headers
        assert (await http.request("GET", "/crash")).status == 500
        assert (await http.request("HEAD", "/x")).body == b""
    assert simulator.asked[0] == ("POST", "/a b", b"q=1", b"x" * 300_000)
    assert [each[0] for each in simulator.asked] == ["POST", "POST", "GET", "HEAD"]
    assert len(simulator.clients) == 1


async def test_a_disconnect_is_noticed() -> None:
    simulator = Simulator()
    async with answering(simulator) as url, HttpClient("vendor", url, allow_private=True) as http:
        with pytest.raises(Unknown, match="no answer within"):
            await http.request("POST", "/silence", timeout_s=0.2)
        await eventually(lambda: simulator.left == 1)
        # One that is still being served when the server ends is hung up on.
        waiting = asyncio.create_task(http.request("POST", "/silence"))
        await eventually(lambda: len(simulator.asked) == 2)
    with pytest.raises(Unknown, match="dropped"):
        await waiting


async def test_an_answer_that_is_lost_drops_the_connection() -> None:
    simulator = Simulator()
    lossy = Faulty(simulator, Script([Fault.ANSWER_LOST]), over_sockets=True)
    async with answering(lossy) as url, HttpClient("vendor", url, allow_private=True) as http:
        with pytest.raises(Unknown, match="dropped"):
            await http.request("POST", "/x")
        assert (await http.request("POST", "/x")).status == 201


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"what?\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n", b"HTTP/1.1 201 "),
        (b"GET /x HTTP/1.0\r\n\r\n", b"HTTP/1.1 201 "),
        (b"GET /x HTTP/1.1\r\n\r\n" * 2, b""),
    ],
)
async def test_it_hangs_up_on_those_who_do_not_go_on_or_do_not_wait(said: bytes, answered: bytes) -> None:
    async with answering(Simulator()) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(said)
        assert (await reader.read())[: len(answered) or None] == answered
        writer.close()
        await writer.wait_closed()
