"""A refund is counted once, and only a deposit that is back makes room for another payment."""

import msgspec
import pytest

from payonce.engine.ledger import Account, balance
from payonce.kit.money import Amount
from payonce.services.payouts import books, refunds
from payonce.services.payouts.model import ETH, Hold, State
from payonce.testing import OpenStage
from payonce.vendors.changenow.books import Fate
from payonce.vendors.changenow.port import Exchange
from tests.services.payouts.hostpay_stage import House, eth, open_house

ONE_HASH = "0x" + "7A" * 32
"""In the letters of an exchange that writes them large."""
DAY_S = 86_400.0


def refunds_by(house: House, transaction_hash: str | None) -> None:
    """Every exchange is refunded, and says that this transaction did it."""

    async def nothing() -> int:
        return 0

    house.bridge.carry_refunds = nothing  # type: ignore[method-assign]
    real = house.client.exchange

    async def exchange(exchange_id: str) -> Exchange | None:
        house.changenow.decide(exchange_id, Fate.REFUND)
        found = await real(exchange_id)
        if found is None or found.refund_hash is None:
            return found
        return msgspec.structs.replace(found, refund_hash=transaction_hash)

    house.client.exchange = exchange  # type: ignore[method-assign]


async def lost(house: House) -> Amount:
    return await balance(house.s.read, Account(books.EXCHANGE_LOSSES, ETH))


@pytest.mark.parametrize("back", ["0.000000000000000001", "5", "9.98"])
async def test_a_refund_that_is_not_the_deposit_goes_before_a_person_and_is_not_paid_again(
    stage: OpenStage, back: str
) -> None:
    async with open_house(stage) as house:
        payout = await house.order(price="25000")
        house.chain.arrive(house.wallet.address, eth(back), "dust", transaction_hash=ONE_HASH.lower())
        refunds_by(house, ONE_HASH)
        await house.run(6 * 3_600.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.EXCHANGE_FAILED, State.PAID_IN)
        assert "is missing" in (kept.reason or "")
        assert [each.amount for each in house.transfers()] == [eth("10")]
        assert not await lost(house), "the rest may yet come"
        await house.release(payout)
        await house.run(6 * 3_600.0)
        assert await house.state(payout) is State.REVIEW
        await house.sound()


async def test_a_refund_less_the_fee_of_sending_it_is_followed_by_another_swap(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay(price="25000")
        first = await house.swap(payout)
        assert first.cn_api_id is not None
        house.changenow.decide(first.cn_api_id, Fate.REFUND)
        await house.run()
        await house.sound(payout)
        assert eth("0") < await lost(house) <= refunds.may_keep(first)


async def test_one_transaction_is_not_the_refund_of_two_deposits(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        one, two = await house.waiting_for_hostpay(1), await house.waiting_for_hostpay(2)
        house.chain.arrive(house.wallet.address, eth("0.04"), "one of them", transaction_hash=ONE_HASH.lower())
        refunds_by(house, ONE_HASH)
        await house.run(6 * 3_600.0)
        # The one that got it was paid anew; its second exchange was refunded by the same transaction, which is none.
        assert len(house.transfers()) == 3
        kept = [await house.payout(payout) for payout in (one, two)]
        assert [payout.state for payout in kept] == [State.REVIEW, State.REVIEW]
        assert all("was counted for swap" in (payout.reason or "") for payout in kept)
        await house.sound()


async def test_more_than_was_paid_is_no_plain_refund(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        one, two = await house.waiting_for_hostpay(1), await house.waiting_for_hostpay(2)
        house.chain.arrive(house.wallet.address, eth("0.08"), "both", transaction_hash=ONE_HASH.lower())
        refunds_by(house, ONE_HASH)
        await house.run(6 * 3_600.0)
        assert [await house.state(payout) for payout in (one, two)] == [State.REVIEW, State.REVIEW]
        assert len(house.transfers()) == 2
        await house.sound()
