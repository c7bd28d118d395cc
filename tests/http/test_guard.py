"""Bounds around every request, and a problem document for every error."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.testing import capture_logs

from payonce.http import guard, protocol
from payonce.http.guard import Guard
from payonce.http.kit.problems import DETAIL_MAX_LENGTH, PATH_MAX_LENGTH, Problem, document
from payonce.http.server import listening
from payonce.kit.redact import LOOK_AHEAD_CHARS
from tests.http.client import Answer, send_request
from tests.http.conftest import OpenWeb

TRIES = 20


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    await PlainTextResponse(message["body"])(scope, receive, send)


async def test_what_is_not_there_and_what_is_not_done_are_problems(web: OpenWeb) -> None:
    async with web() as ask:
        nowhere = await ask.get("/nowhere")
        assert (nowhere.status, nowhere.problem["instance"]) == (404, "/nowhere")
        not_done = await ask.post("/healthz")
        assert (not_done.status, not_done.problem["title"]) == (405, "Method Not Allowed")
        assert "GET" in not_done.headers["allow"]
        assert (await ask("HEAD", "/readyz")).status == 200


async def test_a_path_is_named_briefly_and_without_secrets(web: OpenWeb) -> None:
    async with web() as ask:
        long = (await ask.get("/" + "1-" * 600)).problem["instance"]
        assert long == "/" + "1-" * 99 + "1… (1,001 more characters)"
        # It begins within the bound and ends beyond it.
        secret = (await ask.get("/" + "x" * 190 + "/sk_live_51H8abcDEFghi")).problem["instance"]
        assert "sk_live" not in secret


@pytest.mark.parametrize("digits_read", range(1, 16))
def test_what_was_hidden_moves_no_half_secret_into_a_problem(digits_read: int) -> None:
    """What is read beyond the cut ends within a card's number, and a token that is hidden moves that before the cut."""

    def cut_within_a_card(shown_chars: int) -> str:
        read = f"/token={'x' * (shown_chars - 20)}&"
        read += "y" * (shown_chars + LOOK_AHEAD_CHARS - len(read) - digits_read - 1)
        return f"{read}/4242424242424242/{'z' * 5_000}"

    path, detail = cut_within_a_card(PATH_MAX_LENGTH), cut_within_a_card(DETAIL_MAX_LENGTH)
    answer = json.loads(bytes(document(path, Problem(400, detail)).body))
    assert "42" not in answer["instance"] + answer["detail"]


async def test_every_answer_has_a_trace_id_of_ours_and_the_callers_request_id(web: OpenWeb) -> None:
    async with web() as ask:
        first = await ask.get("/healthz", x_request_id="order-7", trace_id="somebody-elses")
        second = await ask.get("/healthz", x_request_id="a line\nbreak")
        assert first.headers["x-request-id"] == "order-7"
        assert "x-request-id" not in second.headers
        assert len({first.headers["trace-id"], second.headers["trace-id"], "somebody-elses"}) == 3


async def test_a_bug_is_a_problem_that_tells_a_stranger_nothing(web: OpenWeb) -> None:
    async with web() as ask:

        @ask.web.get("/broken")
        async def broken() -> None:
            raise KeyError("the inner life")

        with capture_logs() as said:
            answer = await ask.get("/broken")
    assert answer.status == 500
    assert answer.problem["detail"].startswith("internal error of payonce")
    assert "inner life" not in answer.body.decode()
    [line] = said
    assert (line["event"], line["trace"]) == ("http_bug", answer.headers["trace-id"])
    assert "inner life" in repr(line["exc_info"])


