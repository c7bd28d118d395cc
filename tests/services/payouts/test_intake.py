"""The webhook over HTTP: a documented answer for every case, and nothing written where it is a no."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payonce.app.process import App
from payonce.http.application import build_web
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.api.webhook import PayoutOrder, WebhookRefused, read_webhook, unique_id_of
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.domain.pricing import fee_and_rest, market_value
from payonce.services.payouts.model import USDT, Hold, State
from payonce.settings import load_settings
from payonce.testing import Clock, OpenStage, ScratchDatabase
from tests.http.client import Answer, WebClient
from tests.services.payouts.payouts_stage import (
    BTC_CLIENT,
    CLIENT,
    HOST_WALLET,
    KEY,
    TERMS,
    eth,
    open_office,
    signed,
    usdt,
    webhook,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def environment(scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("PAYONCE_KEYS", f"k1:{base64.b64encode(bytes(range(32))).decode()}")
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", base64.b64encode(KEY).decode())
    monkeypatch.setenv("TPS_HOSTPAY_SIGNING_KEY", base64.b64encode(KEY[::-1]).decode())
    return monkeypatch


OpenDoor = Callable[[], AbstractAsyncContextManager["Door"]]


class Door:
    """The orchestrator's port, asked in process."""

    def __init__(self, ask: WebClient) -> None:
        self.ask = ask
        self.key = base64.b64encode(KEY)

    async def body(self, **fields: Any) -> bytes:
        return webhook(await self.ask.app.read.fetchval("select payonce.due_now()"), **fields)

    async def post(self, body: bytes, signature: str | None = "right") -> Answer:
        given = signed(body, self.key) if signature == "right" else signature
        return await self.ask("POST", "/", body=body, headers={} if given is None else {"x_webhook_signature": given})

    async def order(self, **fields: Any) -> Answer:
        return await self.post(await self.body(**fields))

    async def count(self) -> tuple[int, ...]:
        tables = ("payouts.payouts", "payonce.live_messages", "payonce.postings")
        return tuple([await self.ask.app.read.fetchval(f"select count(*) from {table}") for table in tables])


@pytest.fixture
def door(environment: pytest.MonkeyPatch, scratch: ScratchDatabase) -> OpenDoor:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Door]:
        async with App.open(load_settings(), ["payouts.orchestrator"]) as app:
            yield Door(WebClient(app, build_web(app), scratch))

    return opened


async def test_a_signed_webhook_is_a_payout_with_its_books_and_its_message(door: OpenDoor) -> None:
    async with door() as at:
        answer = await at.order()
        assert answer.status == 200
        assert answer.json["state"] == "received"
        assert len(answer.json["unique_id"]) == 16
        assert await at.count() == (1, 1, 1)


async def test_the_same_payment_again_is_the_same_payout(door: OpenDoor) -> None:
    async with door() as at:
        first, again = await at.order(), await at.order()
        assert again.status == 200
        assert again.json == first.json
        # Signed anew at another moment, it is still the same payment.
        assert (await at.order(timestamp=int(datetime.now(UTC).timestamp()) - 30)).json == first.json
        assert await at.count() == (1, 1, 1)


@pytest.mark.parametrize("other", [{"subscription_price": "99.00"}, {"user_id": 5}, {"extra_id": "memo"}])
async def test_another_body_under_a_known_payment_is_refused(door: OpenDoor, other: dict[str, Any]) -> None:
    async with door() as at:
        await at.order()
        answer = await at.order(**other)
        assert answer.status == 409
        assert "pay-1" in answer.problem["detail"]
        assert await at.count() == (1, 1, 1)


async def test_a_missing_or_wrong_signature_is_401(door: OpenDoor) -> None:
    async with door() as at:
        for signature in (None, "", "0" * 64, "no hex at all", "ü"):
            assert (await at.post(await at.body(), signature)).status == 401
        assert await at.count() == (0, 0, 0)


async def test_the_signature_is_over_the_raw_bytes(door: OpenDoor) -> None:
    async with door() as at:
        body = await at.body()
        padded = body.replace(b", ", b",  ")
        assert (await at.post(padded, signed(body, at.key))).status == 401
        assert (await at.post(padded)).status == 200


async def test_a_query_is_refused_as_on_every_route(door: OpenDoor) -> None:
    async with door() as at:
        body = await at.body()
        headers = {"x_webhook_signature": signed(body, at.key)}
        answer = await at.ask("POST", "/?test=1", body=body, headers=headers)
        assert answer.status == 422
        assert [each["where"] for each in answer.json["errors"]] == ["query.test"]
        assert await at.count() == (0, 0, 0)


