"""The client's guarantees over every transport: these tests run against a real server and in process."""

import asyncio
import gzip
import re
import traceback
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from payonce import __version__
from payonce.kit.http import BodyTooLarge, Unsendable
from payonce.kit.http.failures import Broken
from payonce.kit.http.response import Attempt
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from tests.kit.conftest import OpenClient, Vendor, patient

SECRET = "hunter2hunter2"


async def test_a_request_arrives_as_it_was_given(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor, "/v2", headers={"x-api-key": "k", "x-kind": "general"}) as client:
        response = await client.request(
            "POST",
            "/exchange/echo",
            json={"fromAmount": "0.10", "n": 10**20},
            query=[("a", "1 & 2"), ("a", 3)],
            headers={"X-Kind": "particular"},
        )
    assert response.status == 200
    assert response.is_success
    assert response.elapsed_s > 0
    read = response.json()
    assert (read["method"], read["path"], read["query"]) == ("POST", "/v2/exchange/echo", "a=1+%26+2&a=3")
    assert read["body"] == '{"fromAmount":"0.10","n":100000000000000000000}'
    headers = dict(read["headers"])
    assert len(headers) == len(read["headers"])
    assert headers["content-type"] == "application/json"
    assert headers["x-api-key"] == "k"
    assert headers["x-kind"] == "particular"
    assert headers["user-agent"] == f"payonce/{__version__}"
    assert headers["accept-encoding"] == "gzip"
    assert headers["content-length"] == str(len(read["body"]))
    assert "host" in headers


async def test_bytes_are_sent_as_they_are(open_client: OpenClient, vendor: Vendor) -> None:
    body = bytes(range(256)) * 8192
    async with open_client(vendor, max_body_bytes=1000) as client:
        with pytest.raises(BodyTooLarge):
            await client.request("PUT", "/echo", body=body)
    assert vendor.seen[0]["body"].encode("latin-1") == body
    assert "content-type" not in dict(vendor.seen[0]["headers"])