@pytest.mark.parametrize(
    ("error", "status", "event"),
    [
        (asyncpg.UndefinedTableError('relation "secret_table" does not exist'), 500, ["http_bug"]),
        (AssertionError("secret_table"), 500, ["http_bug"]),
        (ConnectionRefusedError("10.0.0.3 secret_table"), 503, []),
        (asyncpg.AdminShutdownError("secret_table"), 503, []),
        (asyncpg.InterfaceError("secret_table"), 503, []),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_what_the_store_says_is_for_the_log_and_not_for_strangers(
    web: OpenWeb, error: Exception, status: int, event: list[str]
) -> None:
    async with web() as ask:

        @ask.web.get("/broken")
        async def broken() -> None:
            raise error

        with capture_logs() as said:
            answer = await ask.get("/broken")
    assert (answer.status, answer.problem["status"]) == (status, status)
    assert "secret_table" not in answer.body.decode()
    assert [line["event"] for line in said] == event


@pytest.mark.parametrize("parts", [[b"x" * 11], [b"x" * 6, b"x" * 5]], ids=["at once", "in parts"])
@pytest.mark.parametrize(
    "length", [{"content-length": "11"}, {}, {"content-length": "4"}], ids=["told", "untold", "lie"]
)
async def test_a_body_above_the_bound_is_refused(parts: list[bytes], length: dict[str, str]) -> None:
    answer = await send_request(Guard(echo, body_max_bytes=10), "POST", "/", list(parts), length)
    assert (answer.status, answer.problem["detail"]) == (413, "a body has at most 10 bytes")
    assert answer.headers["connection"] == "close"


async def test_a_body_at_the_bound_is_whole() -> None:
    answer = await send_request(Guard(echo, body_max_bytes=10), "POST", "/", [b"01234", b"56789"], {})
    assert (answer.status, answer.body) == (200, b"0123456789")


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    async def silent() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Guard(echo, body_limit_s=0.01)(scope, silent, send)
    assert isinstance(sent[0], dict)
    assert sent[0]["status"] == 408


async def test_an_answer_that_does_not_begin_is_given_up_and_one_that_has_begun_is_not() -> None:
    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    async def lines(limit_s: float) -> AsyncIterator[bytes]:
        yield b"one "
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * limit_s, later.set)
        await later.wait()
        yield b"two"

    async def streamed(limit_s: float) -> Answer:
        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            await StreamingResponse(lines(limit_s))(scope, receive, send)

        return await send_request(Guard(patient(stream), answer_limit_s=limit_s), "GET", "/", [b""], {})

    hung = await send_request(Guard(hang, answer_limit_s=0.01), "GET", "/", [b""], {})
    assert (hung.status, hung.problem["status"]) == (503, 503)
    for limit_s in (0.02, 0.5, 5.0):
        answer = await streamed(limit_s)
        if answer.status == 200:
            break
        # It had not begun: this machine takes longer for that.
    assert answer.body == b"one two"


def patient(app: ASGIApp) -> ASGIApp:
    """The client stays on the line."""

    async def forever() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return lambda scope, receive, send: app(scope, forever, send)


async def test_the_console_is_guarded_too(web: OpenWeb) -> None:
    async with web() as ask:
        answer = await ask.get("/console/nothing")
        assert answer.headers["trace-id"]
        too_much = await ask.post("/console/nothing", b"x" * (guard.BODY_MAX_BYTES + 1))
        assert too_much.status == 413


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost: localhost\r\nslow: "])
async def test_a_connection_on_which_no_request_arrives_is_closed(
    web: OpenWeb, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(protocol.PunctualProtocol, "head_limit_s", 0.05)
    async with web() as ask, listening(ask.app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, family=socket.AF_INET)
        writer.write(said)
        async with asyncio.timeout(30):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_a_connection_that_rests_between_requests_stays_open(
    web: OpenWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol.PunctualProtocol, "head_limit_s", 0.2)
    async with web() as ask, listening(ask.app, "127.0.0.1", 0) as port:
        reader, writer = await opened_in_time(port)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await reader.read(1)
            writer.write(PLAIN)
            assert (await reader.readuntil(b"}")).endswith(b'{"status":"alive"}')
        writer.close()


PLAIN = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def opened_in_time(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request was answered. Where the machine stood still before it, it was closed."""
    for _ in range(TRIES):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PLAIN)
        with suppress(OSError, asyncio.IncompleteReadError):
            assert (await reader.readuntil(b"}")).endswith(b'{"status":"alive"}')
            return reader, writer
        writer.close()
    raise AssertionError(f"no request was answered within {TRIES} tries")


HEAD = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"GET /" + b"x" * protocol.URL_MAX_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414),
        (b"GET /" + b"x" * protocol.URL_MAX_BYTES, 414),
        (HEAD + b"a: " + b"a" * protocol.HEAD_MAX_BYTES + b"\r\n\r\n", 431),
        (HEAD + b"a: b\r\n" * (protocol.HEAD_MAX_BYTES // 6) + b"\r\n", 431),
        (
            HEAD.replace(b"GET", b"POST")
            + b"transfer-encoding: chunked\r\n\r\n0\r\na: "
            + b"a" * protocol.HEAD_MAX_BYTES
            + b"\r\n\r\n",
            431,
        ),
    ],
    ids=["url", "url without an end", "one long header", "many headers", "trailer"],
)
async def test_a_head_above_the_bound_is_refused_and_the_connection_closed(
    web: OpenWeb, said: bytes, status: int
) -> None:
    async with web() as ask, listening(ask.app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        async with asyncio.timeout(30):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["status"] == status
        writer.close()


async def test_a_head_that_does_not_end_is_not_kept(web: OpenWeb) -> None:
    """One header that never ends is told to nobody: only the bytes that came give it away."""
    sent_bytes, part = 0, b"a" * 65_536
    async with web() as ask, listening(ask.app, "127.0.0.1", 0) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"a: ")
        with suppress(ConnectionError):
            while sent_bytes < 100 * 1024 * 1024:
                writer.write(part)
                await writer.drain()
                sent_bytes += len(part)
        # What the sockets between us hold is not in the server's memory.
        assert sent_bytes < 20 * 1024 * 1024
        writer.close()


async def test_heads_below_the_bound_are_answered_however_many_come_on_one_connection(web: OpenWeb) -> None:
    padding = b"a: " + b"a" * (protocol.HEAD_MAX_BYTES - 100) + b"\r\n\r\n"
    body = b"x" * 200_000
    posted = HEAD.replace(b"GET", b"POST") + b"content-length: %d\r\n\r\n" % len(body) + body
    async with web() as ask, listening(ask.app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            # All at once: the data in which a head begins hold the body of another request.
            writer.write(posted + HEAD + padding)
            async with asyncio.timeout(30):
                assert b"405" in await reader.readuntil(b"\r\n")
                assert (await reader.readuntil(b'{"status":"alive"}')).count(b"HTTP/1.1 200 OK") == 1
        writer.close()


async def test_a_proxy_that_the_settings_do_not_name_is_warned_of_once() -> None:
    warned, named = Guard(echo, proxies_named=False), Guard(echo)
    with capture_logs() as said:
        for site in (warned, warned, named):
            await send_request(site, "GET", "/", [b""], {"x-forwarded-for": "203.0.113.7"}, "10.0.0.1")
    [line] = said
    assert (line["event"], line["address"], line["name_it_in"]) == (
        "proxy_not_trusted",
        "10.0.0.1",
        "PAYONCE_TRUSTED_PROXIES",
    )


async def test_no_answer_is_kept_by_a_cache_unless_it_says_so(web: OpenWeb) -> None:
    async with web() as ask:
        holder = await ask.as_holder("shop", "webhooks:write", tenant="acme")
        made = await holder.post("/v1/webhooks/endpoints", {"url": "https://shop.example/hooks", "events": ["*"]})
        assert made.status == 201, made.body
        rotated = await holder.post(f"/v1/webhooks/endpoints/{made.json['id']}/rotate", {})
        assert rotated.status == 200, rotated.body
        told = [made, rotated, await ask.get("/healthz"), await ask.get("/nowhere"), await ask.get("/v1/queues")]
        assert {answer.headers["cache-control"] for answer in told} == {"no-store"}
        assert (await ask.get("/openapi.json")).headers["cache-control"] == "no-cache"
