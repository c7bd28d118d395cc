"""A refund is counted once, and only a deposit that is back makes room for another payment."""

from typing import Any

import msgspec
import pytest

from payonce.engine.audit import notes
from payonce.engine.controls import Approval, Executed, grant, submit
from payonce.engine.controls import ApprovalState as Granted
from payonce.engine.ledger import Account, balance
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.payouts import ledger
from payonce.services.payouts.decisions.payouts import ACTION, Decision, Verdict, decision_action
from payonce.services.payouts.handlers.payment_follow import REFUND_WITHIN_S
from payonce.services.payouts.model import ETH, Hold, Payout, State
from payonce.services.payouts.policies import HOSTPAY
from payonce.services.payouts.store import refunds
from payonce.testing import OpenStage
from payonce.vendors.changenow.books import Fate
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.port import Code, Exchange, Status
from payonce.vendors.evm.chain import OUTSIDE
from tests.services.payouts.hostpay_stage import BTC_CLIENT, House, eth, open_house, paused, refusing

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
    return await balance(house.s.read, Account(ledger.EXCHANGE_LOSSES, ETH))


@pytest.mark.parametrize("back", ["0.000000000000000001", pytest.param("5", marks=pytest.mark.full), "9.98"])
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
        assert eth("0") < await lost(house) <= refunds.tolerated_shortfall(first)


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
        assert all("is already counted for swap" in (payout.reason or "") for payout in kept)
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


async def decide(house: House, payout: Payout, verdict: Verdict, **more: Any) -> Executed | Approval:
    seen = (await house.payout(payout)).revision
    asked = Decision(payout_id=payout.id, seen=seen, verdict=verdict, note="asked their support", **more)
    async with house.s.begin() as tx:
        return await submit(tx, decision_action(house.s.admin), asked, "ann", "asked their support")


async def agree(house: House, payout: Payout, verdict: Verdict, **more: Any) -> None:
    """What one person asks for and a second one grants."""
    asked = await decide(house, payout, verdict, **more)
    assert isinstance(asked, Approval)
    async with house.s.begin() as tx:
        granted = await grant(tx, {ACTION: decision_action(house.s.admin)}, asked.id, "bob")
    assert granted.state is Granted.GRANTED, granted.result


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
        with pytest.raises(Invalid, match="returned or written off"):
            await decide(house, payout, Verdict.REFUND)
        house.chain.arrive(house.wallet.address, eth("0.039"), "support", transaction_hash=ONE_HASH.lower())
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        assert "verification pending" in ((await house.payout(payout)).reason or "")
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PRICED)
        assert await lost(house) == eth("0.001")
        await house.sound()
        assert isinstance(await decide(house, payout, after), Executed)
        await house.run()
        ends = {Verdict.REFUND: State.REFUNDED, Verdict.REJECT: State.REJECTED, Verdict.RELEASE: State.FINISHED}
        assert await house.state(payout) is ends[after]
        assert not await balance(house.s.read, Account(ledger.OWED, ETH))
        await house.sound()


