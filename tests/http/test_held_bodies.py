"""The bodies that a process holds at once have a bound, which keeps out large ones alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from payonce.http.guard import BODY_MAX_BYTES, Guard
from payonce.http.held_bodies import HELD_MAX_BYTES, OF_THIS_PROCESS, HeldBodies
from payonce.http.kit.problems import RETRY_AFTER_S
from tests.http.client import Answer, send_request

LARGE, SMALL = b"x" * 1_000, b"y" * 100


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    await PlainTextResponse(message["body"])(scope, receive, send)


def bounded() -> tuple[HeldBodies, Guard]:
    """Room for two large bodies."""
    bodies = HeldBodies(most_bytes=2 * (len(LARGE) - len(SMALL)), small_bytes=len(SMALL))
    return bodies, Guard(echo, bodies=bodies)


@asynccontextmanager
async def arriving(guard: Guard, part: bytes) -> AsyncIterator[None]:
    """A request whose body comes so far and no further, until the block ends; then the client goes away."""
    read, gone = asyncio.Event(), asyncio.Event()
    parts = [part]

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": True}
        read.set()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asking = asyncio.create_task(guard(scope, receive, send))
    try:
        await read.wait()
        yield
    finally:
        gone.set()
        await asking


async def posted(guard: Guard, body: bytes) -> Answer:
    return await send_request(guard, "POST", "/", [body], {})


async def test_beyond_the_bound_a_large_body_is_for_later_and_a_small_one_is_taken() -> None:
    bodies, guard = bounded()
    async with arriving(guard, LARGE), arriving(guard, LARGE):
        refused = await posted(guard, LARGE)
        assert (refused.status, refused.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
        assert refused.headers["connection"] == "close", "what is left of the body is no request"
        assert refused.problem["detail"] == "the server is receiving too many large bodies; try again later"
        assert (await posted(guard, SMALL)).body == SMALL
    assert bodies.bytes == 0
    assert (await posted(guard, LARGE)).body == LARGE


async def test_a_body_counts_until_its_request_is_answered() -> None:
    bodies, _ = bounded()
    held: list[int] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(bodies.bytes)
        await echo(scope, receive, send)

    assert (await posted(Guard(noting, bodies=bodies), LARGE)).status == 200
    assert held == [len(LARGE) - len(SMALL)]
    assert bodies.bytes == 0


async def test_a_body_that_is_refused_or_fails_leaves_nothing_behind() -> None:
    bodies = HeldBodies(small_bytes=0)

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("a bug")

    assert (await posted(Guard(failing, bodies=bodies), LARGE)).status == 500
    assert (await posted(Guard(echo, body_max_bytes=10, bodies=bodies), LARGE)).status == 413
    two = Guard(echo, body_max_bytes=1_500, bodies=bodies)
    assert (await send_request(two, "POST", "/", [LARGE, LARGE], {})).status == 413
    assert bodies.bytes == 0


def test_all_of_a_process_share_one_bound_that_holds_many_bodies() -> None:
    one, other = Guard(echo), Guard(echo, many_values=True)
    assert one._bodies is other._bodies is OF_THIS_PROCESS
    assert OF_THIS_PROCESS.most_bytes == HELD_MAX_BYTES >= 50 * BODY_MAX_BYTES
