"""Hostpay pays a deposit once, whatever arrives twice, late or not at all, and sees it to its end."""


from payonce.services.payouts.model import State
from payonce.testing import OpenStage
from tests.services.payouts.hostpay_stage import ETH_CLIENT, eth, open_house


async def test_a_payout_is_paid_in_and_finished(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        await house.run()
        assert await house.state(payout) is State.FINISHED
        [transfer] = house.transfers()
        swap = await house.swap(payout)
        assert (transfer.transaction.to, transfer.amount) == (swap.payin_address, swap.amount)
        row = await house.hostpay_row()
        assert (row["tx_hash"], row["tx_status"], row["is_complete"]) == (transfer.hash, "final", True)
        assert (int(row["gas_used"]), row["block_number"]) == (transfer.gas_used, transfer.block_number)
        await house.sound(payout)


async def test_an_eth_payout_goes_straight_to_the_client(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order(direct=True)
        await house.run()
        [transfer] = house.transfers()
        assert (transfer.transaction.to, transfer.amount) == (ETH_CLIENT, eth("0.04"))
        assert not house.changenow.books.entries
        await house.sound(payout)