async def test_money_that_comes_back_in_two_transactions_is_counted_together(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        hashes = ["0x" + digit * 64 for digit in "12"]
        house.chain.arrive(house.wallet.address, eth("0.02"), "one half", transaction_hash=hashes[0])
        await agree(house, payout, Verdict.RETURNED, transaction=hashes[0])
        await house.run()
        kept = await house.payout(payout)
        assert (kept.held_from, "is missing" in (kept.reason or "")) == (State.PAID_IN, True)
        await house.sound()
        with pytest.raises(Invalid, match="counted for swap"):
            await decide(house, payout, Verdict.RETURNED, transaction=hashes[0])
        house.chain.arrive(house.wallet.address, eth("0.02"), "the other", transaction_hash=hashes[1])
        await agree(house, payout, Verdict.RETURNED, transaction=hashes[1])
        await house.run()
        assert (await house.payout(payout)).held_from is State.PRICED
        assert not await lost(house)
        await house.sound()


async def test_what_came_back_in_part_and_is_finished_all_the_same_is_a_gain(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        swap = await house.swap(payout)
        house.chain.arrive(house.wallet.address, eth("0.02"), "half", transaction_hash=ONE_HASH.lower())
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
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
        with pytest.raises(Invalid, match="is not a transaction hash"):
            await decide(house, payout, Verdict.RETURNED, transaction="0x12")
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run(REFUND_WITHIN_S + 600.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PAID_IN)
        assert "paid nothing to the wallet" in (kept.reason or "")
        await house.sound()


async def test_that_a_deposit_came_back_needs_a_second_person(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        house.chain.arrive(house.wallet.address, eth("0.04"), "support", transaction_hash=ONE_HASH.lower())
        assert isinstance(await decide(house, payout, Verdict.RETURNED, transaction=ONE_HASH), Approval)
        await house.run()
        assert (await house.payout(payout)).held_from is State.PAID_IN


async def test_whoever_sent_a_deposit_back_is_on_record(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        house.chain.arrive(house.wallet.address, eth("0.04"), "support", transaction_hash=ONE_HASH.lower())
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run()
        assert f"came back by {ONE_HASH.lower()} from {OUTSIDE}" in ((await house.payout(payout)).reason or "")
        assert any(OUTSIDE in note.text for note in await notes(house.s.read, reference=payout.id))


async def is_not_back(house: House, payout: Payout, why: str) -> None:
    """Nothing is counted, nobody can have it paid or given back again, and a person reads why."""
    kept = await house.payout(payout)
    assert (kept.held_from, why in (kept.reason or "")) == (State.PAID_IN, True), kept.reason
    assert not await house.s.owner.fetch("select from payouts.refunds")
    with pytest.raises(Invalid, match="returned or written off"):
        await decide(house, payout, Verdict.REFUND)
    with pytest.raises(Invalid, match="has a swap"):
        await decide(house, payout, Verdict.READDRESS, address=BTC_CLIENT)


async def test_what_reached_the_wallet_before_the_payment_is_not_its_return(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.arrive(house.wallet.address, eth("0.04"), "a top-up", transaction_hash=ONE_HASH.lower())
        payout = await failed(house)
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run()
        await is_not_back(house, payout, "an earlier transaction cannot return its deposit")
        assert len(house.transfers()) == 1


async def test_what_a_wallet_of_ours_sent_is_not_the_return_of_a_deposit(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        await house.s.owner.execute(
            "insert into payouts.wallets (address, chain_id, next_nonce) values ($1, $2, 0)",
            OUTSIDE,
            house.chain.chain_id,
        )
        house.chain.arrive(house.wallet.address, eth("0.04"), "our treasury", transaction_hash=ONE_HASH.lower())
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run()
        await is_not_back(house, payout, "from a wallet of ours")


async def test_what_the_exchange_still_works_on_is_not_back_whatever_arrives(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        assert swap.cn_api_id is not None
        house.changenow.decide(swap.cn_api_id, Fate.VERIFY)
        await house.run()
        house.chain.arrive(house.wallet.address, eth("0.04"), "a top-up", transaction_hash=ONE_HASH.lower())
        await agree(house, payout, Verdict.RETURNED, transaction=ONE_HASH)
        await house.run()
        await is_not_back(house, payout, f"exchange {swap.cn_api_id} is verifying: its deposit is not returned")
        house.changenow.decide(swap.cn_api_id, Fate.FINISH)
        await house.run()
        assert await house.state(payout) is State.FINISHED
        assert len(house.transfers()) == 1


async def test_a_deposit_is_written_off_by_two_people_and_then_the_payout_can_be_ended(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        asked = await decide(house, payout, Verdict.WRITE_OFF)
        assert isinstance(asked, Approval)
        await house.run()
        assert not await lost(house)
        async with house.s.begin() as tx:
            await grant(tx, {ACTION: decision_action(house.s.admin)}, asked.id, "bob")
        await house.run()
        assert await lost(house) == eth("0.04")
        await decide(house, payout, Verdict.REFUND)
        assert await house.state(payout) is State.REFUNDED
        await house.sound()


async def test_a_write_off_waits_while_the_exchange_does_not_accept_our_key(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await failed(house)
        asked = await decide(house, payout, Verdict.WRITE_OFF)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChangeNowClient, "exchange", refusing(Code.NOT_ALLOWED))
            async with house.s.begin() as tx:
                await grant(tx, {ACTION: decision_action(house.s.admin)}, asked.id, "bob")  # type: ignore[union-attr]
            await house.run(1_800.0)
            assert not await lost(house)
            assert await paused(house) == [HOSTPAY.queue]
        await house.run()
        assert await lost(house) == eth("0.04")
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
            await grant(tx, {ACTION: decision_action(house.s.admin)}, asked.id, "bob")  # type: ignore[union-attr]
        await house.run()
        kept = await house.payout(payout)
        assert (kept.held_from, "not written off" in (kept.reason or "")) == (State.PAID_IN, True)
        house.changenow.decide(swap.cn_api_id, Fate.FINISH)
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize("named", [None, pytest.param("0x" + "66" * 32, marks=pytest.mark.full)])
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
