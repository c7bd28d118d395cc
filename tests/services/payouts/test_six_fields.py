"""PAYOUTS_WEBHOOK_FORMAT=six-field: callers of before change the address of their webhook, and nothing else."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from payonce.services.payouts.api.webhook import PayoutOrder, WebhookRefused, read_webhook
from payonce.services.payouts.model import Hold, State
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import BTC_CLIENT, TERMS, open_office, signed, usdt

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SIX = replace(TERMS, six_fields=True)
BODY: dict[str, Any] = {
    "user_id": 6_271_402_111,
    "closed_channel_id": "-1003296084379",
    "wallet_address": BTC_CLIENT,
    "payout_currency": "btc",
    "payout_network": "btc",
    "subscription_price": "29.99",
}
NONE = {"payment_id": None, "timestamp": None}


def told(config: Any = SIX, text: bytes | None = None, **fields: Any) -> PayoutOrder:
    body = text or json.dumps({**BODY, **fields}).encode()
    return read_webhook(config, signed(body), body, NOW)


def test_six_fields_are_enough_with_the_switch_and_refused_without() -> None:
    assert told().price == usdt("29.99")
    assert told().derives_payment_id
    assert told(payment_id=None, timestamp=None) == told(), "null is as good as missing"
    with pytest.raises(WebhookRefused, match="timestamp"):
        told(TERMS)
    with pytest.raises(WebhookRefused, match="timestamp is more than 300 s away"):
        told(timestamp=int(NOW.timestamp()) - 301)
    with pytest.raises(WebhookRefused, match="X-Webhook-Signature is not"):
        read_webhook(SIX, "0" * 64, b"{}", NOW)


@pytest.mark.parametrize(
    ("written", "price"),
    [("29.99", "29.99"), ("29.990", "29.99"), ("30", "30"), ("29.099999999999998", "29.1"), ("1e1", "10")],
)
def test_a_price_that_is_a_json_number_is_the_amount_nearest_to_it(written: str, price: str) -> None:
    body = json.dumps(BODY).replace('"29.99"', written).encode()
    assert told(text=body).price == usdt(price)
    with pytest.raises(WebhookRefused):
        told(TERMS, text=body)


@pytest.mark.parametrize("price", ["0", "-1", "1e30", "true", "null", '"x"', "1e-9"])
def test_a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(WebhookRefused, match="subscription_price"):
        told(text=json.dumps(BODY).replace('"29.99"', price).encode())


def test_a_user_may_be_written_as_text() -> None:
    assert told(user_id="6271402111").user_id == 6_271_402_111


def test_no_caller_chooses_an_id_that_looks_derived() -> None:
    with pytest.raises(WebhookRefused, match="payment_id begins with derived:"):
        told(payment_id="derived:1")


async def test_the_payment_gets_an_id_and_a_repeat_within_a_day_goes_to_review(stage: OpenStage) -> None:
    async with open_office(stage, config=SIX) as office:
        first, again = [await office.order(**NONE) for _ in range(2)]
        assert first.payout.state is State.RECEIVED
        assert (again.payout.state, again.payout.hold) == (State.REVIEW, Hold.REPEATED)
        ids = [first.payout.payment_id or "", again.payout.payment_id or ""]
        assert [each.rpartition(":")[2] for each in ids] == ["1", "2"]
        assert all(each.startswith("derived:") for each in ids)
        await office.s.clock.advance(timedelta(days=30).total_seconds())
        renewed = await office.order(**NONE)
        assert renewed.payout.state is State.RECEIVED, "next month's renewal has the same fields"
        assert len({first.payout.unique_id, again.payout.unique_id, renewed.payout.unique_id}) == 3
