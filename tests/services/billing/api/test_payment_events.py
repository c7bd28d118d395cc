"""The webhook of payments: only what they signed, only in time, and each event once."""

import asyncio
import hmac
import json
from datetime import timedelta
from typing import Any

import msgspec
from standardwebhooks import Webhook

from payonce.engine.webhooks import Receiver
from payonce.kit.webhooks import Secret, signed_headers
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import payment_events
from tests.ablations import patched
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import Shop
from tests.services.billing.billing_stage import SECRET, Customer

PLACE = "/v1/webhooks/payment"
NEWER = Secret("the-secret-that-follows-the-first")


async def charged(ask: Shop) -> tuple[Shop, dict[str, Any]]:
    """A customer whose first charge has succeeded, and the notification of it, which has not arrived."""
    ada = await ask.customer("ada@example.com")
    ask.house.door.answers = [503] * 50
    await ada.order("/v1/subscriptions", {"plan_id": "basic"})
    await ask.house.run(2.0)
    body = await ask.house.s.owner.fetchval("select body from payments.notifications where action = 'initial'")
    ask.house.door.answers = []
    return ada, json.loads(body)


async def told(
    ask: Shop,
    body: bytes,
    more: dict[str, str] | None = None,
    *,
    off_s: float = 0,
    secrets: tuple[Secret, ...] = (SECRET,),
) -> Any:
    at = await ask.app.read.fetchval("select payonce.due_now()") + timedelta(seconds=off_s)
    return await ask.post(PLACE, body, **{**signed_headers(secrets, "evt_x", at, body), **(more or {})})


async def state(ask: Shop) -> str:
    found: str = await ask.house.s.owner.fetchval("select state from subscriptions.subscriptions")
    return found


async def on_record(ask: Shop, event: dict[str, Any]) -> int:
    found: int = await ask.house.s.owner.fetchval(
        "select count(*) from subscriptions.payment_webhook_requests where event_id = $1", event["event_id"]
    )
    return found


async def test_an_event_is_applied_once_however_often_it_comes(shop: OpenShop) -> None:
    async with shop() as ask:
        _, event = await charged(ask)
        body = json.dumps(event).encode()
        answers = await asyncio.gather(*(told(ask, body) for _ in range(4)))
        assert sorted(answer.json["status"] for answer in answers) == ["duplicate"] * 3 + ["processed"]
        assert {answer.status for answer in answers} == {200}
        assert (await state(ask), await ask.house.broken()) == ("active", {})
        viewer = await ask.with_key("viewer", "billing:read")
        found = (await viewer.get(f"/v1/webhooks/status/{event['event_id']}")).json
        assert (found["processed"], found["retry_count"], found["error_message"]) == (True, 3, None)
        assert (await viewer.get("/v1/webhooks/status/none")).status == 404


async def test_what_payments_did_not_sign_now_changes_nothing(shop: OpenShop) -> None:
    async with shop() as ask:
        _, event = await charged(ask)
        body = json.dumps(event).encode()
        forged = json.dumps({**event, "amount": "0.01"}).encode()
        good = signed_headers((SECRET,), "evt_x", await ask.house.s.clock.now(), body)
        refused = {
            "nothing is signed": (await ask.post(PLACE, body), 400),
            "no time": (await told(ask, body, {"X-Webhook-Timestamp": ""}), 400),
            "no signature": (await told(ask, body, {"X-Webhook-Signature": ""}), 400),
            "another secret": (await told(ask, body, secrets=(NEWER,)), 401),
            "another body": (await ask.post(PLACE, forged, **good), 401),
            "no digits": (await told(ask, body, {"X-Webhook-Signature": "sha256=é"}), 401),
            "another hash": (await told(ask, body, {"X-Webhook-Signature": "md5=00"}), 400),
            "too old": (await told(ask, body, off_s=-302), 400),
            "too early": (await told(ask, body, off_s=302), 400),
            "no object": (await told(ask, b"[]"), 400),
            "no event": (await told(ask, b"{}"), 400),
            "an event of nothing": (await told(ask, b'{"event_id": "e"}'), 400),
            "an action that is none": (await told(ask, json.dumps({**event, "action": "gift"}).encode()), 400),
        }
        assert {why: answer.status for why, (answer, _) in refused.items()} == {
            why: status for why, (_, status) in refused.items()
        }
        assert all(answer.problem["detail"] for answer, _ in refused.values())
        assert await state(ask) == "incomplete"
        assert await on_record(ask, event) == 0
        assert (await told(ask, body, off_s=-299)).json == {"status": "processed"}


async def test_a_signed_body_with_a_name_twice_is_refused(shop: OpenShop) -> None:
    """Its sender may have meant either value."""
    async with shop() as ask:
        _, event = await charged(ask)
        twice = json.dumps(event).encode().replace(b'"amount":', b'"amount": "1.00", "amount":', 1)
        answer = await told(ask, twice, {"Content-Type": "text/plain"})
        assert (answer.status, "duplicate name" in answer.problem["detail"]) == (400, True)
        assert await on_record(ask, event) == 0
        body = b'{"account_id": "a", "account_id": "b"}'
        headers = signed_headers((SECRET,), "evt_y", await ask.app.read.fetchval("select payonce.due_now()"), body)
        answer = await ask.post("/v1/auth/token-version", body, **headers)
        assert (answer.status, "duplicate name" in answer.problem["detail"]) == (400, True)


