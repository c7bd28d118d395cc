"""A frozen channel is not paid through a batch that another channel leads."""

from payonce.engine import controls
from payonce.engine.messages.model import Message
from payonce.services.payouts.handlers.accumulation import LOOK, batch_client, look_for_batches
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.orchestrator import value_payout
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.model import Payout, State, SwapState
from payonce.services.payouts.policies import KEEPING
from payonce.testing import OpenStage
from tests.services.payouts.hostpay_stage import HANDLERS, PARKING, House, eth, open_house
from tests.services.payouts.payouts_stage import TO_BTC

PRICES = ("100", "10", "30")
"""0.04, 0.004 and 0.012 ETH: without the second they are enough, and so is the first with both."""


async def freeze(house: House, payout: Payout) -> int:
    async with house.s.begin() as tx:
        made = await controls.freeze(tx, by="ann", reason="court order", tenant=payout.closed_channel_id)
    return made.id


async def lift(house: House, freeze_id: int) -> None:
    async with house.s.begin() as tx:
        await controls.lift(tx, freeze_id, "ann", "the order was lifted")


async def small_payouts(house: House, *prices: str) -> list[Payout]:
    """Of one client, in a channel each."""
    house.changenow.set_range(TO_BTC, eth("0.05").to_decimal(), None)
    house.worker = await house.another_worker(*HANDLERS, batch_client, look_for_batches)
    made = []
    for number, price in enumerate(prices, start=1):
        made.append(await house.order(number, price))
        await house.run(300.0)
    return made


async def test_a_frozen_channels_payout_stays_out_of_a_batch(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        lead, frozen = await small_payouts(house, *PRICES[:2])
        made = await freeze(house, frozen)
        third = await house.order(3, PRICES[2])
        await house.run()
        assert await house.state(frozen) is State.ACCUMULATING
        assert {await house.state(each) for each in (lead, third)} == {State.FINISHED}
        assert [paid.amount for paid in house.transfers()] == [eth("0.052")]
        await house.sound(lead, third)
        await lift(house, made)
        house.changenow.set_range(TO_BTC, eth("0.001").to_decimal(), None)
        await house.s.feed.put([Message(queue=KEEPING.queue, action=LOOK, payload={})])
        await house.run()
        await house.sound(lead, third, frozen)


async def test_a_batch_with_a_channel_that_is_frozen_later_is_not_created_until_the_lift(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        lead, member = await small_payouts(house, "100", "10")
        last = await house.order(3, "30")
        until_batched = await house.another_worker(price_payout, value_payout, create_swap, batch_client)
        while await house.state(member) is State.ACCUMULATING:
            assert await until_batched.step()
        made = await freeze(house, member)
        before = len(house.changenow.books.entries)
        await house.run()
        assert (await house.swap(lead)).state is SwapState.CREATING
        assert len(house.changenow.books.entries) == before
        await lift(house, made)
        await house.run()
        await house.sound(lead, member, last)


async def test_a_batch_with_a_channel_that_is_frozen_later_is_not_paid_until_the_lift(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        lead, member = await small_payouts(house, "100", "10")
        house.worker = await house.another_worker(*PARKING, batch_client)
        last = await house.order(3, "30")
        await house.run(60.0)
        assert (await house.swap(member)).triggered_at is not None
        made = await freeze(house, member)
        house.worker = await house.another_worker(*HANDLERS, batch_client, look_for_batches)
        await house.run(300.0)
        assert house.transfers(final=False) == []
        assert "court order" in await house.job_errors()
        await lift(house, made)
        await house.run()
        assert [paid.amount for paid in house.transfers()] == [eth("0.056")]
        await house.sound(lead, member, last)
