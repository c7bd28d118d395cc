"""What becomes of a payout when the exchange does not do what it is asked: one test for each row of the table."""

from decimal import Decimal

import pytest

from payonce.services.payouts import ledger
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.handlers.estimator import TRIES_OF_AN_INACTIVE_PAIR
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import USDT, Hold, State, SwapState
from payonce.services.payouts.policies import ESTIMATE, SWAP
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.changenow.port import Estimate
from tests.services.payouts.payouts_stage import BTC_CLIENT, PRICING, TO_BTC, eth, open_office, usdt

ESTIMATE_CALL, SWAP_CALL = 0, 1
"""Where in the order of calls to the exchange a fault falls."""


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.DUPLICATE])
@pytest.mark.parametrize("call", [ESTIMATE_CALL, SWAP_CALL])
async def test_every_fault_of_the_exchange_is_survived(stage: OpenStage, fault: Fault, call: int) -> None:
    async with open_office(stage, Script([*[None] * call, fault])) as office:
        taken = await office.order()
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert len(await office.hostpay_told()) == 1
        assert await office.broken() == {}


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.TIMEOUT_AFTER, Fault.ERROR_AFTER])
async def test_a_lost_answer_leaves_an_exchange_that_nobody_pays(stage: OpenStage, fault: Fault) -> None:
    async with open_office(stage, Script([None, fault])) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        made = office.changenow.books.entries
        assert len(made) == 2
        assert {entry.payin_address for entry in made.values()} > {swap.payin_address}
        states = await office.s.owner.fetch(
            "select generation, state from payonce.effects where kind = 'changenow.create' order by generation"
        )
        assert [tuple(row) for row in states] == [(1, "abandoned"), (2, "performed")]
        [told] = await office.hostpay_told()
        assert told["cn_api_id"] == swap.cn_api_id


