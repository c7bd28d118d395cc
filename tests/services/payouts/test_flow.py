"""A payout's way from the webhook to hostpay, and on to its end, with books that close at every step."""

from dataclasses import replace
from decimal import Decimal

import pytest
from structlog.testing import capture_logs

from payonce.app.logging import NO_SIGN, sign_of
from payonce.services.payouts import ledger
from payonce.services.payouts.handlers.orchestrator import ESTIMATE_MAX_AGE_S
from payonce.services.payouts.model import USDT, State
from payonce.services.payouts.policies import ESTIMATED
from payonce.services.payouts.store.orders import receive
from payonce.services.payouts.store.payouts import LINES
from payonce.testing import OpenStage
from payonce.vendors.changenow import prices
from tests.services.payouts.payouts_stage import CLIENT, HOST_WALLET, eth, open_office, usdt


async def test_a_payout_is_priced_swapped_and_told_to_hostpay(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        assert taken.new
        assert await office.state(taken) is State.RECEIVED
        await office.run()
        payout = await office.payout(taken)
        assert payout.state is State.SWAPPED
        # 97 USDT at the rate between both fees: (to + withdrawal) / (from - deposit) = 1/2500.
        assert payout.value == eth("0.0388")
        [swap] = await office.swaps(taken)
        [told] = await office.hostpay_told()
        assert told["unique_id"] == payout.unique_id
        assert told["cn_api_id"] == swap.cn_api_id
        assert Decimal(told["from_amount"]) == Decimal("0.0388")
        assert told["payin_address"] == swap.payin_address
        assert await office.broken() == {}


async def test_every_table_of_the_seed_is_filled(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [request] = await office.s.owner.fetch("select * from payouts.split_payout_request")
        [queued] = await office.s.owner.fetch("select * from payouts.split_payout_que")
        [swap] = await office.swaps(taken)
        assert request["unique_id"] == queued["unique_id"] == taken.payout.unique_id
        assert (request["from_currency"], request["from_amount"]) == ("usdt", Decimal(97))
        assert (request["to_currency"], request["to_asset"], request["to_amount"]) == ("btc", "ETH", Decimal("0.0388"))
        assert request["client_wallet_address"] == queued["payout_address"] == taken.payout.wallet_address
        assert request["refund_address"] == queued["refund_address"] == HOST_WALLET
        assert (queued["cn_api_id"], queued["from_amount"]) == (swap.cn_api_id, Decimal("0.0388"))
        exchange = office.changenow.books.entries[queued["cn_api_id"]]
        assert queued["to_amount"] > 0
        assert queued["payin_address"] == exchange.payin_address


async def test_a_coin_that_is_worth_next_to_nothing_is_paid_in_all_its_digits(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cheap = replace(
        prices.LISTINGS["usdt", "eth"], ticker="babydoge", decimals=9, price=Decimal("0.000000001"), most=None
    )
    monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("babydoge", "eth"): cheap})
    async with open_office(stage) as office:
        await office.s.owner.execute(
            "insert into payouts.currencies (ticker, network, name, has_extra_id, decimals, payable) "
            "values ('babydoge', 'eth', 'Baby Doge', false, 9, true)"
        )
        taken = await office.order(payout_currency="babydoge", payout_network="eth", wallet_address=CLIENT)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        gets = await office.s.owner.fetchval("select to_amount from payouts.split_payout_que")
        assert gets > 10**10, "with its 18 decimals more than the 28 digits of a decimal by default"
        assert await office.broken() == {}


@pytest.mark.parametrize("says_when", [True, False])
async def test_an_estimate_that_came_late_is_asked_for_anew(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, says_when: bool
) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(ESTIMATED.queue, "to be late")
        await office.run(60.0)
        if not says_when:
            await office.s.owner.execute(
                "update payonce.messages set payload = (payload::jsonb - 'estimated_at')::json"
            )
        dearer = replace(prices.LISTINGS["eth", "eth"], price=Decimal(5_000))
        monkeypatch.setattr(prices, "LISTINGS", {**prices.LISTINGS, ("eth", "eth"): dearer})
        await office.s.clock.advance(ESTIMATE_MAX_AGE_S)
        await office.s.admin.resume(ESTIMATED.queue)
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.value) == (State.SWAPPED, eth("0.0194"))
        assert await office.broken() == {}


