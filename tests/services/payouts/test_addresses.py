"""One address is one client however it is spelled, and an address that was mistyped is refused at intake."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.api.webhook import PayoutOrder, WebhookRefused
from payonce.services.payouts.domain.addresses import checksummed, key_of, wrong_with
from payonce.services.payouts.domain.checksums import BASE58, BECH32, BITCOIN, PAY_TO_KEY, TRON, base58check, segwit
from payonce.services.payouts.model import USDT, Hold, State
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.orders import Intake, receive
from payonce.services.payouts.store.queries import PayoutFilter
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import TERMS, open_office

MIXED = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
SPELLINGS = (MIXED, MIXED.lower(), "0x" + MIXED[2:].upper())
BTC = (
    "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa",
    "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy",
    "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
    "BC1QAR0SRRR7XFKVY5L643LYDNW9RE59GTZZWF5MDQ",
    "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
)
"""The addresses of the genesis block, of BIP 16, BIP 173 and BIP 350."""
TRX = ("TR7NHqjeKQxGTCi8q8ZY4pL8otSzgjLj6t", "TJRyWwFs9wTFGZg3JbrVriFbNfCug5tDeC")
COIN = {"payout_currency": "usdt", "payout_network": "eth"}


@pytest.mark.parametrize(("network", "address"), [*(("btc", each) for each in BTC), *(("trx", each) for each in TRX)])
def test_published_addresses_are_taken(network: str, address: str) -> None:
    assert wrong_with(network, address) is None


@given(st.data())
def test_no_letter_of_an_address_can_be_mistyped(data: st.DataObject) -> None:
    hashed = data.draw(st.binary(min_size=20, max_size=20))
    network, address, letters = data.draw(
        st.sampled_from(
            [
                ("btc", segwit(BITCOIN, 0, hashed), BECH32),
                ("btc", base58check(PAY_TO_KEY + hashed), BASE58),
                ("trx", base58check(TRON + hashed), BASE58),
            ]
        )
    )
    assert wrong_with(network, address) is None
    place = data.draw(st.integers(3, len(address) - 1))
    other = data.draw(st.sampled_from([each for each in letters if each != address[place]]))
    assert wrong_with(network, address[:place] + other + address[place + 1 :]) is not None


@pytest.mark.parametrize(
    ("network", "address", "why"),
    [
        ("btc", BTC[0][:-1] + "b", "its checksum does not match"),
        ("btc", BTC[2][:-1] + "p", "its checksum does not match"),
        ("btc", TRX[0], "not an address of the network btc"),
        ("btc", segwit(BITCOIN, 0, bytes(21)), "a kind that has no owner"),
        ("btc", segwit(BITCOIN, 1, bytes(31)), "a kind that has no owner"),
        ("btc", segwit(BITCOIN, 2, bytes(32)), "a kind that has no owner"),
        ("btc", "bc1pfeessrawgf", "a kind that has no owner"),
        ("btc", segwit("tb", 0, bytes(20)), "not an address of the network btc"),
        ("trx", TRX[0][:-1] + "u", "its checksum does not match"),
        ("trx", base58check(b"\x42" + bytes(20)), None),
    ],
)
async def test_the_webhook_refuses_a_mistyped_address(
    stage: OpenStage, network: str, address: str, why: str | None
) -> None:
    async with open_office(stage) as office:
        with pytest.raises(WebhookRefused, match=why or "wallet_address") as no:
            await office.order(wallet_address=address, payout_currency=network, payout_network=network)
        assert no.value.status == 422


@pytest.mark.parametrize("network", ["celo", "sonic", "a-network-of-tomorrow"])
def test_evm_addresses_are_checked_on_networks_that_are_not_listed(network: str) -> None:
    for spelled in SPELLINGS:
        assert wrong_with(network, spelled) is None
    assert wrong_with(network, "0X" + MIXED[2:].upper()) == f"is not an address of the network {network}"
    assert "the zero address" in (wrong_with(network, "0x" + "0" * 40) or "")
    assert "EIP-55" in (wrong_with(network, MIXED[:-1] + "D") or "")
    assert wrong_with(network, BTC[0]) is None, "of another shape; only the exchange knows"


@pytest.mark.parametrize("network", ["rsk", "zil"])
def test_a_network_with_a_checksum_of_its_own_is_not_held_to_eip_55(network: str) -> None:
    assert wrong_with(network, MIXED[:-1] + "D") is None
    assert "the zero address" in (wrong_with(network, "0x" + "0" * 40) or "")


@pytest.mark.parametrize(
    ("address", "why"), [(MIXED[:-1] + "D", "EIP-55"), ("0x" + "0" * 40, "zero address"), (BTC[0], "not an address of")]
)
def test_a_wallet_for_refunds_that_is_mistyped_stops_the_start(address: str, why: str) -> None:
    with pytest.raises(Invalid, match=f"HOST_WALLET_ADDRESS, the exchange's refund address, is {address}.*{why}"):
        replace(TERMS, host_wallet=address)
    for spelled in SPELLINGS:
        replace(TERMS, host_wallet=spelled)


def test_only_hexadecimal_addresses_have_spellings() -> None:
    assert {key_of(each) for each in SPELLINGS} == {MIXED.lower()}
    assert {checksummed(each) for each in SPELLINGS} == {MIXED}
    assert [key_of(each) for each in (*BTC, *TRX)] == [*BTC, *TRX]


@pytest.mark.parametrize("other", SPELLINGS[1:])
async def test_a_repeat_in_another_spelling_is_seen(stage: OpenStage, other: str) -> None:
    async with open_office(stage, config=replace(TERMS, allow_missing_payment_id=True)) as office:
        first = await office.order(payment_id=None, wallet_address=MIXED, **COIN)
        second = await office.order(payment_id=None, wallet_address=other, **COIN)
        assert first.payout.state is State.RECEIVED
        assert (second.payout.state, second.payout.hold) == (State.REVIEW, Hold.REPEATED)


async def test_of_the_same_order_at_the_same_moment_one_goes_on(stage: OpenStage) -> None:
    """By webhook and from an older service's token, which has its fee taken off, in every spelling."""
    async with open_office(stage, config=replace(TERMS, allow_missing_payment_id=True)) as office:
        asked = [await office.asked(payment_id=None, wallet_address=spelled, **COIN) for spelled in SPELLINGS]
        asked += [replace(each, price=each.adjusted, fee=Amount.zero(USDT)) for each in asked]
        begun = asyncio.Barrier(len(asked))

        async def take_in(each: PayoutOrder) -> Intake:
            async with office.s.begin() as tx:
                await tx.fetchval("select 1")
                await begun.wait()
                return await receive(tx, each)

        taken = await asyncio.gather(*map(take_in, asked))
        states = Counter([await office.state(each) for each in taken])
        assert states == {State.RECEIVED: 1, State.REVIEW: len(asked) - 1}
        assert await office.broken() == {}


