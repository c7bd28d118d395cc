"""A refund is counted once, and only a deposit that is back makes room for another payment."""

from typing import Any

import msgspec
import pytest

from payonce.engine.brakes import Approval, Done, ask, grant
from payonce.engine.ledger import Account, balance
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.payouts import books, refunds
from payonce.services.payouts.decisions import ACTION, Decision, Verdict, deciding
from payonce.services.payouts.hostpay_follow import REFUND_WITHIN_S
from payonce.services.payouts.model import ETH, Hold, Payout, State
from payonce.testing import OpenStage
from payonce.vendors.changenow.books import Fate
from payonce.vendors.changenow.port import Exchange, Status
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


async def decide(house: House, payout: Payout, verdict: Verdict, **more: Any) -> Done | Approval:
    seen = (await house.payout(payout)).revision
    asked = Decision(payout_id=payout.id, seen=seen, verdict=verdict, note="asked their support", **more)
    async with house.s.begin() as tx:
        return await ask(tx, deciding(house.s.admin), asked, "ann", "asked their support")


async def failed(house: House) -> Payout:
    """Paid, and the exchange came to nothing with it."""
    payout = await house.waiting_for_hostpay()
    swap = await house.swap(payout)
    assert swap.cn_api_id is not None
    house.changenow.decide(swap.cn_api_id, Fate.FAIL)
    await house.run()
    kept = await house.payout(payout)
    assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.EXCHANGE_FAILED, State.PAID_IN)
    return payout


@pytest.mark.parametrize("after", [Verdict.REFUND, Verdict.REJECT, Verdict.RELEASE])
async def test_money_that_support_sends_back_is_booked_and_the_payout_can_be_ended(
    stage: OpenStage, after: Verdict
) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        with pytest.raises(Invalid, match="came back or is written off"):
            await decide(house, payout, Verdict.REFUND)
        house.chain.arrive(house.wallet.address, eth("0.039"), "support", transaction_hash=ONE_HASH.lower())
        assert isinstance(await decide(house, payout, Verdict.RETURNED, transaction=ONE_HASH), Done)
        assert "looked for on the chain" in ((await house.payout(payout)).reason or "")
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PRICED)
        assert await lost(house) == eth("0.001")
        await house.sound()
        assert isinstance(await decide(house, payout, after), Done)
        await house.run()
        ends = {Verdict.REFUND: State.REFUNDED, Verdict.REJECT: State.REJECTED, Verdict.RELEASE: State.FINISHED}
        assert await house.state(payout) is ends[after]
        assert not await balance(house.s.read, Account(books.OWED, ETH))
        await house.sound()


async def test_money_that_comes_back_in_two_transactions_is_counted_together(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        hashes = ["0x" + digit * 64 for digit in "12"]
        house.chain.arrive(house.wallet.address, eth("0.02"), "one half", transaction_hash=hashes[0])
        await decide(house, payout, Verdict.RETURNED, transaction=hashes[0])
        await house.run()
        kept = await house.payout(payout)
        assert (kept.held_from, "is missing" in (kept.reason or "")) == (State.PAID_IN, True)
        await house.sound()
        with pytest.raises(Invalid, match="counted for swap"):
            await decide(house, payout, Verdict.RETURNED, transaction=hashes[0])
        house.chain.arrive(house.wallet.address, eth("0.02"), "the other", transaction_hash=hashes[1])
        await decide(house, payout, Verdict.RETURNED, transaction=hashes[1])
        await house.run()
        assert (await house.payout(payout)).held_from is State.PRICED
        assert not await lost(house)
        await house.sound()


async def test_what_came_back_in_part_and_is_finished_all_the_same_is_a_gain(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        swap = await house.swap(payout)
        house.chain.arrive(house.wallet.address, eth("0.02"), "half", transaction_hash=ONE_HASH.lower())
        await decide(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run()
        real = house.client.exchange

        async def exchange(exchange_id: str) -> Exchange | None:
            found = await real(exchange_id)
            return found and msgspec.structs.replace(found, status=Status.FINISHED)

        house.client.exchange = exchange  # type: ignore[method-assign]
        await house.run()
        assert (await house.swap(payout)).id == swap.id
        assert await lost(house) == -eth("0.02")
        await house.sound(payout)


async def test_a_transaction_that_brought_nothing_changes_nothing_and_is_told(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        with pytest.raises(Invalid, match="is no transaction"):
            await decide(house, payout, Verdict.RETURNED, transaction="0x12")
        await decide(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run(REFUND_WITHIN_S + 600.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PAID_IN)
        assert "brought nothing to the wallet" in (kept.reason or "")
        await house.sound()


async def test_a_deposit_is_written_off_by_two_people_and_then_the_payout_can_be_ended(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        asked = await decide(house, payout, Verdict.WRITE_OFF)
        assert isinstance(asked, Approval)
        await house.run()
        assert not await lost(house)
        async with house.s.begin() as tx:
            await grant(tx, {ACTION: deciding(house.s.admin)}, asked.id, "bob")
        await house.run()
        assert await lost(house) == eth("0.04")
        await decide(house, payout, Verdict.REFUND)
        assert await house.state(payout) is State.REFUNDED
        await house.sound()


async def test_what_the_exchange_still_works_on_is_not_written_off(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        assert swap.cn_api_id is not None
        house.changenow.decide(swap.cn_api_id, Fate.VERIFY)
        await house.run()
        asked = await decide(house, payout, Verdict.WRITE_OFF)
        async with house.s.begin() as tx:
            await grant(tx, {ACTION: deciding(house.s.admin)}, asked.id, "bob")  # type: ignore[union-attr]
        await house.run()
        kept = await house.payout(payout)
        assert (kept.held_from, "not written off" in (kept.reason or "")) == (State.PAID_IN, True)
        house.changenow.decide(swap.cn_api_id, Fate.FINISH)
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize("named", [None, "0x" + "66" * 32])
async def test_a_refund_that_does_not_arrive_goes_before_a_person(stage: OpenStage, named: str | None) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        refunds_by(house, named)
        await house.run()
        assert await house.state(payout) is State.PAID_IN
        await house.run(REFUND_WITHIN_S)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.EXCHANGE_FAILED, State.PAID_IN)
        revision = kept.revision
        await house.run(DAY_S)
        assert (await house.payout(payout)).revision == revision, "it is told once"
        await house.sound()
