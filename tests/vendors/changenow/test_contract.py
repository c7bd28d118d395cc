"""ChangeNOW's client against its simulator: what each endpoint says, to the last digit."""

from datetime import timedelta
from decimal import Decimal

import pytest

from payonce.kit.outcomes import Invalid
from payonce.vendors.changenow.port import ChangeNow, Pair, Range, Status
from payonce.vendors.changenow.simulator import DOUBLE_DIGITS
from tests.vendors.changenow.at import (
    CLIENT_BTC,
    CLIENT_XRP,
    ETH_BTC,
    ETH_XRP,
    HOST,
    TX,
    USDT_ETH,
    OpenChangeNow,
    order,
)


async def test_an_estimate_has_both_fees_and_the_market_rate_can_be_had_from_it(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        assert isinstance(at.client, ChangeNow)
        said = await at.client.estimate(USDT_ETH, Decimal("97.123456"))
    assert (said.pair, said.from_amount) == (USDT_ETH, Decimal("97.123456"))
    assert (said.deposit_fee, said.withdrawal_fee) == (Decimal("0.5"), Decimal("0.0005"))
    assert said.to_amount == Decimal("0.0381493824")
    assert (said.to_amount + said.withdrawal_fee) / (said.from_amount - said.deposit_fee) == Decimal("0.0004")
    assert (said.rate_id, said.valid_until, said.speed_forecast, said.warning) == (None, None, "10-60", None)


async def test_a_swap_says_back_what_was_ordered_and_where_to_pay(open_changenow: OpenChangeNow) -> None:
    wanted = order(ETH_XRP, "0.038123456789012345", CLIENT_XRP, extra_id="77", user_id="42", payload="A1B2:1")
    async with open_changenow() as at:
        swap = await at.client.create(wanted)
        found = await at.client.exchange(swap.id)
        other = await at.client.create(wanted)
    assert (swap.pair, swap.from_amount) == (ETH_XRP, wanted.from_amount)
    assert (swap.payout_address, swap.payout_extra_id, swap.refund_address) == (CLIENT_XRP, "77", HOST)
    assert (swap.flow, swap.type, len(swap.id)) == ("standard", "direct", 14)
    assert swap.to_amount == Decimal("188.017283")
    assert found is not None
    assert (found.id, found.status, found.pair, found.payload) == (swap.id, Status.WAITING, ETH_XRP, "A1B2:1")
    assert (found.expected_from, found.expected_to) == (swap.from_amount, swap.to_amount)
    assert (found.amount_from, found.amount_to, found.payin_hash, found.payout_hash) == (None, None, None, None)
    assert (found.refund_hash, found.refund_amount) == (None, None)
    assert other.payin_address != swap.payin_address, "the vendor honours no key: a second order is a second exchange"


async def test_a_paid_exchange_goes_through_every_status_by_the_vendors_clock(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await at.client.create(order())
        at.simulator.deposit(swap.payin_address, "ETH", swap.from_amount, TX)
        seen = []
        for seconds in (0, 30, 20, 10):
            at.clock.advance(seconds)
            now = await at.client.exchange(swap.id)
            assert now is not None
            assert now.payin_hash == TX
            seen.append((now.status, now.amount_from, now.amount_to, now.payout_hash is not None))
    given, got = Decimal("0.05"), Decimal("0.00196")
    assert seen == [
        (Status.CONFIRMING, given, None, False),
        (Status.EXCHANGING, given, None, False),
        (Status.SENDING, given, got, False),
        (Status.FINISHED, given, got, True),
    ]
    assert got == swap.to_amount


async def test_a_vendor_that_counts_in_doubles_is_understood(open_changenow: OpenChangeNow) -> None:
    wanted = order(amount="0.038123456789012345")
    async with open_changenow(digits=DOUBLE_DIGITS) as at:
        swap = await at.client.create(wanted)
        at.simulator.deposit(swap.payin_address, "eth", swap.from_amount, TX)
        at.clock.advance(60)
        found = await at.client.exchange(swap.id)
        assert (await at.client.estimate(ETH_BTC, wanted.from_amount)).from_amount == wanted.from_amount
    assert swap.from_amount == wanted.from_amount, "what is paid is what was ordered, to the wei"
    assert found is not None
    assert (found.status, found.amount_from) == (Status.FINISHED, Decimal("0.03812345678901234"))
    assert at.simulator.books.held() == {}


async def test_an_unknown_exchange_is_none(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        assert await at.client.exchange("0123456789abcd") is None


async def test_ranges_have_a_minimum_and_perhaps_a_maximum(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        assert await at.client.range(ETH_BTC) == Range(Decimal("0.002"), Decimal(200))
        assert await at.client.range(Pair("ltc", "ltc", "btc", "btc")) == Range(Decimal("0.06"), None)
        assert await at.client.min_amount(ETH_BTC) == Decimal("0.002")


async def test_currencies_say_which_networks_want_a_memo(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        listed = {(each.ticker, each.network): each for each in await at.client.currencies()}
    assert listed["xrp", "xrp"].has_extra_id
    assert not listed["btc", "btc"].has_extra_id
    assert {network for ticker, network in listed if ticker == "usdt"} == {"eth", "trx", "bsc"}
    assert listed["eth", "eth"].decimals is None, "the vendor does not say"


async def test_an_address_is_judged_by_its_network(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        good = await at.client.validate_address("btc", "btc", CLIENT_BTC, None)
        bad = await at.client.validate_address("usdt", "trx", HOST, None)
    assert (good.valid, good.message) == (True, None)
    assert (bad.valid, bad.message) == (False, "Invalid trx address")


async def test_the_list_pages_through_what_was_created_in_an_interval(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        await at.client.create(order(payload="too early"))
        at.clock.advance(60)
        since = at.clock.now
        made = []
        for number in range(25):
            made.append((await at.client.create(order(payload=f"p-{number}"))).id)
            at.clock.advance(1)
        until = at.clock.now - timedelta(seconds=1)
        at.clock.advance(60)
        await at.client.create(order(payload="too late"))
        pages = [await at.client.exchanges(since, until, offset, 10) for offset in (0, 10, 20, 30)]
    assert [len(page) for page in pages] == [10, 10, 5, 0]
    found = [each for page in pages for each in page]
    assert [each.id for each in found] == made
    assert [each.payload for each in found] == [f"p-{number}" for number in range(25)]
    assert {(each.pair, each.expected_from, each.payout_address) for each in found} == {
        (ETH_BTC, Decimal("0.05"), CLIENT_BTC)
    }


async def test_the_list_shows_an_exchange_as_the_question_about_it_does(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await at.client.create(order(payload="p-1"))
        at.simulator.deposit(swap.payin_address, "ETH", swap.from_amount, TX)
        at.clock.advance(60)
        [listed] = await at.client.exchanges(at.clock.now - timedelta(hours=1), at.clock.now, 0, 100)
        assert listed == await at.client.exchange(swap.id)
        assert listed.status is Status.FINISHED


async def test_what_the_vendor_would_misread_is_not_sent(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        with pytest.raises(Invalid, match="is no amount to exchange"):
            await at.client.estimate(ETH_BTC, Decimal(0))
        with pytest.raises(Invalid, match="longer than the vendor's 64 characters"):
            await at.client.create(order(payload="x" * 65))
        for offset, limit in ((-1, 10), (0, 0), (0, 101)):
            with pytest.raises(Invalid, match="ask for 1 to 100 from 0 on"):
                await at.client.exchanges(at.clock.now, at.clock.now, offset, limit)
        assert at.simulator.meter.requests == 0