async def test_an_estimate_of_a_while_ago_is_used(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(ESTIMATED.queue, "to be late")
        await office.run(60.0)
        await office.s.clock.advance(ESTIMATE_MAX_AGE_S - 120.0)
        await office.s.admin.resume(ESTIMATED.queue)
        await office.run()
        assert (await office.payout(taken)).puts == 0
        assert await office.state(taken) is State.SWAPPED


async def test_the_books_close_at_every_step(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        assert await office.balance(ledger.COLLECTED, USDT) == usdt("100")
        assert await office.balance(ledger.FEES, USDT) == usdt("-3")
        assert await office.balance(ledger.OWED, USDT) == usdt("-97")
        await office.run()
        assert await office.balance(ledger.OWED, USDT) == usdt("0")
        assert await office.balance(ledger.OWED) == eth("-0.0388")
        assert await office.balance(ledger.CONVERSION) == eth("0.0388")
        [swap] = await office.swaps(taken)
        await office.pay(swap, gas=eth("0.00042"))
        assert await office.state(taken) is State.PAID_IN
        assert await office.balance(ledger.HOST_WALLET) == eth("-0.03922")
        assert await office.balance(ledger.AT_EXCHANGE) == eth("0.0388")
        assert await office.balance(ledger.NETWORK_FEES) == eth("0.00042")
        assert await office.broken() == {}
        await office.finish(swap)
        assert await office.state(taken) is State.FINISHED
        assert await office.balance(ledger.OWED) == await office.balance(ledger.AT_EXCHANGE) == eth("0")
        assert await office.broken() == {}


async def test_a_payout_in_eth_goes_to_the_wallet_without_an_exchange(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(payout_currency="eth", payout_network="eth", wallet_address=CLIENT)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert not office.changenow.books.entries
        [told] = await office.hostpay_told()
        assert told["payin_address"] == CLIENT
        [swap] = await office.swaps(taken)
        assert swap.direct
        await office.pay(swap, gas=eth("0.0001"))
        await office.finish(swap)
        assert await office.state(taken) is State.FINISHED
        assert await office.balance(ledger.HOST_WALLET) == eth("-0.0389")
        assert await office.balance(ledger.AT_EXCHANGE) == eth("0")
        assert await office.broken() == {}


async def test_a_payout_writes_a_log_line_at_each_step(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        with capture_logs() as lines:
            taken = await office.order()
            await office.run()
            [swap] = await office.swaps(taken)
            await office.pay(swap)
            await office.finish(swap)
        said = [line["event"] for line in lines if line.get("payout") == taken.payout.id]
        assert said == [
            "payout_received",
            "vendor_estimated",
            "payout_priced",
            "exchange_requested",
            "exchange_created",
            "hostpay_triggered",
            "deposit_signed",
            "deposit_paid",
            "payout_finished",
        ]
        [priced] = [line for line in lines if line["event"] == "payout_priced"]
        assert (priced["unique_id"], priced["amount"]) == (taken.payout.unique_id, "0.038800000000000000 ETH")


def test_every_step_of_a_payout_has_a_sign_in_the_log() -> None:
    events = {
        *LINES.values(),
        "payout_received",
        "payout_taken_up",
        "vendor_estimated",
        "exchange_created",
        "hostpay_task_triggered",
    }
    assert {event for event in events if sign_of(event, "info") == NO_SIGN} == set()
    assert sign_of("payout_held", "warning") != NO_SIGN


async def test_what_is_rolled_back_writes_no_log_line(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        asked = await office.asked()

        async def fail() -> None:
            async with office.s.begin() as tx:
                await receive(tx, asked)
                raise ZeroDivisionError

        with capture_logs() as lines, pytest.raises(ZeroDivisionError):
            await fail()
        assert [line for line in lines if line["event"] == "payout_received"] == []
