"""What the gateway posts: a reason to look, taken in once; what fits nothing of ours is told to people."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from payonce.kit.http import HttpClient
from payonce.kit.webhooks import Refusal, signed_headers
from payonce.services.billing.payments.api.gateway_events import GatewayEventReceiver
from payonce.services.billing.payments.model import State
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.gateway.outbox import WebhookFaults
from tests.services.billing.payments.counter import GATEWAY_SECRET, Counter, open_counter

HERE = "https://payments.example/v1/webhooks/gateway"


@asynccontextmanager
async def posting(counter: Counter) -> AsyncIterator[HttpClient]:
    async with HttpClient("payments", HERE, transport=counter.web) as http:
        yield http


async def tell(counter: Counter, event_id: str = "evt_1", kind: str = "charge.succeeded", **data: Any) -> str:
    subject = {"id": "ch_1", "reference": "inv-1:1", "amount": 2_900, "currency": "AED", **data}
    body = msgspec.json.encode({"type": kind, "timestamp": "2026-01-01T00:00:00Z", "data": subject})
    headers = signed_headers([GATEWAY_SECRET], event_id, await counter.till.s.clock.now(), body)
    answer = await counter("POST", "/v1/webhooks/gateway", body, **headers)
    assert answer.status == 200, answer.body
    return str(answer.json["status"])


async def test_what_it_confirms_changes_nothing(stage: OpenStage) -> None:
    async with open_counter(stage, post=WebhookFaults(seed=1, duplicate=1.0)) as counter, posting(counter) as http:
        await counter.till.card()
        transaction = await counter.till.charged(action="trial", amount_minor=100)
        counter.till.clock.now = await counter.till.s.clock.now()
        # A charge and a refund, each told twice.
        assert await counter.till.gateway.deliver(http, [GATEWAY_SECRET]) == 4
        assert await counter.till.loud() == []
        assert await counter.till.transaction() == transaction


async def test_an_event_of_a_charge_in_doubt_wakes_it_before_its_next_try(stage: OpenStage) -> None:
    async with open_counter(stage, draws=Script([None, Fault.TIMEOUT_AFTER])) as counter, posting(counter) as http:
        till = counter.till
        await till.card()
        await till.ask()
        await till.drain()
        assert (await till.transaction()).state is State.PENDING
        till.clock.now = await till.s.clock.now()
        till.gateway.advance(5)
        assert await till.gateway.deliver(http, [GATEWAY_SECRET]) == 1
        await till.s.clock.advance(30)
        await till.drain()
        assert (await till.transaction()).state is State.SUCCEEDED
        await till.run()
        assert till.captures() == 1
        assert await till.broken() == {}


async def test_an_event_of_a_refund_in_doubt_wakes_it(stage: OpenStage) -> None:
    draws = Script([None, None, Fault.TIMEOUT_AFTER])
    async with open_counter(stage, draws=draws) as counter, posting(counter) as http:
        till = counter.till
        await till.card()
        await till.ask(action="trial", amount_minor=100)
        await till.drain()
        assert (await till.transaction()).state is State.SUCCEEDED
        till.clock.now = await till.s.clock.now()
        till.gateway.advance(5)
        assert await till.gateway.deliver(http, [GATEWAY_SECRET]) == 2
        await till.s.clock.advance(30)
        await till.drain()
        assert (await till.transaction()).state is State.REFUNDED
        assert till.gateway.books.refunded_total("AED").minor == 100


async def test_the_same_event_is_taken_in_once(stage: OpenStage) -> None:
    async with open_counter(stage) as counter:
        assert await tell(counter) == "processed"
        assert await tell(counter) == "duplicate"
        assert len(await counter.till.loud()) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"reference": "nobody:1"}, "there is no such charge"),
        ({"reference": "no colon"}, "there is no such charge"),
        ({"amount": 2_901}, "is of 29.00 AED"),
        ({"currency": "EUR"}, "is of 29.00 AED"),
        ({"id": "ch_another"}, "is succeeded as"),
        ({"kind": "charge.failed", "id": "ch_another"}, "is succeeded as"),
        ({"kind": "refund.succeeded", "reference": "nobody"}, "there is no such refund"),
    ],
)
async def test_what_fits_nothing_of_ours_is_told_and_changes_nothing(
    stage: OpenStage, data: dict[str, Any], said: str
) -> None:
    async with open_counter(stage) as counter:
        await counter.till.card()
        before = await counter.till.charged()
        await tell(counter, **{"id": str(before.gateway_id), **data})
        await counter.till.run()
        [loud] = await counter.till.loud()
        assert said in loud
        assert await counter.till.transaction() == before
        assert await counter.till.broken() == {}


async def test_without_a_secret_nothing_is_taken(stage: OpenStage) -> None:
    async with stage() as s:
        refused = await GatewayEventReceiver([]).receive(s.read, {}, b"{}")
        assert isinstance(refused, Refusal)
        assert refused.status == 401
