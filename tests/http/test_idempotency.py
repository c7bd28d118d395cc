"""The same Idempotency-Key: one transfer, one answer, whatever happens in between."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Response
from pydantic import BaseModel

from payonce.engine.janitors.prune import Prune
from payonce.engine.messages.requests import KEPT_S, fingerprint_of
from payonce.engine.messages.transaction import Tx
from payonce.http.kit import idempotency
from payonce.http.kit.idempotency import Once, moves_money
from payonce.http.kit.problems import Problem
from payonce.kit.outcomes import Invalid, Retry, Stale
from payonce.testing import Clock, eventually
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb

TRANSFERS = "/v1/transfers"
ORDER = {"source": "ann", "target": "bob", "amount": "12.50", "currency": "EUR"}
BOTH = ("transfers:read", "transfers:write")


class Told(BaseModel):
    said: str


def route(web: FastAPI, act: Callable[[Tx], Awaitable[BaseModel]], path: str = "/v1/test") -> None:
    """A POST that does this."""

    @web.post(path, response_model=Told)
    async def post(once: Annotated[Once, moves_money("transfers:write", tenants=True)]) -> Response:
        return await once.answer(act)


async def count(ask: WebClient, table: str = "transfers.transfers") -> int:
    found: int = await ask.app.read.fetchval(f"select count(*) from {table}")
    return found


async def test_the_same_order_sent_again_is_one_transfer_and_one_answer(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        first = await shop.post(TRANSFERS, ORDER, idempotency_key="order-7")
        again = await shop.post(TRANSFERS, ORDER, idempotency_key="order-7")
        assert (first.status, again.status) == (201, 201)
        assert again.body == first.body
        assert again.headers["location"] == first.headers["location"] == f"{TRANSFERS}/{first.json['id']}"
        assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
        assert await count(ask) == await count(ask, "payonce.messages") == 1
        found = await shop.get(first.headers["location"])
        assert (found.status, found.json) == (200, first.json)
        assert found.json["amount"] == {"asset": "EUR", "exponent": 2, "amount": "12.50", "minor": "1250"}


async def test_the_trace_of_the_request_leads_to_its_message(web: OpenWeb) -> None:
    async with web() as ask:
        ada = await ask.as_holder("ada", *BOTH, "jobs:read")
        made = await ada.post(TRANSFERS, ORDER, idempotency_key="k")
        assert made.json["trace_id"] == made.headers["trace-id"]
        traced = await ada.get(f"/v1/traces/{made.headers['trace-id']}")
        assert [entry["queue"] for entry in traced.json["entries"]] == ["transfers-withdraw"]
        assert traced.json["entries"][0]["correlation_id"] == made.json["id"]


@pytest.mark.parametrize("key", [None, "", " ", "a b", "x" * 201, "sch\u00f6n"])
async def test_without_a_usable_key_no_money_moves(web: OpenWeb, key: str | None) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        answer = await shop.post(TRANSFERS, ORDER, **({} if key is None else {"idempotency_key": key}))
        assert (answer.status, answer.problem["type"]) == (400, "urn:payonce:problem:no-idempotency-key")
        assert await count(ask) == 0


async def test_another_body_under_the_same_key_is_refused(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        await shop.post(TRANSFERS, ORDER, idempotency_key="k")
        other = await shop.post(TRANSFERS, {**ORDER, "amount": "12.51"}, idempotency_key="k")
        assert (other.status, other.problem["type"]) == (422, "urn:payonce:problem:idempotency-key-reused")
        assert await count(ask) == 1


async def test_keys_belong_to_the_tenant_and_outlive_an_api_key(web: OpenWeb) -> None:
    async with web() as ask:
        old = await ask.as_holder("shop", *BOTH, tenant="acme")
        new = await ask.as_holder("shop, new", *BOTH, tenant="acme")
        other = await ask.as_holder("shop", *BOTH, tenant="zenith")
        house = await ask.as_holder("shop", *BOTH)
        answers = [await each.post(TRANSFERS, ORDER, idempotency_key="k") for each in (old, new, other, house)]
        assert [answer.status for answer in answers] == [201] * 4
        ids = [answer.json["id"] for answer in answers]
        assert ids[0] == ids[1]
        assert len(set(ids)) == 3


async def test_a_tenant_finds_nothing_of_another(web: OpenWeb) -> None:
    async with web() as ask:
        acme = await ask.as_holder("shop", *BOTH, tenant="acme")
        zenith = await ask.as_holder("shop", *BOTH, tenant="zenith")
        made = await acme.post(TRANSFERS, ORDER, idempotency_key="k")
        probed = await zenith.get(made.headers["location"])
        nothing = await zenith.get(f"{TRANSFERS}/00000000-0000-7000-8000-000000000000")
        assert (probed.status, nothing.status) == (404, 404)
        known, unknown = made.json["id"], "00000000-0000-7000-8000-000000000000"
        assert probed.problem["detail"].replace(known, unknown) == nothing.problem["detail"]
        assert (await acme.get(made.headers["location"])).status == 200
        house = await ask.as_holder("ada", *BOTH)
        assert (await house.get(made.headers["location"])).status == 200


async def test_of_many_at_once_one_is_carried_out_and_the_others_hear_so(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        answers = await asyncio.gather(*(shop.post(TRANSFERS, ORDER, idempotency_key="k") for _ in range(40)))
        made = {answer.body for answer in answers if answer.status == 201}
        assert len(made) == 1
        assert {answer.status for answer in answers} <= {201, 409}
        assert await count(ask) == 1


async def test_whoever_asks_meanwhile_is_told_to_come_back(web: OpenWeb) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def act(tx: Tx) -> Told:
        begun.set()
        await go_on.wait()
        return Told(said="done")

    async with web() as ask:
        route(ask.web, act)
        shop = await ask.as_holder("shop", *BOTH)
        first = asyncio.create_task(shop.post("/v1/test", idempotency_key="k"))
        await begun.wait()
        busy = await shop.post("/v1/test", idempotency_key="k")
        assert (busy.status, busy.problem["type"]) == (409, "urn:payonce:problem:idempotency-key-busy")
        assert busy.headers["retry-after"] == "1"
        go_on.set()
        assert (await first).json == {"said": "done"}
        again = await shop.post("/v1/test", idempotency_key="k")
        assert (again.status, again.body) == (200, (await first).body)


async def written(tx: Tx) -> None:
    await tx.execute(
        """
        insert into transfers.transfers (id, source, target, asset, exponent, amount_minor)
        values ('half', 'ann', 'bob', 'EUR', 2, 1)
        """
    )


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Problem(404, "there is no such account"), 404),
        (Invalid("the account is closed"), 400),
        (Problem(422, "not today"), 422),
    ],
)
async def test_a_definite_refusal_is_an_answer_and_writes_nothing_else(
    web: OpenWeb, error: Exception, status: int
) -> None:
    runs: list[None] = []

    async def act(tx: Tx) -> Told:
        runs.append(None)
        await written(tx)
        raise error

    async with web() as ask:
        route(ask.web, act)
        shop = await ask.as_holder("shop", *BOTH)
        first, again = [await shop.post("/v1/test", idempotency_key="k") for _ in range(2)]
        assert (first.status, again.status, len(runs)) == (status, status, 1)
        assert first.problem["detail"] == again.json["detail"] == str(error)
        assert first.body == again.body
        assert again.headers["idempotent-replayed"] == "true"
        assert await count(ask) == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyError("a bug"), 500), (Retry("not yet"), 503), (Stale("it changed"), 409), (Problem(429, "too often"), 429)],
)
async def test_an_error_of_ours_or_of_the_moment_is_not_kept(web: OpenWeb, error: Exception, status: int) -> None:
    outcomes: list[Exception | None] = [error, None]

    async def act(tx: Tx) -> Told:
        if (raised := outcomes.pop(0)) is not None:
            await written(tx)
            raise raised
        return Told(said="the second time")

    async with web() as ask:
        route(ask.web, act)
        shop = await ask.as_holder("shop", *BOTH)
        first = await shop.post("/v1/test", idempotency_key="k")
        assert (first.status, await count(ask), await count(ask, "payonce.http_answers")) == (status, 0, 0)
        again = await shop.post("/v1/test", idempotency_key="k")
        assert (again.status, again.json) == (200, {"said": "the second time"})


async def test_an_order_that_does_not_fit_uses_up_no_key(web: OpenWeb) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        wrong = await shop.post(TRANSFERS, {**ORDER, "amount": 12.5}, idempotency_key="k")
        assert wrong.status == 422
        assert wrong.problem["errors"][0]["where"] == "body.amount"
        unreadable = await shop.post(TRANSFERS, b'{"amount": ', idempotency_key="k")
        assert unreadable.status == 400
        assert unreadable.problem
        assert (await shop.post(TRANSFERS, ORDER, idempotency_key="k")).status == 201
        refused = await shop.post(TRANSFERS, {**ORDER, "currency": "XYZ"}, idempotency_key="k2")
        assert (refused.status, "XYZ" in refused.problem["detail"]) == (422, True)


async def test_answers_are_kept_for_a_day_and_forgotten_after_two(web: OpenWeb) -> None:
    async with web() as ask, Clock.open(ask.scratch.owner_url) as clock:
        shop = await ask.as_holder("shop", *BOTH)
        first = await shop.post(TRANSFERS, ORDER, idempotency_key="k")
        await clock.advance(86_400)
        await Prune(ask.app.database).tick()
        assert (await shop.post(TRANSFERS, ORDER, idempotency_key="k")).body == first.body
        await clock.advance(KEPT_S - 86_400 + 1)
        before_the_janitor = await shop.post(TRANSFERS, {**ORDER, "amount": "1.00"}, idempotency_key="k")
        assert before_the_janitor.status == 201
        await shop.post(TRANSFERS, ORDER, idempotency_key="k2")
        await clock.advance(KEPT_S + 1)
        await Prune(ask.app.database).tick()
        assert await count(ask, "payonce.http_answers") == 0


async def test_a_client_that_goes_away_loses_nothing(web: OpenWeb) -> None:
    """Its request is carried out or not; the next one with the key finds out."""
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        task = asyncio.create_task(shop.post(TRANSFERS, ORDER, idempotency_key="k"))

        async def in_a_transaction() -> bool:
            return (
                bool(
                    await ask.app.read.fetchval(
                        "select exists (select from pg_locks where locktype = 'advisory' and database = "
                        "(select oid from pg_database where datname = current_database()))"
                    )
                )
                or task.done()
            )

        await eventually(in_a_transaction)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually(lambda: _answered(shop))
        assert await count(ask) == await count(ask, "payonce.http_answers") == 1


async def _answered(shop: WebClient) -> bool:
    return (await shop.post(TRANSFERS, ORDER, idempotency_key="k")).status == 201


def test_no_two_requests_share_a_fingerprint_by_shifting_their_parts() -> None:
    one = fingerprint_of("POST", "/a", b"", b"bc")
    assert one == fingerprint_of("POST", "/a", b"", b"bc")
    others = [("POST", "/ab", b"", b"c"), ("POST", "/a", b"b", b"c"), ("PUT", "/a", b"", b"bc")]
    assert one not in [fingerprint_of(*each) for each in others]


async def _taken(tx: Tx, *_: Any) -> None:
    return None


async def _not_kept(*_: Any) -> None:
    return None


ABLATIONS = {
    "the look for a kept answer": ("take", _taken, test_the_same_order_sent_again_is_one_transfer_and_one_answer),
    "keeping the answer": ("keep", _not_kept, test_the_same_order_sent_again_is_one_transfer_and_one_answer),
}


@pytest.mark.parametrize("name", ABLATIONS)
async def test_a_safeguard_that_is_taken_out_is_missed(
    web: OpenWeb, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    attribute, replacement, check = ABLATIONS[name]
    monkeypatch.setattr(idempotency, attribute, replacement)
    with pytest.raises(AssertionError):
        await check(web)


async def test_without_the_lock_somebody_would_wait_for_somebody_else(
    web: OpenWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary key still keeps a second transfer out; but only the lock answers at once."""
    genuine = Tx.fetchval

    async def unlocked(self: Tx, sql: str, *arguments: Any) -> Any:
        return True if "advisory" in sql else await genuine(self, sql, *arguments)

    monkeypatch.setattr(Tx, "fetchval", unlocked)
    with pytest.raises((AssertionError, TimeoutError)):
        async with asyncio.timeout(2):
            await test_whoever_asks_meanwhile_is_told_to_come_back(web)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/problem+JSON"])
