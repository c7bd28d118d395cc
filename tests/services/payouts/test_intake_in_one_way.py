"""A webhook that can be read in two ways is refused, and what is written in two ways is one thing."""

import json
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import pytest

from payonce.engine import controls
from payonce.services.payouts.api.webhook import PayoutOrder, WebhookRefused, read_webhook
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.domain.addresses import SHAPES, in_one_spelling, wrong_with
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import BTC_CLIENT, CLIENT, HOST_WALLET, TERMS, open_office, signed, webhook

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KELVIN = "\u212a"
ZERO = "0x" + "0" * 40
TO_ETH = {"payout_currency": "eth", "payout_network": "eth", "wallet_address": CLIENT}
LTC_CLIENT = "ltc1qw508d6qejxtdg4y5r3zarvary0c5xw7kgmn4n9"


def read(body: bytes) -> PayoutOrder:
    return read_webhook(TERMS, signed(body), body, NOW)


def refused(body: bytes) -> tuple[int, str]:
    with pytest.raises(WebhookRefused) as no:
        read(body)
    return int(no.value.status), str(no.value)


@pytest.mark.parametrize(
    "more",
    [
        '"subscription_price": "1.00"',
        '"wallet_address": "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"',
        '"user_id": 1',
        '"\\u0075ser_id": 1',
        '"user_id": 6271402111',
        '"more": {"a": 1, "a": 2}',
        '"more": [{"a": 1, "a": 1}]',
    ],
)
def test_a_name_that_comes_twice_is_400(more: str) -> None:
    status, reason = refused(webhook(NOW)[:-1] + f", {more}}}".encode())
    assert status == HTTPStatus.BAD_REQUEST
    assert reason.endswith("; send each name once")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sub_price": "99.00"}, "sub_price"),
        ({"extra_id": "1", "extraId": "2"}, "extraId"),
        ({"extra_id": "", "extraId": "2"}, "extraId"),
    ],
)
def test_two_names_of_one_thing_that_differ_are_400(fields: dict[str, Any], named: str) -> None:
    status, reason = refused(webhook(NOW, **fields))
    assert (status, named in reason) == (HTTPStatus.BAD_REQUEST, True)
    assert reason.endswith("names of the same field and differ; send one of them")


def test_a_memo_that_is_null_does_not_hide_one_of_the_other_name() -> None:
    body = json.dumps({**json.loads(webhook(NOW)), "extra_id": None, "extraId": "2"}).encode()
    assert refused(body)[0] == HTTPStatus.BAD_REQUEST


def test_two_names_of_one_thing_that_agree_are_taken() -> None:
    asked = read(webhook(NOW, sub_price="100.00", extra_id="1", extraId="1"))
    assert (asked.price.to_text(), asked.extra_id) == ("100.000000", "1")


@pytest.mark.parametrize("price", [29.99, 30, 0, -1, 1e300, 0.1 + 0.2])
@pytest.mark.parametrize("name", ["subscription_price", "sub_price"])
def test_a_price_that_is_a_number_is_400_with_the_way_out(name: str, price: float) -> None:
    status, reason = refused(webhook(NOW, **{"subscription_price": None, name: price}))
    assert status == HTTPStatus.BAD_REQUEST
    assert reason.endswith('send a string such as "29.99"')


@pytest.mark.parametrize(
    "fields",
    [
        {"payout_currency": f"{KELVIN}sm"},
        {"payout_network": f"{KELVIN}sm"},
        {"payout_currency": "\u00a0btc"},
        {"wallet_address": BTC_CLIENT.replace("k", KELVIN)},
        {"wallet_address": BTC_CLIENT.upper().replace("K", KELVIN)},
    ],
)
def test_letters_that_only_look_like_ascii_are_refused(fields: dict[str, Any]) -> None:
    assert refused(webhook(NOW, **fields))[0] == HTTPStatus.UNPROCESSABLE_ENTITY


@pytest.mark.parametrize(("network", "address"), [("btc", BTC_CLIENT), ("ltc", LTC_CLIENT)])
def test_bech32_in_capitals_is_the_same_address(network: str, address: str) -> None:
    fields = {"payout_currency": network, "payout_network": network}
    small = read(webhook(NOW, **fields, wallet_address=address))
    assert read(webhook(NOW, **fields, wallet_address=address.upper())) == small
    assert small.wallet_address == address
    mixed = address[:-1] + address[-1].upper() if address[-1].isalpha() else address[:-2] + address[-2:].upper()
    assert refused(webhook(NOW, **fields, wallet_address=mixed))[0] == HTTPStatus.UNPROCESSABLE_ENTITY


def test_other_addresses_are_kept_as_they_are() -> None:
    assert in_one_spelling("btc", "1BOATSLRHTKNNGKDXEEOBR76B53LETTPYT") == "1BOATSLRHTKNNGKDXEEOBR76B53LETTPYT"
    assert in_one_spelling("eth", "0x" + "AB" * 20) == "0x" + "AB" * 20


@pytest.mark.parametrize("network", [name for name, shape in SHAPES.items() if shape is SHAPES["eth"]])
def test_the_zero_address_is_nobodys(network: str) -> None:
    status, reason = refused(webhook(NOW, **{**TO_ETH, "payout_network": network, "wallet_address": ZERO}))
    assert (status, "zero address" in reason) == (HTTPStatus.UNPROCESSABLE_ENTITY, True)
    assert wrong_with(network, CLIENT) is None


@pytest.mark.parametrize("network", ["eth", "bsc", "celo"])
@pytest.mark.parametrize("address", [HOST_WALLET, "0x" + "AB" * 20])
def test_the_wallet_does_not_pay_itself(address: str, network: str) -> None:
    status, reason = refused(webhook(NOW, **{**TO_ETH, "payout_network": network, "wallet_address": address}))
    assert status == HTTPStatus.UNPROCESSABLE_ENTITY
    assert reason == "wallet_address is the wallet that pays, which cannot pay itself; give the client's own address"
    assert read(webhook(NOW, **TO_ETH)).wallet_address == CLIENT


async def test_another_address_by_a_person_is_kept_in_the_same_spelling(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(wallet_address="bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0")
        await office.run()
        held = await office.payout(taken)
        asked = Decision(
            payout_id=held.id, seen=held.revision, verdict=Verdict.READDRESS, note="told", address=BTC_CLIENT.upper()
        )
        async with office.s.begin() as tx:
            await controls.submit(tx, decision_action(office.s.admin), asked, "ann", "told")
        assert (await office.payout(taken)).wallet_address == BTC_CLIENT