async def test_what_payments_signed_and_nobody_could_book_is_400_and_changes_nothing(shop: OpenShop) -> None:
    """A sentence for whoever runs payments, and not an error of ours that they would try again for hours."""
    odd: list[tuple[str, Any]] = [
        *(("amount", text) for text in ("-5", "0", "0.00", "9" * 40, "29.001", "much", "")),
        ("currency", "ZZZ"),
        ("transaction_id", ""),
        ("transaction_id", "t" * 201),
        ("event_id", ""),
        ("event_id", "e" * 201),
        *((name, "a\u0000b") for name in ("event_id", "transaction_id", "subscription_id")),
        ("metadata", {"invoice_id": "\u0000"}),
        ("metadata", {"deep": [{"a\u0000": 1}]}),
    ]
    async with shop() as ask:
        _, event = await charged(ask)
        for name, value in odd:
            answer = await told(ask, json.dumps({**event, name: value}).encode())
            assert (answer.status, answer.json["title"]) == (400, "Bad Request"), (name, value)
        deep = json.dumps(event).replace('"metadata": {', '"metadata": {"deep": ' + "[" * 9_999 + "]" * 9_999 + ", ")
        assert (await told(ask, deep.encode())).status == 400
        assert (await state(ask), await on_record(ask, event)) == ("incomplete", 0)
        assert (await told(ask, json.dumps(event).encode())).json == {"status": "processed"}


async def test_the_signature_is_the_one_that_was_agreed(shop: OpenShop) -> None:
    """sha256= and the hex of HMAC-SHA256 over timestamp.body, beside Standard Webhooks' own."""
    async with shop() as ask:
        _, event = await charged(ask)
        body = json.dumps(event).encode()
        at = await ask.house.s.clock.now()
        headers = signed_headers((SECRET,), "evt_x", at, body)
        timestamp = str(int(at.timestamp()))
        mac = hmac.new(SECRET.key, f"{timestamp}.".encode() + body, "sha256").hexdigest()
        assert (headers["X-Webhook-Timestamp"], headers["X-Webhook-Signature"]) == (timestamp, f"sha256={mac}")
        sign = Webhook(SECRET.key).sign(msg_id="evt_x", timestamp=at, data=body.decode())
        assert headers["webhook-signature"] == sign
        assert (await told(ask, body)).status == 200


async def test_secrets_are_exchanged_without_a_lost_notification(shop: OpenShop) -> None:
    async with shop() as ask:
        _, event = await charged(ask)
        body = json.dumps(event).encode()
        assert (await told(ask, body, secrets=(NEWER,))).status == 401
        others = [each for each in ask.app.resources if not isinstance(each, SubscriptionConfig)]
        ask.app.resources = [*others, SubscriptionConfig([NEWER, SECRET])]
        # While both are in force payments sign with both, the older one where there is room for one alone.
        assert (await told(ask, body, secrets=(NEWER, SECRET))).json == {"status": "processed"}
        ask.app.resources = [*others, SubscriptionConfig([NEWER])]
        assert (await told(ask, body, secrets=(NEWER,))).json == {"status": "duplicate"}


async def test_a_change_that_fails_takes_its_event_back_with_it(shop: OpenShop) -> None:
    async with shop() as ask:
        _, event = await charged(ask)
        body = json.dumps(event).encode()

        async def fails(*_: Any) -> None:
            raise OSError("the disk is full")

        with patched(payment_events, "_paid", fails)():
            assert (await told(ask, body)).status in (500, 503)
        assert await on_record(ask, event) == 0
        assert (await told(ask, body)).json == {"status": "processed"}
        assert await state(ask) == "active"


async def test_without_the_check_of_signatures_a_forged_event_would_pay(shop: OpenShop) -> None:
    """The safeguard taken out, to see that the tests above stand on it."""
    async with shop() as ask:
        _, event = await charged(ask)
        received = Receiver.read_at

        def believed(self: Any, now: Any, headers: Any, body: bytes) -> Any:
            return received(self, now, signed_headers((SECRET,), "evt_x", now, body), body)

        with patched(Receiver, "read_at", believed)():
            assert (await ask.post(PLACE, json.dumps(event).encode())).json == {"status": "processed"}
        assert await state(ask) == "active"


async def test_a_process_without_the_role_takes_no_event(shop: OpenShop) -> None:
    async with shop() as ask:
        _, event = await charged(ask)
        ask.app.resources = []
        assert (await told(ask, json.dumps(event).encode())).status == 404


async def test_everything_that_payments_tell_comes_through_the_door(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        await ada.subscribed()
        rows = await ask.house.s.owner.fetch("select response_code from payments.webhook_outbound_requests")
        assert {row["response_code"] for row in rows} == {200}
        assert len(await ask.house.invoices(Customer(ada.account_id, None))) == 1
        events = await ask.house.s.owner.fetch("select payload from subscriptions.payment_webhook_requests")
        assert all(msgspec.json.decode(row["payload"])["event_id"] for row in events)