async def test_an_outage_of_two_hours_only_makes_it_late(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.take_down(7_200.0)
        taken = await office.order()
        await office.run(3_600.0)
        assert await office.state(taken) is State.RECEIVED
        await office.run(3 * 3_600.0)
        assert await office.state(taken) is State.SWAPPED


@pytest.mark.full
async def test_after_a_day_without_an_answer_a_person_decides_and_nothing_is_lost(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.take_down()
        taken = await office.order()
        await office.run(2 * 86_400.0)
        payout = await office.payout(taken)
        assert (payout.state, payout.held_from, payout.hold) == (State.REVIEW, State.RECEIVED, Hold.GAVE_UP)
        assert payout.reason is not None
        assert payout.reason.startswith("changenow"), "the cause comes first"
        assert payout.reason.endswith(f"({ESTIMATE.queue} gave up on it)")
        assert await office.balance(ledger.OWED, USDT) == usdt("-97")
        assert await office.broken() == {}


async def test_a_price_below_the_exchanges_minimum_is_priced_at_the_minimum(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.0001"), None)
        taken = await office.order(subscription_price="1.00")
        await office.run()
        payout = await office.payout(taken)
        assert payout.value == eth("0.000388")
        assert payout.state is State.SWAPPED


async def test_what_is_too_small_for_a_swap_accumulates(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(subscription_price="2.00")
        await office.run()
        payout = await office.payout(taken)
        assert payout.state is State.ACCUMULATING
        assert await office.balance(ledger.client_account(payout)) == eth("-0.000776")
        assert await office.balance(ledger.OWED) == eth("0")
        assert not await office.hostpay_told()
        assert await office.broken() == {}


async def test_small_payouts_of_one_client_become_one_swap(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        small = [await office.order(payment_id=f"pay-{n}", subscription_price="2.00") for n in range(2)]
        other = await office.order(
            payment_id="other", subscription_price="2.00", wallet_address="1BoatSLRHtKNngkdXEeobR76b53LETtpyT"
        )
        await office.run()
        assert {await office.state(each) for each in (*small, other)} == {State.ACCUMULATING}
        small.append(await office.order(payment_id="pay-3", subscription_price="2.00"))
        await office.run()
        assert {await office.state(each) for each in small} == {State.SWAPPED}
        assert await office.state(other) is State.ACCUMULATING
        [told] = await office.hostpay_told()
        assert Decimal(told["from_amount"]) == 3 * Decimal("0.000776")
        [swap] = await office.swaps(small[0])
        assert [await office.swaps(each) for each in small] == [[swap]] * 3
        assert swap.unique_id == small[0].payout.unique_id
        assert await office.broken() == {}
        await office.pay(swap)
        await office.finish(swap)
        assert {await office.state(each) for each in small} == {State.FINISHED}
        assert await office.balance(ledger.OWED) == await office.balance(ledger.AT_EXCHANGE) == eth("0")
        assert await office.broken() == {}


async def test_a_pair_called_inactive_for_its_amount_accumulates(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.small_is_inactive = True
        taken = await office.order(subscription_price="2.00")
        await office.run()
        assert await office.state(taken) is State.ACCUMULATING


async def test_what_is_too_large_for_one_swap_is_split(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.015"))
        taken = await office.order()
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        swaps = await office.swaps(taken)
        assert [swap.amount.minor for swap in swaps] == [12_933_333_333_333_334] + [12_933_333_333_333_333] * 2
        assert len(await office.hostpay_told()) == 3
        assert {told["unique_id"] for told in await office.hostpay_told()} == {taken.payout.unique_id}
        assert await office.broken() == {}
        for number, swap in enumerate(swaps):
            assert await office.state(taken) is (State.SWAPPED if number == 0 else State.PAYING)
            await office.pay(swap)
        assert await office.state(taken) is State.PAID_IN
        for swap in swaps:
            await office.finish(swap)
        assert await office.state(taken) is State.FINISHED
        assert await office.broken() == {}


async def test_hostpay_hears_of_no_part_before_all_have_an_exchange(stage: OpenStage) -> None:
    async with open_office(stage, Script([None, None, None, None, *[Fault.ERROR_BEFORE] * 3])) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.015"))
        taken = await office.order()
        await office.drain()
        states = {swap.state for swap in await office.swaps(taken)}
        assert SwapState.CREATING in states
        assert not await office.hostpay_told()
        assert await office.state(taken) is State.SWAP_CREATING
        await office.run()
        assert len(await office.hostpay_told()) == 3


async def test_what_would_need_too_many_parts_is_reviewed(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.0001"), Decimal("0.001"))
        taken = await office.order()
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold, payout.held_from) == (State.REVIEW, Hold.TOO_LARGE, State.PRICED)
        assert await office.broken() == {}


async def test_an_address_that_the_exchange_refuses_is_held_for_another(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        # It has the shape that we ask for, and not the one that the exchange does.
        taken = await office.order(wallet_address="bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0")
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold, payout.held_from) == (State.HELD, Hold.BAD_ADDRESS, State.PRICED)
        assert not await office.swaps(taken)
        assert await office.broken() == {}


async def test_an_inactive_pair_is_tried_again_for_a_while_and_then_held(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.switch(TO_BTC, active=False)
        taken = await office.order()
        await office.run(120.0)
        assert await office.state(taken) is State.SWAP_CREATING
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold) == (State.HELD, Hold.PAIR_INACTIVE)
        rounds = await office.s.owner.fetchval("select max(round) from payouts.swaps")
        assert rounds == TRIES_OF_AN_INACTIVE_PAIR
        assert await office.broken() == {}


async def test_a_pair_that_is_switched_on_again_in_time_is_swapped(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.switch(TO_BTC, active=False)
        taken = await office.order()
        await office.run(120.0)
        office.changenow.switch(TO_BTC, active=True)
        await office.run()
        assert await office.state(taken) is State.SWAPPED


async def test_without_a_rate_it_is_held_after_some_tries(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.switch(PRICING, active=False)
        taken = await office.order()
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold, payout.held_from) == (State.HELD, Hold.PAIR_INACTIVE, State.RECEIVED)


async def test_tries_that_an_outage_cost_are_none_of_those(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.take_down(60.0 * TRIES_OF_AN_INACTIVE_PAIR)
        office.changenow.switch(PRICING, active=False)
        taken = await office.order()
        await office.run(60.0 * (TRIES_OF_AN_INACTIVE_PAIR + 2))
        assert await office.state(taken) is State.RECEIVED
        office.changenow.switch(PRICING, active=True)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert await office.broken() == {}


@pytest.mark.parametrize("queue", [ESTIMATE.queue, SWAP.queue])
async def test_a_key_that_is_not_accepted_pauses_the_queue_and_blames_no_payout(stage: OpenStage, queue: str) -> None:
    async with open_office(stage, api_key="key") as office:
        taken = await office.order()
        if queue == SWAP.queue:
            await office.s.admin.pause(queue, "to see it before its swap")
            await office.drain()
            assert await office.state(taken) is State.PRICED
            await office.s.admin.resume(queue)
        office.changenow._keys = ("another", None)
        await office.drain()
        assert await office.s.owner.fetchval("select paused from payonce.queues where name = $1", queue)
        assert any("refuses our API key" in text for text in await office.loud())
        assert await office.state(taken) in (State.RECEIVED, State.SWAP_CREATING)
        office.changenow._keys = ("key", None)
        await office.s.admin.resume(queue)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert await office.broken() == {}


async def test_what_the_fees_eat_up_is_held(stage: OpenStage) -> None:
    async with open_office(stage, roles=("orchestrator",)) as office:
        taken = await office.order()
        async with office.s.begin() as tx:
            asked = hops.EstimateRequest(
                user_id=1,
                closed_channel_id="c",
                wallet_address=BTC_CLIENT,
                payout_currency="btc",
                payout_network="btc",
                adjusted_amount_usdt=Decimal(97),
            )
            eaten = Estimate(PRICING, Decimal(97), Decimal(0), Decimal(97), Decimal(0))
            now = int((await office.s.clock.now()).timestamp())
            await next_messages.send_estimated(tx, asked, taken.payout, 0, eaten, now)
        await office.drain()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold) == (State.HELD, Hold.NO_VALUE)
        assert await office.broken() == {}