async def test_a_time_that_is_far_from_ours_is_400(door: OpenDoor) -> None:
    async with door() as at, Clock.open(at.ask.scratch.owner_url) as clock:
        # It stands still: what is too early would not be so a few seconds later.
        now = await clock.freeze()
        for seconds in (-302, 302, 86_400):
            answer = await at.order(timestamp=int(now.timestamp()) + seconds)
            assert answer.status == 400
            assert "timestamp" in answer.problem["detail"]
        assert await at.count() == (0, 0, 0)


REFUSED: dict[str, list[Any]] = {
    "wallet_address": ["", "0x123", CLIENT, 7, "bc1 with a space", "x" * 300, None],
    "payout_currency": ["", "b t c", 5, None, "x" * 31],
    "payout_network": ["", None, ["btc"]],
    "subscription_price": ["0", "-1", "1.0000001", "1e5", "NaN", "", True, None, "9" * 16, "0.000000", "1,5"],
    "user_id": [-1, 2**63, "7", 1.5, True, None],
    "closed_channel_id": ["", "a b", None, "x" * 65],
    "payment_id": ["", "with space", "x" * 201, None, 7],
}


async def test_a_field_that_cannot_become_a_payout_is_422_with_its_name(door: OpenDoor) -> None:
    async with door() as at:
        for name, value in ((name, value) for name, values in REFUSED.items() for value in values):
            answer = await at.order(**{name: value})
            assert answer.status == 422, (name, value)
            assert name in answer.problem["detail"], (name, value)
        assert await at.count() == (0, 0, 0)


async def test_a_body_that_is_no_object_is_400(door: OpenDoor) -> None:
    async with door() as at:
        for body in (b"", b"[]", b"7", b"{", b"\xff\xfe", b'{"a":' * 2_000):
            assert (await at.post(body)).status == 400


async def test_the_older_name_of_the_price_and_ids_above_32_bits_are_taken(door: OpenDoor) -> None:
    async with door() as at:
        answer = await at.order(subscription_price=None, sub_price="15.5", user_id=2**40)
        assert answer.status == 200
        row = await at.ask.app.read.fetchrow("select * from payouts.payouts")
        assert (row["user_id"], row["price_minor"]) == (2**40, 15_500_000)


async def test_what_the_exchange_does_not_pay_out_is_refused_by_the_list(door: OpenDoor) -> None:
    async with door() as at:
        # Without a list nobody is refused: the exchange may be away.
        assert (await at.order(payout_currency="pepe")).status == 200
        await at.ask.app.database.work.execute(
            """
            insert into payouts.currencies (ticker, network, name, has_extra_id, payable) values
                ('btc', 'btc', 'Bitcoin', false, true), ('xrp', 'xrp', 'Ripple', true, true),
                ('old', 'btc', 'Old', false, false)
            """
        )
        ripple = {
            "payout_currency": "xrp",
            "payout_network": "xrp",
            "wallet_address": "rEb8TK3gBgk5auZkwc6sHnwrGVJH8DuaLh",
        }
        for fields, status in (
            ({"payout_currency": "pepe"}, 422),
            ({"payout_currency": "old"}, 422),
            ({"extra_id": "7"}, 422),
            (ripple, 422),
            ({**ripple, "extra_id": ""}, 200),
            ({**ripple, "extra_id": "4711"}, 200),
            ({}, 200),
            ({**ripple, "extra_id": " "}, 422),
            ({**ripple, "extra_id": "   "}, 422),
            ({**ripple, "extraId": " 1"}, 422),
            ({**ripple, "extra_id": "4711 "}, 422),
            ({**ripple, "extra_id": "\t4711"}, 422),
            ({**ripple, "extra_id": "my memo"}, 200),
            ({**ripple, "extra_id": "7" * 120}, 200),
            ({**ripple, "extra_id": "7" * 121}, 422),
        ):
            payment = hashlib.sha256(json.dumps(fields).encode()).hexdigest()
            answer = await at.order(**{"payment_id": payment, **fields})
            assert answer.status == status, (fields, answer.body)


