"""What the gateway posts: signed by Standard Webhooks, at least once, late and double if it is to be."""

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Verified, new_secret, verify
from payonce.vendors.gateway.outbox import AGAIN_AFTER_S, LATE_S, WebhookFaults
from payonce.vendors.gateway.port import Declined, EventType, GatewayEvent
from payonce.vendors.gateway.simulator import GatewaySimulator
from tests.vendors.gateway.at import DECLINES, AtGateway, at_gateway, order, refund_of

SOON_S = 3.0
"""By then every event is due that is not late."""


class Receiver:
    """Where webhooks arrive; answers as it is told."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.came: list[tuple[dict[str, str], bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert (scope["method"], scope["path"]) == ("POST", "/v1/webhooks/gateway")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.came.append((headers, (await receive())["body"]))
        status = self.statuses.pop(0) if self.statuses else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def at(self) -> HttpClient:
        return HttpClient("webhooks", "https://payments.example/v1/webhooks/gateway", transport=self)

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.came]

    @property
    def events(self) -> list[GatewayEvent | None]:
        return [GatewayEvent.read(body) for _, body in self.came]


async def three_events(at: AtGateway) -> str:
    charge = await at.client.charge(order(at.token))
    await at.client.refund(refund_of(charge.id))
    with pytest.raises(Declined):
        await at.client.charge(order(at.simulator.tokenise(DECLINES["card_declined"]), "inv-2:1"))
    await at.client.charge(order(at.token))
    return charge.id


async def test_each_event_is_told_once_with_what_it_is_about() -> None:
    receiver, secret = Receiver(), new_secret()
    async with at_gateway(False) as at, receiver.at() as http:
        charge_id = await three_events(at)
        assert await at.simulator.deliver(http, [secret]) == 0, "the gateway takes its time"
        at.clock.advance(SOON_S)
        assert await at.simulator.deliver(http, [secret]) == 3
        at.clock.advance(LATE_S)
        assert await at.simulator.deliver(http, [secret]) == 0
        assert at.simulator.outbox.waiting == 0
    told = {event.type: event.data for event in receiver.events if event}
    assert set(told) == set(EventType)
    assert len(set(receiver.ids)) == 3
    charged = told[EventType.CHARGE_SUCCEEDED]
    assert (charged.id, charged.reference, charged.amount, charged.currency) == (charge_id, "inv-1:1", 2_900, "AED")
    assert told[EventType.REFUND_SUCCEEDED].reference == "ref-1:1"
    assert told[EventType.CHARGE_FAILED].reference == "inv-2:1"


async def test_the_signature_is_that_of_standard_webhooks_and_of_no_other_secret() -> None:
    receiver, secret = Receiver(), new_secret()
    async with at_gateway(False, clock=lambda: datetime.now(UTC)) as at, receiver.at() as http:
        at.simulator.advance(-SOON_S)
        await three_events(at)
        at.simulator.advance(SOON_S)
        assert await at.simulator.deliver(http, [secret]) == 3
    for headers, body in receiver.came:
        assert Webhook(secret.reveal()).verify(body, headers) == json.loads(body)
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret().reveal()).verify(body, headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret.reveal()).verify(body.replace(b"AED", b"USD"), headers)
        checked = verify(headers, body, [secret], datetime.now(UTC))
        assert isinstance(checked, Verified)
        assert (checked.id, headers["content-type"]) == (headers["webhook-id"], "application/json")


async def test_some_events_come_twice_and_some_late_by_seed() -> None:
    receiver, secret = Receiver(), new_secret()
    post = WebhookFaults(seed=5, duplicate=0.3, late=0.3)
    async with at_gateway(False, post=post) as at, receiver.at() as http:
        for number in range(40):
            await at.client.charge(order(at.token, f"inv-{number}:1"))
        at.clock.advance(SOON_S)
        await at.simulator.deliver(http, [secret])
        in_time = set(receiver.ids)
        at.clock.advance(LATE_S)
        await at.simulator.deliver(http, [secret])
    counted = Counter(receiver.ids)
    assert len(counted) == 40
    assert 20 <= len(in_time) < 40
    assert set(counted.values()) == {1, 2}
    bodies = {headers["webhook-id"]: body for headers, body in receiver.came}
    assert all(bodies[headers["webhook-id"]] == body for headers, body in receiver.came), "a copy is a copy"


async def test_an_event_that_is_not_taken_comes_again_signed_anew_until_the_gateway_gives_up() -> None:
    receiver, secret = Receiver(500, 404, 301), new_secret()
    async with at_gateway(False) as at, receiver.at() as http:
        await at.client.charge(order(at.token))
        at.clock.advance(SOON_S)
        arrived = []
        for rest_s in AGAIN_AFTER_S[:4]:
            arrived.append(await at.simulator.deliver(http, [secret]))
            assert await at.simulator.deliver(http, [secret]) == 0, "not before it is due again"
            at.clock.advance(rest_s)
        assert arrived == [0, 0, 0, 1]
        assert len(set(receiver.ids)) == 1
        assert len({headers["webhook-timestamp"] for headers, _ in receiver.came}) == 4

        await at.client.charge(order(at.token, "inv-2:1"))
        receiver.statuses = [500] * 100
        for _ in range(20):
            at.clock.advance(max(AGAIN_AFTER_S))
            await at.simulator.deliver(http, [secret])
        assert len(receiver.came) == 4 + len(AGAIN_AFTER_S) + 1
        assert [webhook.given_up for webhook in at.simulator.outbox.webhooks] == [False, True]


async def test_what_was_told_is_remembered_across_a_restart_and_the_rest_is_told_then(tmp_path: Path) -> None:
    receiver, secret, journal = Receiver(200, 500), new_secret(), tmp_path / "gateway.journal"
    async with at_gateway(False, journal=journal) as at, receiver.at() as http:
        await at.client.charge(order(at.token))
        await at.client.charge(order(at.token, "inv-2:1"))
        at.clock.advance(SOON_S)
        assert await at.simulator.deliver(http, [secret]) == 1
        at.simulator.close()
        again = GatewaySimulator(journal, at.clock)
        at.clock.advance(AGAIN_AFTER_S[0])
        assert await again.deliver(http, [secret]) == 1
        again.close()
    assert Counter(receiver.ids).most_common() == [(receiver.ids[1], 2), (receiver.ids[0], 1)]


WITH_A_NUL = (
    b'{"type":"charge.failed","timestamp":"2026-01-31T12:00:00Z",'
    b'"data":{"id":"ch_1","reference":"inv\\u0000:1","amount":1,"currency":"AED"}}'
)
"""No store could look for it."""


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"type":"charge.succeeded"}', b"\xff", b"[" * 100_000, WITH_A_NUL]
)
def test_an_event_that_is_none_is_refused_in_one_sentence(body: bytes) -> None:
    with pytest.raises(Invalid, match="needs type, timestamp and data"):
        GatewayEvent.read(body)


def test_an_event_of_another_type_is_left_alone() -> None:
    assert GatewayEvent.read(b'{"type":"payout.paid","timestamp":"2026-01-31T12:00:00Z","data":{}}') is None