async def test_names_in_a_path_are_quoted_once(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        await client.request("GET", "/x y/a%2Fb/é/echo")
    assert vendor.seen[0]["raw_path"] == "/x%20y/a%2Fb/%C3%A9/echo"
    assert vendor.seen[0]["path"] == "/x y/a/b/é/echo"


async def test_a_request_without_a_body_has_none(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        await client.request("GET", "/echo")
        head = await client.request("HEAD", "/echo")
    assert vendor.seen[0]["body"] == ""
    assert "transfer-encoding" not in dict(vendor.seen[0]["headers"])
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 0


async def test_numbers_in_answers_are_exact(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        response = await client.request("GET", "/packed")
    assert response.json() == {"fee": Decimal("0.10")}
    assert str(response.json()["fee"]) == "0.10"


async def test_redirects_are_answers_and_are_not_followed(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        response = await client.request("GET", "/redirect")
    assert (response.status, response.headers["location"]) == (302, "/echo")
    assert len(vendor.seen) == 1


async def test_every_status_is_an_answer(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        busy = await client.request("POST", "/busy")
        crash = await client.request("POST", "/crash")
    assert (busy.status, busy.retry_after_s, busy.is_success) == (429, 7, False)
    assert (crash.status, crash.retry_after_s, crash.text()) == (500, None, "Internal Server Error")


async def test_no_cookie_is_kept_and_none_is_merged(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        response = await client.request("GET", "/cookies")
        await client.request("GET", "/echo")
    assert response.headers.getall("Set-Cookie") == ["a=1", "b=2"]
    assert "cookie" not in dict(vendor.seen[1]["headers"])


async def test_no_answer_in_time_is_unknown(open_client: OpenClient, vendor: Vendor) -> None:
    async def attempt(timeout_s: float) -> None:
        async with open_client(vendor, timeout_s=timeout_s) as client:
            expected = f"vendor: POST /slow may have happened: no answer within {timeout_s:g} s"
            with pytest.raises(Unknown, match=re.escape(expected)):
                await client.request("POST", "/slow")
            await asyncio.wait_for(vendor.gone.wait(), 10 * timeout_s)

    await patient(attempt)
    assert len(vendor.seen) == 1


async def test_one_request_may_have_less_time(open_client: OpenClient, vendor: Vendor) -> None:
    async def attempt(timeout_s: float) -> None:
        async with open_client(vendor, timeout_s=30) as client:
            with pytest.raises(Unknown, match=f"no answer within {timeout_s:g} s"):
                await client.request("GET", "/slow", timeout_s=timeout_s)

    await patient(attempt)


async def test_a_body_over_the_limit_is_not_taken_in(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor, max_body_bytes=100_000) as client:
        with pytest.raises(
            BodyTooLarge, match=r"vendor: GET /endless answered 200 with a body over 100000 bytes"
        ) as said:
            await client.request("GET", "/endless")
        assert said.value.status == 200
        vendor.gone.set()


async def test_an_unpacked_body_over_the_limit_is_not_taken_in(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor, max_body_bytes=100_000) as client:
        with pytest.raises(BodyTooLarge):
            await client.request("GET", "/bomb")


def test_a_packed_body_is_not_unpacked_beyond_the_limit_before_it_is_refused() -> None:
    bomb = gzip.compress(b"0" * 20_000_000)
    attempt = Attempt(100_000)
    attempt.begin(200, [("Content-Encoding", "gzip")])
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            attempt.feed(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("chunk_bytes", [1, 10_000])
@pytest.mark.parametrize("more", [gzip.compress(b'{"paid": true}'), b"\0", b"{}"], ids=["member", "padding", "text"])
def test_more_after_the_end_of_gzip_is_an_error_and_not_passed_over(more: bytes, chunk_bytes: int) -> None:
    packed = gzip.compress(b'{"paid": false}')
    attempt, whole = Attempt(100_000), packed + more
    attempt.begin(200, [("Content-Encoding", "gzip")])
    chunks = [whole[start : start + chunk_bytes] for start in range(0, len(whole), chunk_bytes)]
    with pytest.raises(Broken, match="more after the end of its gzip"):
        [attempt.feed(chunk) for chunk in chunks]  # type: ignore[func-returns-value]
    alone = Attempt(100_000)
    alone.begin(200, [("Content-Encoding", "gzip")])
    alone.feed(packed)
    assert alone.finish()[1] == b'{"paid": false}'


async def test_a_body_at_the_limit_is_taken_in(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor, max_body_bytes=len(b"slow down")) as client:
        assert (await client.request("GET", "/busy")).body == b"slow down"


@pytest.mark.parametrize("path", ["/cut", "/crash-halfway", "/half-packed", "/badly-packed", "/oddly-packed"])
async def test_an_answer_that_cannot_be_read_whole_is_unknown(
    open_client: OpenClient, vendor: Vendor, path: str
) -> None:
    async with open_client(vendor) as client:
        with pytest.raises(Unknown, match="may have happened: "):
            await client.request("POST", path)
    assert len(vendor.seen) == 1


async def test_an_answer_that_is_no_json_is_unknown_and_quoted_without_secrets(
    open_client: OpenClient, vendor: Vendor
) -> None:
    async with open_client(vendor) as client:
        response = await client.request("GET", "/words")
    with pytest.raises(
        Unknown, match=r"vendor: GET /words answered 502, and the text is not usable JSON.*\[redacted\]"
    ):
        response.json()
    assert "abcdef123456" not in response.excerpt()
    assert len(response.excerpt()) <= 201


async def test_a_cancelled_request_is_cancelled_and_the_client_lives_on(
    open_client: OpenClient, vendor: Vendor
) -> None:
    async with open_client(vendor) as client:
        request = asyncio.create_task(client.request("POST", "/slow"))
        await asyncio.wait_for(vendor.asked.wait(), 5)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await asyncio.wait_for(vendor.gone.wait(), 5)
        assert (await client.request("GET", "/echo")).status == 200


async def test_many_requests_run_at_once(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        answers = await asyncio.gather(*(client.request("GET", "/echo", query={"n": n}) for n in range(20)))
    assert [answer.json()["query"] for answer in answers] == [f"n={n}" for n in range(20)]


async def test_a_closed_client_sends_nothing(open_client: OpenClient, vendor: Vendor) -> None:
    async with open_client(vendor) as client:
        await client.close()
        with pytest.raises(Unsendable, match="closed"):
            await client.request("GET", "/echo")


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "get"},
        {"method": "CONNECT"},
        {"path": "echo"},
        {"path": "https://other.example/echo"},
        {"path": "/echo?secret=1"},
        {"path": "/echo#x"},
        {"path": "/a/../echo"},
        {"path": "/a/%2e%2E/echo"},
        {"path": "/a%2f..%2fecho"},
        {"path": "/a%0d%0aX: y"},
        {"path": "/a\r\nX: y"},
        {"path": "/100%"},
        {"query": {"a": 0.1}},
        {"query": {"a": True}},
        {"headers": {"x": "a\r\nb: c"}},
        {"headers": {"x y": "a"}},
        {"headers": {"x": "é"}},
        {"headers": {"Host": "other.example"}},
        {"headers": {"content-length": "0"}},
        {"json": {}, "body": b""},
        {"body": b"0" * (16 * 1024 * 1024 + 1)},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
async def test_a_request_that_makes_no_sense_is_refused_unsent(
    open_client: OpenClient, vendor: Vendor, arguments: dict[str, Any]
) -> None:
    async with open_client(vendor) as client:
        with pytest.raises(Unsendable) as refusal:
            await client.request(**{"method": "POST", "path": "/echo", **arguments})
    assert isinstance(refusal.value, NotSent)
    assert isinstance(refusal.value, Invalid)
    assert not vendor.seen


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
async def test_every_request_has_a_time_out(open_client: OpenClient, vendor: Vendor, timeout_s: float) -> None:
    async with open_client(vendor) as client:
        with pytest.raises(Invalid, match="time-out"):
            await client.request("GET", "/echo", timeout_s=timeout_s)


async def test_secrets_reach_no_log_and_no_error(open_client: OpenClient, vendor: Vendor) -> None:
    structlog.reset_defaults()
    given: dict[str, Any] = {
        "headers": {"Authorization": f"Custom {SECRET}", "x-api-key": SECRET},
        "query": {"key": SECRET},
        "body": SECRET.encode(),
    }
    texts: list[str] = []

    async def attempt(timeout_s: float) -> None:
        texts.clear()
        async with open_client(vendor, headers={"x-signing": SECRET}, timeout_s=60, max_body_bytes=20) as client:
            with capture_logs() as logs:
                for path in ("/slow", "/cut", "/echo", f"/token={SECRET}/slow"):
                    limit_s = timeout_s if path.endswith("/slow") else None
                    with pytest.raises(Unknown) as failure:
                        await client.request("POST", path, timeout_s=limit_s, **given)
                    texts.append("".join(traceback.format_exception(failure.value)))
                texts.append(repr(await client.request("GET", "/busy", **given)))
            texts.extend([repr(client), str(logs)])
        assert len(logs) == 5

    await patient(attempt)
    assert len(texts) == 7
    assert not [text for text in texts if SECRET in text]