async def test_a_body_with_a_name_twice_is_refused_and_nothing_is_ordered(web: OpenWeb, content_type: str) -> None:
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        twice = json.dumps(ORDER).encode().replace(b"{", b'{"amount": "0.01", ', 1)
        refused = await shop.post(TRANSFERS, twice, idempotency_key="twice", content_type=content_type)
        assert (refused.status, refused.problem["detail"]) == (
            400,
            "the body has a duplicate name, 'amount', in one object; send each name once",
        )
        assert await ask.app.read.fetchval("select count(*) from transfers.transfers") == 0
        assert (await shop.post(TRANSFERS, ORDER, idempotency_key="twice")).status == 201


@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % b",".join(b'"%d":1' % number for number in range(90_000)),
        b"[%b1]" % (b"1," * 500_000),
        b"[" * 500_000,
        b'{"a":' * 150_000,
        b'{"amount": %b}' % (b"9" * 900_000),
    ],
    ids=["names", "numbers", "lists in lists", "objects in objects", "one long number"],
)
async def test_a_body_that_takes_long_to_read_is_refused_soon(web: OpenWeb, body: bytes) -> None:
    """The loop that renews leases reads it."""
    async with web() as ask:
        shop = await ask.as_holder("shop", *BOTH)
        took_s = []
        for _ in range(3):
            began = time.thread_time()
            refused = await shop.post(TRANSFERS, body, idempotency_key="many", content_type="application/json")
            took_s.append(time.thread_time() - began)
            assert refused.status in (400, 413), refused.problem
        assert min(took_s) < READ_WITHIN_S


READ_WITHIN_S = 0.05
"""The names took a second, and the numbers a fifth of one."""
