"""What hostpay does when the exchange, the chain or a person says something else while it is about to pay."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from payonce.engine import controls
from payonce.engine.audit import Severity, notes
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.handlers.hostpay import PAID_IN_WITHIN_S, pay_swap
from payonce.services.payouts.model import ETH, Hold, Payout, State, SwapState
from payonce.services.payouts.policies import HOSTPAY
from payonce.testing import OpenStage
from payonce.vendors.changenow import prices
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Code, Exchange, ExchangeRefused
from payonce.vendors.evm.port import Market
from tests.services.payouts.hostpay_stage import House, eth, open_house, paused, refusing


@pytest.fixture
def uneven_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts in ether come to all of their eighteen decimals."""
    ether = replace(prices.LISTINGS["eth", "eth"], price=Decimal("2531.77"))
    monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("eth", "eth"): ether})


@pytest.mark.parametrize("price", ["29.99", "100", "4999.99"])
async def test_an_amount_that_went_through_a_double_is_ours_and_is_paid_exactly(
    stage: OpenStage, uneven_price: None, price: str
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay(price=price)
        [entry] = house.changenow.books.entries.values()
        exact, entry.expected_from = entry.expected_from, Decimal(repr(float(entry.expected_from)))
        await house.run()
        swap = await house.swap(payout)
        assert swap.amount.to_decimal() == exact != entry.expected_from
        assert [each.amount for each in house.transfers()] == [swap.amount]
        await house.sound(payout)


async def test_an_amount_that_no_double_explains_is_not_paid(stage: OpenStage, uneven_price: None) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        [entry] = house.changenow.books.entries.values()
        entry.expected_from *= 1 + Decimal("2e-15")
        await house.run(60.0)
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.MISMATCH)
        assert not house.transfers(final=False)


async def hold(house: House, payout: Payout) -> None:
    """A person stops it, and is told that it is stopped."""
    seen = await house.payout(payout)
    asked = Decision(payout_id=seen.id, seen=seen.revision, verdict=Verdict.HOLD, note="a stolen wallet")
    async with house.s.begin() as tx:
        await controls.submit(tx, decision_action(house.s.admin), asked, "ann", "stop it")
    assert await house.state(payout) is State.HELD


@pytest.mark.parametrize("question", ["exchange", "market"])
async def test_what_a_person_stops_while_the_exchange_or_the_chain_is_asked_is_not_paid(
    stage: OpenStage, question: str
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        first = await house.swap(payout)
        asked_of: Any = house.client if question == "exchange" else house.wallet
        ask = getattr(asked_of, question)

        async def ask_and_hold(about: Any) -> Exchange | Market | None:
            found: Exchange | Market | None = await ask(about)
            if await house.state(payout) is not State.HELD:
                await hold(house, payout)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asked_of, question, ask_and_hold)
            await house.run(1_200.0)
        held = await house.payout(payout)
        assert (held.state, held.hold, held.held_from) == (State.HELD, Hold.PERSON, State.PRICED)
        assert not house.transfers(final=False)
        assert await house.s.owner.fetchval("select count(*) from payouts.wallet_payments") == 0
        assert await house.s.owner.fetchval("select state from payouts.swaps where id = $1", first.id) == (
            SwapState.LAPSED
        )
        await house.release(payout)
        await house.run()
        await house.sound(payout)


async def test_how_long_an_exchange_is_valid_is_on_record(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        [entry] = house.changenow.books.entries.values()
        valid_until = (await house.swap(payout)).valid_until
        assert valid_until is not None
        assert abs(valid_until - entry.valid_until) < timedelta(seconds=1)


@pytest.mark.parametrize(("left_s", "round_paid"), [(5.0, 2), (PAID_IN_WITHIN_S - 1, 2), (PAID_IN_WITHIN_S + 60, 1)])
async def test_an_exchange_about_to_expire_is_replaced_and_not_paid(
    stage: OpenStage, left_s: float, round_paid: int
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        house.clock.now = await house.s.clock.advance(house.changenow.books.pace.waiting_s - left_s)
        await house.run()
        paid = await house.swap(payout)
        assert paid.round == round_paid
        assert [each.transaction.to for each in house.transfers()] == [paid.payin_address]
        await house.sound(payout)


async def test_a_refused_key_pauses_hostpay_loudly_and_is_no_payouts_fault(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChangeNowClient, "exchange", refusing(Code.NOT_ALLOWED))
            await house.run(600.0)
        assert await paused(house) == [HOSTPAY.queue]
        [told] = await notes(house.s.read, location="queues.pause", severity=Severity.ERROR)
        assert (told.reference, told.actor) == (HOSTPAY.queue, "payouts")
        assert "refuses our API key" in told.text
        assert f"payonce queues resume {HOSTPAY.queue}" in told.text
        assert await house.state(payout) is State.SWAPPED
        assert not house.transfers(final=False)
        await house.s.admin.resume(HOSTPAY.queue)
        await house.run()
        await house.sound(payout)


async def test_a_key_refused_after_the_payment_stops_new_ones_and_not_the_looking(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order(1)
        with pytest.MonkeyPatch.context() as patch:
            looks = ChangeNowClient.exchange

            async def refused_once_paid(client: ChangeNowClient, exchange_id: str) -> Exchange | None:
                if await house.state(payout) is State.PAID_IN:
                    raise ExchangeRefused(Code.NOT_ALLOWED, "401 unauthorized")
                return await looks(client, exchange_id)

            patch.setattr(ChangeNowClient, "exchange", refused_once_paid)
            await house.run(1_800.0)
            assert await house.state(payout) is State.PAID_IN
            assert await paused(house) == [HOSTPAY.queue]
            assert len(await notes(house.s.read, location="queues.pause")) == 1
        await house.run()
        await house.sound(payout)


async def test_a_no_of_the_exchange_in_other_words_is_asked_again(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChangeNowClient, "exchange", refusing(Code.OTHER))
            await house.run(600.0)
        assert await paused(house) == []
        await house.run()
        await house.sound(payout)


async def test_the_gas_of_what_is_under_way_is_counted_before_a_nonce_is_taken(stage: OpenStage) -> None:
    async with open_house(stage) as probing:
        most = (await probing.wallet.market(ETH)).fees.most
    # Enough for three amounts and for the gas of two: the third must wait, or it stands in the pool unpaid.
    async with open_house(stage, opening=eth("0.12") + most + most) as house:
        for number in (1, 2, 3):
            await house.waiting_for_hostpay(number)
        only_paying = await house.another_worker(pay_swap)
        while await only_paying.step():
            pass
        assert await house.s.owner.fetchval("select count(*) from payouts.wallet_payments") == 2
        assert "top it up" in await house.job_errors()
