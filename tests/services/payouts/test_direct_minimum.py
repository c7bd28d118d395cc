"""ETH to ETH: the wallet pays no client less than its gas is worth; what is less waits for more of the same client."""

from dataclasses import replace

from payonce.engine.messages.model import Message
from payonce.services.payouts.api.quotes import quote
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.handlers.accumulation import LOOK, batch_client, look_for_batches
from payonce.services.payouts.model import Hold, Payout, State
from payonce.services.payouts.policies import KEEPING
from payonce.services.payouts.store import minimums
from payonce.services.payouts.store.minimums import GAS_MULTIPLE, least_direct_payment
from payonce.services.payouts.store.orders import receive
from payonce.testing import OpenStage
from tests.services.payouts.hostpay_stage import ETH_CLIENT, HANDLERS, House, open_house, usdt

DEAR_WEI = 400_000_000_000
COIN = ("eth", "eth")


async def batching(house: House) -> None:
    house.worker = await house.another_worker(*HANDLERS, batch_client, look_for_batches)


async def look(house: House) -> None:
    await house.s.feed.put([Message(queue=KEEPING.queue, action=LOOK, payload={})])
    await house.run()


async def test_what_is_not_worth_its_gas_waits_and_leaves_with_the_rest_of_its_client(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await batching(house)
        dust = await house.order(1, "0.0001", direct=True)
        small = await house.order(2, "15", direct=True)
        await house.run()
        assert [await house.state(each) for each in (dust, small)] == [State.ACCUMULATING] * 2
        assert house.transfers(final=False) == []
        await house.sound()
        third = await house.order(3, "15", direct=True)
        await house.run()
        await house.sound(dust, small, third)
        [paid] = house.transfers()
        assert paid.transaction.to == ETH_CLIENT
        values = [(await house.payout(each)).value for each in (dust, small, third)]
        assert paid.amount.minor == sum(value.minor for value in values if value is not None)


async def test_the_bound_is_a_multiple_of_what_the_gas_costs_now(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await batching(house)
        before = await least_direct_payment(house.host)
        assert before == (await house.host.market(before.asset)).fees.most * GAS_MULTIPLE
        cheap = await house.order(1, "100", direct=True)
        await house.run()
        await house.sound(cheap)
        house.chain.set_base_fee(DEAR_WEI)
        dear = await house.order(2, "100", direct=True)
        await house.run()
        assert await house.state(dear) is State.ACCUMULATING
        assert "20 times its maximum gas now" in await house.job_errors()
        house.chain.set_base_fee(1_000_000_000)
        await look(house)
        assert await house.state(dear) is State.FINISHED


async def test_people_are_told_of_the_bound(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        least = await least_direct_payment(house.host)
        assert await minimums.minimums([house.client, house.host], [COIN]) == {COIN: least}
        assert await minimums.minimums([house.client], [COIN]) == {}, "a process without a wallet"
        told = await quote(house.client, house.host, house.config, usdt("100"), *COIN)
        assert (told["minimum_eth"], told["maximum_eth"]) == (format(least.to_decimal(), "f"), None)
        assert (told["accumulates"], told["client_gets"], told["reason"]) == (False, told["value_eth"], None)
        told = await quote(house.client, house.host, house.config, usdt("0.01"), *COIN)
        assert (told["accumulates"], told["client_gets"]) == (True, None)
        assert told["reason"] == "it is below 20 times its gas: it would accumulate until the client's total is enough"


async def test_a_payment_to_the_wallet_itself_is_never_made(stage: OpenStage) -> None:
    """The webhook refuses it, and the estimator holds what was on record before. Where the estimator knows another
    wallet than the one that pays, hostpay refuses."""
    async with open_house(stage) as house:
        for known, hold, reason in (
            (house.config, Hold.BAD_ADDRESS, "cannot pay itself"),
            (replace(house.config, host_wallet=ETH_CLIENT), Hold.MISMATCH, "to pay itself"),
        ):
            house.config = known
            house.worker = await house.another_worker(*HANDLERS)
            kept = await paying_itself(house, hold.value)
            assert (kept.state, kept.hold) == (State.HELD, hold)
            assert reason in (kept.reason or "")
        assert house.transfers(final=False) == []
        await house.sound()


async def paying_itself(house: House, unique_id: str) -> Payout:
    async with house.s.begin() as tx:
        asked = PayoutOrder(
            unique_id, 7, "-100", house.wallet.address, None, False, "eth", "eth", usdt("100"), usdt("0"), usdt("100")
        )
        payout = (await receive(tx, asked)).payout
    await house.run()
    return await house.payout(payout)