@pytest.mark.parametrize("other", SPELLINGS[1:])
async def test_the_same_payment_in_another_spelling_is_the_same_payout(stage: OpenStage, other: str) -> None:
    async with open_office(stage) as office:
        first = await office.order(wallet_address=MIXED, **COIN)
        again = await office.order(wallet_address=other, **COIN)
        assert (again.new, again.payout.id) == (False, first.payout.id)
        assert (await office.payout(first)).wallet_address == MIXED, "as the caller wrote it first"


@pytest.mark.parametrize("spelled", SPELLINGS)
async def test_a_payment_on_record_since_an_earlier_version_is_still_known(stage: OpenStage, spelled: str) -> None:
    async with open_office(stage) as office:
        asked = await office.asked(wallet_address=spelled, **COIN)
        first = await office.order(wallet_address=spelled, **COIN)
        as_before = asked._key_with(spelled)
        await office.s.owner.execute("update payouts.payouts set natural_key = $1", as_before)
        again = await office.order(wallet_address=MIXED, **COIN)
        assert again.payout.id == first.payout.id
        assert (await office.order(wallet_address=spelled, **COIN)).payout.id == first.payout.id


async def test_small_payouts_to_one_address_are_batched_however_it_is_spelled(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        small = [
            await office.order(payment_id=f"pay-{number}", wallet_address=spelled, subscription_price="4.00", **COIN)
            for number, spelled in enumerate(SPELLINGS[:2])
        ]
        await office.run()
        swaps = [swap.id for taken in small for swap in await office.swaps(taken)]
        assert len(swaps) == 2
        assert len(set(swaps)) == 1, "one swap carries both"
        assert await office.broken() == {}


async def test_people_see_one_client_and_find_it_by_any_spelling(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        for number, spelled in enumerate(SPELLINGS[:2]):
            await office.order(payment_id=f"pay-{number}", wallet_address=spelled, subscription_price="0.40", **COIN)
        await office.run()
        [client] = await queries.accumulated(office.s.read)
        assert client.payouts == 2
        found = [
            len(await queries.list_payouts(office.s.read, PayoutFilter(wallet=spelled), None, 10))
            for spelled in SPELLINGS
        ]
        assert found == [2, 2, 2]
