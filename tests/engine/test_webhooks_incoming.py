"""Incoming webhooks: refused with a reason or accepted once, by a signed id."""

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from payonce.engine.monitoring import metrics
from payonce.engine.webhooks import Received, Receiver
from payonce.kit.webhooks import Refusal, Scheme, Secret, signed_headers
from payonce.testing import OpenStage

SECRET = Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
RECEIVER = Receiver("payments", [SECRET], Scheme.STANDARD)
OLDER = Receiver("payments", [SECRET], Scheme.OLDER)
EVENT = {"id": "evt_1", "type": "payment.succeeded", "data": {"amount": 12.10}}


def signed(event: Any = EVENT, at: datetime = NOON) -> tuple[dict[str, str], bytes]:
    body = event if isinstance(event, bytes) else msgspec.json.encode(event)
    return signed_headers([SECRET], "evt_1", at, body), body


def older(event: Any = EVENT, at: datetime = NOON) -> tuple[dict[str, str], bytes]:
    headers, body = signed(event, at)
    return {name: value for name, value in headers.items() if name.startswith("X-")}, body


async def take_in(
    stage: OpenStage, *requests: tuple[dict[str, str], bytes], receiver: Receiver = RECEIVER
) -> list[str]:
    """A service's handling of each; returns those that became business."""
    async with stage() as s:
        await s.clock.freeze(NOON)
        await s.owner.execute("create table if not exists paid (id text); grant all on paid to payonce_service")

        async def one(headers: dict[str, str], body: bytes) -> None:
            received = await receiver.receive(s.read, headers, body)
            assert isinstance(received, Received), received
            async with s.begin() as tx:
                if await received.first_time(tx):
                    await tx.execute("insert into paid values ($1)", received.id)

        await asyncio.gather(*(one(headers, body) for headers, body in requests))
        return [row["id"] for row in await s.owner.fetch("select id from paid")]


@pytest.mark.parametrize("receiver", [RECEIVER, OLDER], ids=lambda receiver: str(receiver.scheme))
async def test_a_webhook_that_comes_often_is_taken_in_once(stage: OpenStage, receiver: Receiver) -> None:
    later, made = NOON + timedelta(seconds=200), older if receiver is OLDER else signed
    assert await take_in(stage, made(), made(), made(at=later), receiver=receiver) == ["evt_1"]


def test_a_captured_webhook_does_not_come_in_again_by_the_other_scheme() -> None:
    """Its body has an id of its own, which the inbox would not know."""
    headers, body = signed({"id": "charge_77"})
    stripped = {name: value for name, value in headers.items() if name.startswith("X-")}
    first, second = RECEIVER.read_at(NOON, headers, body), RECEIVER.read_at(NOON, stripped, body)
    assert isinstance(first, Received)
    assert isinstance(second, Refusal)
    assert (first.id, second.why) == ("evt_1", "missing")


async def test_the_id_and_the_business_commit_together(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON)
        received = await RECEIVER.receive(s.read, *signed())
        assert isinstance(received, Received)
        with suppress(ZeroDivisionError):
            async with s.begin() as tx:
                assert await received.first_time(tx)
                raise ZeroDivisionError
        async with s.begin() as tx:
            assert await received.first_time(tx), "what was rolled back was not taken in"


def test_what_the_reference_package_signs_is_received() -> None:
    body = msgspec.json.encode(EVENT)
    signature = Webhook(SECRET.reveal()).sign("msg_7", NOON, body.decode())
    headers = {"webhook-id": "msg_7", "webhook-timestamp": str(int(NOON.timestamp())), "webhook-signature": signature}
    received = RECEIVER.read_at(NOON, headers, body)
    assert isinstance(received, Received)
    assert (received.id, received.scheme, received.body, received.event["type"]) == (
        "msg_7",
        Scheme.STANDARD,
        body,
        "payment.succeeded",
    )


def test_amounts_are_read_exactly() -> None:
    received = RECEIVER.read_at(NOON, *signed(b'{"id":"evt_1","amount":0.10}'))
    assert isinstance(received, Received)
    assert str(received.event["amount"]) == "0.10"


def test_the_older_schemes_id_is_the_one_in_the_signed_body() -> None:
    """An unsigned header must not decide what was accepted before."""
    for event, expected in (({"id": "a"}, "a"), ({"event_id": "b"}, "b"), ({"id": "a", "event_id": "b"}, "a")):
        headers, body = older(event)
        received = OLDER.read_at(NOON, headers, body)
        assert isinstance(received, Received)
        assert received.id == expected
        unsigned = OLDER.read_at(NOON, {**headers, "webhook-id": "another"}, body)
        assert isinstance(unsigned, Received)
        assert unsigned.id == expected


@pytest.mark.parametrize(
    "event",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b'"x"',
        {},
        {"id": 7},
        {"id": ""},
        {"id": "x" * 201},
        {"id": "a\x00"},
        {"id": None},
        {"event_id": ["x"]},
        b'{"id":"\\ud800"}',
        b"[" * 100_000,
    ],
)
def test_a_signed_body_that_cannot_be_told_apart_is_refused(event: Any) -> None:
    answer = OLDER.read_at(NOON, *older(event))
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.why) == (400, "malformed")


@given(body=st.binary(max_size=200), by_older=st.booleans(), at_s=st.integers(-1_000, 1_000))
def test_no_body_makes_the_receiver_fail(body: bytes, by_older: bool, at_s: int) -> None:
    request = (older if by_older else signed)(body, NOON + timedelta(seconds=at_s))
    answer = (OLDER if by_older else RECEIVER).read_at(NOON, *request)
    assert isinstance(answer, Received) or answer.status in (400, 401, 413)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["id", "event_id", "type", "x"]), json_values, max_size=4))
def test_no_signed_object_makes_the_receiver_fail(event: dict[str, Any]) -> None:
    answer = OLDER.read_at(NOON, *older(json.dumps(event).encode()))
    if isinstance(answer, Received):
        assert answer.id == event.get("id", event.get("event_id"))
    else:
        assert answer.status == 400


def test_refusals_are_counted_by_what_was_wrong() -> None:
    def count(why: str) -> float:
        labels = {"consumer": "counted", "why": why}
        return metrics.REGISTRY.get_sample_value("payonce_signature_failures_total", labels) or 0.0

    receiver = Receiver("counted", [Secret("quite-another-secret")], Scheme.STANDARD)
    receiver.read_at(NOON, *signed())
    receiver.read_at(NOON, {}, b"{}")
    receiver.read_at(NOON, *signed(at=NOON - timedelta(hours=1)))
    assert [count(why) for why in ("forged", "missing", "stale", "future")] == [1, 1, 1, 0]


async def test_the_clock_is_the_stores(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(NOON + timedelta(hours=1))
        answer = await RECEIVER.receive(s.read, *signed())
        assert isinstance(answer, Refusal)
        assert answer.why == "stale"


def test_neither_secrets_nor_bodies_are_shown() -> None:
    received = RECEIVER.read_at(NOON, *signed())
    assert "payment.succeeded" not in repr(received)
    assert "Secret" not in repr(RECEIVER)