async def test_a_payment_on_record_is_answered_whatever_the_list_says_now(door: OpenDoor) -> None:
    async with door() as at:
        first = await at.order()
        await at.ask.app.database.work.execute(
            "insert into payouts.currencies (ticker, network, name, has_extra_id, payable) "
            "values ('btc', 'btc', 'Bitcoin', true, false)"
        )
        again = await at.order()
        assert (again.status, again.json) == (200, first.json)
        assert (await at.order(user_id=5)).status == 409
        assert (await at.order(payment_id="pay-2")).status == 422
        assert await at.count() == (1, 1, 1)


async def test_without_a_payment_id_a_repetition_within_a_day_is_reviewed(stage: OpenStage) -> None:
    config = PayoutConfig((KEY,), HOST_WALLET, allow_missing_payment_id=True)
    async with open_office(stage, config=config) as office:
        first = await office.order(payment_id=None)
        again = await office.order(payment_id=None)
        assert again.new
        payout = await office.payout(again)
        assert (payout.state, payout.hold, payout.held_from) == (State.REVIEW, Hold.REPEATED, State.RECEIVED)
        await office.run(86_401.0)
        assert await office.state(first) is State.SWAPPED
        assert await office.state(again) is State.REVIEW
        # A month later it is the next subscription.
        third = await office.order(payment_id=None)
        assert await office.state(third) is State.RECEIVED
        assert await office.broken() == {}


@pytest.mark.parametrize("ids", [(None, "pay-1"), ("pay-1", None)])
async def test_the_same_once_with_and_once_without_a_payment_id_is_reviewed(
    stage: OpenStage, ids: tuple[str | None, str | None]
) -> None:
    config = PayoutConfig((KEY,), HOST_WALLET, allow_missing_payment_id=True)
    async with open_office(stage, config=config) as office:
        first, second = [await office.order(payment_id=each) for each in ids]
        payout = await office.payout(second)
        assert (payout.state, payout.hold, payout.held_from) == (State.REVIEW, Hold.REPEATED, State.RECEIVED)
        # Sent again, what has an id is the payout it was.
        with_id = first if ids[0] else second
        assert (await office.order(payment_id="pay-1")).payout.id == with_id.payout.id
        await office.run()
        assert [await office.state(each) for each in (first, second)] == [State.SWAPPED, State.REVIEW]
        assert len(await office.hostpay_told()) == 1
        assert await office.broken() == {}


async def test_two_payment_ids_tell_two_orders_apart(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        orders = [await office.order(payment_id=each) for each in ("pay-1", "pay-2")]
        assert [await office.state(each) for each in orders] == [State.RECEIVED] * 2


async def test_two_payments_whose_unique_ids_meet_are_refused_loudly(door: OpenDoor) -> None:
    async with door() as at:
        first = await at.order()
        await at.ask.app.database.work.execute(
            "update payouts.payouts set unique_id = $1", unique_id_of("payment pay-2")
        )
        answer = await at.order(payment_id="pay-2")
        assert answer.status == 409
        assert "another payment" in answer.problem["detail"]
        assert await at.ask.app.read.fetchval("select id from payouts.payouts") == first.json["payout_id"]
        assert await at.count() == (1, 1, 1)
        assert await at.ask.app.read.fetchval("select count(*) from payonce.audit_log where severity = 'ERROR'") == 1


async def test_a_process_without_the_role_says_where_to_go(environment: Any, scratch: ScratchDatabase) -> None:
    async with App.open(load_settings()) as app:
        answer = await Door(WebClient(app, build_web(app), scratch)).order()
        assert answer.status == 404
        assert "payouts.orchestrator" in answer.problem["detail"]


def test_a_missing_signing_key_stops_the_start() -> None:
    with pytest.raises(Invalid, match="signing key"):
        PayoutConfig((), HOST_WALLET)
    with pytest.raises(Invalid, match="signing key"):
        PayoutConfig((b"",), HOST_WALLET)


@pytest.mark.parametrize("percent", ["-1", "100", "NaN", "Infinity"])
def test_a_fee_that_is_none_stops_the_start(percent: str) -> None:
    with pytest.raises(Invalid, match="fee"):
        PayoutConfig((KEY,), HOST_WALLET, Decimal(percent))


def taken_or_not(signature: str | None, body: bytes) -> PayoutOrder | int:
    """What it asks for, or the status of the one clear no."""
    try:
        return read_webhook(TERMS, signature, body, NOW)
    except WebhookRefused as no:
        return int(no.status) if str(no) else 0


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode), st.text(max_size=70) | st.none())
@example(b'{"timestamp": 1767323045, "subscription_price": 1e999999}', None)
def test_any_bytes_are_a_payout_or_one_clear_no(body: bytes, signature: str | None) -> None:
    for given_signature in (signature, signed(body)):
        read = taken_or_not(given_signature, body)
        assert isinstance(read, PayoutOrder) or read in (400, 401, 422)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.sampled_from(sorted(json.loads(webhook(NOW)))), JSON)
