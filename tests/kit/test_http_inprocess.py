"""A simulator under the production client, without sockets: real ASGI, and faults on demand."""

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from payonce.kit.http import AnswerLost, BodyTooLarge, ConnectionRefused, Fault, HttpClient, TimedOut, Unsendable
from payonce.kit.http.response import Attempt
from payonce.kit.http.transport import Outgoing
from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing import eventually
from tests.kit.conftest import answer

PUBLIC, PRIVATE = "93.184.215.14", "127.0.0.1"


class Exchange:
    """A simulator with state, written with a framework as the real ones are."""

    def __init__(self, *, wrapped: bool = False) -> None:
        self.books: list[str] = []
        self.fault: Fault | None = None
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.app = Starlette(
            routes=[
                Route("/exchange", self.create, methods=["POST"]),
                Route("/upload", self.upload, methods=["POST"]),
                Route("/stream", self.stream),
            ],
            middleware=[Middleware(BaseHTTPMiddleware, dispatch=self.pass_on)] if wrapped else [],
        )

    async def pass_on(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    async def create(self, request: Request) -> Response:
        order = await request.json()
        await self.go_on.wait()
        if isinstance(self.fault, ConnectionRefused):
            raise self.fault
        self.books.append(order["id"])
        if self.fault is not None:
            raise self.fault
        return JSONResponse({"id": order["id"]})

    async def upload(self, request: Request) -> Response:
        lengths = [len(chunk) async for chunk in request.stream()]
        return JSONResponse(lengths)

    async def stream(self, request: Request) -> Response:
        async def parts() -> Any:
            for number in range(3):
                yield f"{number},"

        return StreamingResponse(parts())


def client_of(exchange: Exchange, **options: Any) -> HttpClient:
    return HttpClient("exchange", "https://exchange.example", transport=exchange.app, **options)


async def test_a_simulator_answers_the_production_client() -> None:
    exchange = Exchange()
    async with client_of(exchange) as client:
        response = await client.request("POST", "/exchange", json={"id": "a"})
    assert (response.json(), exchange.books) == ({"id": "a"}, ["a"])


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("fault", "outcome", "booked"),
    [(ConnectionRefused(), NotSent, []), (AnswerLost(), Unknown, ["a"]), (TimedOut(), Unknown, ["a"])],
)
async def test_a_fault_has_the_outcome_of_a_socket_failure(
    fault: Fault, outcome: type[Exception], booked: list[str], wrapped: bool
) -> None:
    exchange = Exchange(wrapped=wrapped)
    exchange.fault = fault
    async with client_of(exchange) as client:
        with pytest.raises(outcome, match="exchange: POST /exchange"):
            await client.request("POST", "/exchange", json={"id": "a"})
    assert exchange.books == booked


async def test_a_fault_in_a_task_group_is_found() -> None:
    async def grouped(scope: Any, receive: Any, send: Any) -> None:
        raise BaseExceptionGroup("children", [LookupError(), ExceptionGroup("inner", [ConnectionRefused()])])

    async with HttpClient("exchange", "https://exchange.example", transport=grouped) as client:
        with pytest.raises(NotSent):
            await client.request("POST", "/x")


async def test_the_application_continues_after_the_client_gave_up() -> None:
    """As behind a real server: a charge made after the time-out must be found."""
    exchange = Exchange()
    exchange.go_on.clear()
    async with client_of(exchange, timeout_s=0.05) as client:
        with pytest.raises(Unknown):
            await client.request("POST", "/exchange", json={"id": "late"})
        assert exchange.books == []
        exchange.go_on.set()
        await eventually(lambda: exchange.books == ["late"])


async def test_closing_cancels_running_applications() -> None:
    exchange = Exchange()
    exchange.go_on.clear()
    async with client_of(exchange, timeout_s=0.05) as client:
        with pytest.raises(Unknown):
            await client.request("POST", "/exchange", json={"id": "never"})
    assert len(asyncio.all_tasks()) == 1
    exchange.go_on.set()
    await asyncio.sleep(0)
    assert exchange.books == []


async def test_a_long_body_arrives_in_parts() -> None:
    async with client_of(Exchange()) as client:
        response = await client.request("POST", "/upload", body=b"x" * 200_000)
    lengths = response.json()
    assert sum(lengths) == 200_000
    assert len(lengths) > 3


async def test_a_streamed_answer_is_put_together() -> None:
    async with client_of(Exchange()) as client:
        assert (await client.request("GET", "/stream")).body == b"0,1,2,"


async def test_sending_to_a_client_that_left_is_an_os_error() -> None:
    raised: list[BaseException] = []

    async def talks_on(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 100, "more_body": True})
        except OSError as gone:
            raised.append(gone)
            raise

    async with HttpClient("exchange", "https://exchange.example", transport=talks_on, max_body_bytes=250) as client:
        with pytest.raises(BodyTooLarge):
            await client.request("GET", "/x")
        await eventually(lambda: len(raised) == 1)


async def test_an_application_that_only_sends_does_not_stop_the_clock() -> None:
    async def talks_on(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"", "more_body": True})

    async with HttpClient("exchange", "https://exchange.example", transport=talks_on, timeout_s=0.05) as client:
        with pytest.raises(Unknown, match=r"no answer within 0\.05 s"):
            await client.request("GET", "/x")


@pytest.mark.parametrize("messages", [[], ["http.response.body"], ["http.response.push"]])
async def test_an_application_that_never_answers_has_failed(messages: list[str]) -> None:
    async def mumbles(scope: Any, receive: Any, send: Any) -> None:
        for kind in messages:
            await send({"type": kind})

    async with HttpClient("exchange", "https://exchange.example", transport=mumbles) as client:
        assert (await client.request("POST", "/x")).status == 500


async def test_an_answer_without_an_end_is_unknown() -> None:
    async def trails_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    async with HttpClient("exchange", "https://exchange.example", transport=trails_off) as client:
        with pytest.raises(Unknown, match="cut short"):
            await client.request("POST", "/x")


async def test_the_application_is_notified_of_the_disconnect_after_its_answer() -> None:
    received: list[str] = []

    async def listens(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer(send, b"done")
        received.append((await receive())["type"])
        with pytest.raises(RuntimeError, match="after the answer was complete"):
            await send({"type": "http.response.body", "body": b"more"})
        received.append("refused")

    async with HttpClient("exchange", "https://exchange.example", transport=listens) as client:
        assert (await client.request("GET", "/x")).body == b"done"
    assert received == ["http.disconnect", "refused"]


async def test_names_are_checked_if_a_resolver_is_given() -> None:
    answers = [[PUBLIC], [PRIVATE]]
    reached: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async def notes(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["server"])
        await answer(send, b"")

    async with HttpClient("webhooks", None, transport=notes, resolve=resolve) as client:
        await client.request("POST", "https://rebind.example/hook")
        with pytest.raises(Unsendable, match="loopback"):
            await client.request("POST", "https://rebind.example/hook")
    assert reached == [(PUBLIC, 443)]
    assert answers == []


async def test_another_transport_can_replace_the_network() -> None:
    class Carrier:
        def __init__(self) -> None:
            self.carried: list[str] = []

        async def exchange(self, outgoing: Outgoing, attempt: Attempt) -> None:
            self.carried.append(outgoing.target.path)
            attempt.may_have_left = True
            attempt.begin(204, [])

        async def close(self) -> None:
            self.carried.append("closed")

    carrier = Carrier()
    async with HttpClient("vendor", "https://vendor.test", transport=carrier) as client:
        assert (await client.request("GET", "/rates")).status == 204
    assert carrier.carried == ["/rates", "closed"]