def test_any_value_of_any_field_is_a_payout_or_one_clear_no(name: str, value: Any) -> None:
    body = json.dumps({**json.loads(webhook(NOW)), name: value}).encode()
    read = taken_or_not(signed(body), body)
    assert read.fee + read.adjusted == read.price if isinstance(read, PayoutOrder) else read in (400, 422)


PRICES = st.integers(1, 10**15).map(lambda minor: usdt("0.000001") * minor)
PERCENTS = st.decimals(0, Decimal("99.999999"), places=6)


@given(PRICES, PERCENTS)
def test_fee_and_rest_are_the_price_and_the_rest_is_rounded_half_to_even(price: Any, percent: Decimal) -> None:
    fee, rest = fee_and_rest(price, percent)
    assert fee + rest == price
    exact = price.minor * (100 - percent) / 100
    assert abs(rest.minor - exact) <= Decimal("0.5")


@pytest.mark.parametrize(
    ("price", "percent", "fee", "rest"),
    [("0.000005", "50", "0.000003", "0.000002"), ("0.000015", "50", "0.000007", "0.000008"), ("10", "3", "0.3", "9.7")],
)
def test_half_goes_to_the_even_side(price: str, percent: str, fee: str, rest: str) -> None:
    assert fee_and_rest(usdt(price), Decimal(percent)) == (usdt(fee), usdt(rest))


def test_the_value_is_the_rate_between_both_fees_rounded_down_to_the_wei() -> None:
    value = market_value(usdt("97"), Decimal(97), Decimal("0.0381"), Decimal("0.5"), Decimal("0.0005"))
    # 97 x 0.0386 / 96.5 = 0.0388 exactly.
    assert value == eth("0.0388")
    third = market_value(usdt("1"), Decimal(3), Decimal(1), Decimal(0), Decimal(0))
    assert third == eth("0.333333333333333333")
    assert market_value(usdt("97"), Decimal(97), Decimal(1), Decimal(97), Decimal(0)) is None
    assert market_value(usdt("97"), Decimal(97), Decimal(1), Decimal(98), Decimal(0)) is None
    assert market_value(usdt("0.000001"), Decimal(97), Decimal(0), Decimal(0), Decimal(0)) is None


def test_unique_ids_are_sixteen_letters_or_digits_and_the_same_for_the_same_payment() -> None:
    made = {unique_id_of(f"payment {number}") for number in range(2_000)}
    assert len(made) == 2_000
    assert all(len(each) == 16 and each.isalnum() and each == each.upper() and each.isascii() for each in made)
    assert unique_id_of("payment pay-1") == unique_id_of("payment pay-1")


def test_the_address_of_the_example_is_one() -> None:
    assert USDT.exponent == 6
    assert read_webhook(TERMS, signed(webhook(NOW)), webhook(NOW), NOW).wallet_address == BTC_CLIENT


CHECKED = [
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
]
"""The examples of EIP-55."""


def ordered_to(address: str, network: str = "eth") -> bytes:
    return webhook(NOW, wallet_address=address, payout_currency="eth", payout_network=network)


@pytest.mark.parametrize("address", [*CHECKED, CHECKED[0].lower(), "0x" + CHECKED[0][2:].upper()])
def test_an_address_with_its_checksum_or_without_one_is_taken(address: str) -> None:
    body = ordered_to(address)
    assert read_webhook(TERMS, signed(body), body, NOW).wallet_address == address


@pytest.mark.parametrize("network", ["eth", "bsc"])
@pytest.mark.parametrize(
    "address",
    [
        "0xd8dA6BF26964aF9D7eEd9e03E53415D37aA96046",
        *[address.replace("9", "8", 1) for address in CHECKED],
        CHECKED[0][:-1] + CHECKED[0][-1].swapcase(),
    ],
)
def test_an_address_whose_checksum_is_wrong_is_refused(address: str, network: str) -> None:
    body = ordered_to(address, network)
    with pytest.raises(WebhookRefused, match="EIP-55") as refused:
        read_webhook(TERMS, signed(body), body, NOW)
    assert refused.value.status == 422
