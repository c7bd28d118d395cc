"""What people agree to above a limit of the wallet: one payment, to one address, however it is split."""

from decimal import Decimal

import pytest

from payonce.engine import controls
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.decisions.payouts import Verdict
from payonce.services.payouts.handlers.accumulation import batch_client, look_for_batches
from payonce.services.payouts.model import Hold, Payout, State
from payonce.testing import OpenStage
from payonce.vendors.changenow.port import Pair
from tests.services.payouts.hostpay_stage import ETH_CLIENT, HANDLERS, PARKING, House, eth, open_house, usdt
from tests.services.payouts.payouts_stage import TO_BTC
from tests.services.payouts.test_frozen_batches import small_payouts
from tests.services.payouts.test_hostpay_limits import limited

ELSEWHERE = "0x" + "66" * 20
MIXED = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
TO_USDC = Pair("eth", "eth", "usdc", "eth")
SOON_S = 60.0


async def above_the_limit(house: House, *, direct: bool = True) -> Payout:
    await limited(house, per_payment=eth("0.03"))
    payout = await house.order(direct=direct)
    await house.run(SOON_S)
    assert (await house.payout(payout)).hold is Hold.LIMIT
    return payout


async def waiting(house: House) -> controls.Approval:
    [found] = await controls.approvals(house.s.read)
    return found


async def agreed_and_kept(house: House, *, direct: bool = True) -> Payout:
    """People agree, and at the door of hostpay somebody keeps it."""
    payout = await above_the_limit(house, direct=direct)
    await house.grant()
    before = await house.another_worker(*PARKING)
    while await before.step():
        pass
    await house.decide(payout, Verdict.HOLD)
    await house.run(SOON_S)
    return payout


async def is_asked_anew(house: House, payout: Payout) -> None:
    await house.run()
    assert (await house.payout(payout)).hold is Hold.LIMIT
    assert not house.transfers(final=False)


async def test_what_is_agreed_to_names_the_address(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        text = f"let the wallet pay {eth('0.04')} for {payout.unique_id} to {ETH_CLIENT} (eth on eth)"
        assert (await waiting(house)).text == text


async def test_what_was_agreed_to_and_kept_is_paid_when_it_goes_on(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await agreed_and_kept(house)
        await house.release(payout)
        await house.run()
        await house.sound(payout)


async def test_what_was_agreed_to_for_one_address_is_not_paid_to_another(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await agreed_and_kept(house)
        await house.decide(payout, Verdict.READDRESS, address=ELSEWHERE)
        await is_asked_anew(house, payout)
        assert ELSEWHERE in (await waiting(house)).text
        await house.grant()
        await house.run()
        await house.sound(payout)
        assert [paid.transaction.to for paid in house.transfers()] == [ELSEWHERE]


@pytest.mark.parametrize("column", ["wallet_address", "extra_id"])
async def test_a_clearance_counts_for_its_address_and_memo_alone(stage: OpenStage, column: str) -> None:
    async with open_house(stage) as house:
        # A deposit in ether carries no memo, so only what an exchange pays out can have one.
        payout = await agreed_and_kept(house, direct=column == "wallet_address")
        await house.s.owner.execute(f"update payouts.payouts set {column} = $1", ELSEWHERE)
        await house.release(payout)
        await is_asked_anew(house, payout)


async def test_what_was_agreed_to_before_another_address_is_over_even_when_the_first_comes_back(
    stage: OpenStage,
) -> None:
    async with open_house(stage) as house:
        payout = await agreed_and_kept(house)
        for address in (ELSEWHERE, ETH_CLIENT):
            await house.decide(payout, Verdict.READDRESS, address=address)
            await is_asked_anew(house, payout)


async def test_an_approval_that_waits_is_not_granted_for_another_address(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        first = await waiting(house)
        await house.decide(payout, Verdict.READDRESS, address=ELSEWHERE)
        await house.run(SOON_S)
        with pytest.raises(Invalid, match="was withdrawn: the approval of this payment is requested again"):
            await house.grant_one(first.id)
        assert (await waiting(house)).id > first.id
        await is_asked_anew(house, payout)


@pytest.mark.parametrize("column", ["wallet_address", "extra_id"])
async def test_an_approval_whose_address_or_memo_is_no_longer_the_payouts_is_refused(
    stage: OpenStage, column: str
) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        await house.s.owner.execute(f"update payouts.payouts set {column} = $1", ELSEWHERE)
        refused = await house.grant_one((await waiting(house)).id)
        assert refused.state is controls.ApprovalState.DENIED
        assert "the payout now has another address or memo" in refused.result
        await is_asked_anew(house, payout)


async def test_whoever_gave_the_address_does_not_agree_to_its_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        await house.decide(payout, Verdict.READDRESS, by="mallory", address=ELSEWHERE)
        await house.run(SOON_S)
        await house.release(payout)
        await house.run(SOON_S)
        with pytest.raises(Invalid, match="requested by mallory; a second person must decide"):
            await house.grant_one((await waiting(house)).id, "mallory")
        await house.grant()
        await house.run()
        await house.sound(payout)


async def test_whoever_let_it_go_on_does_not_agree_to_its_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        await house.release(payout)
        await house.run(SOON_S)
        with pytest.raises(Invalid, match="requested by ann; a second person must decide"):
            await house.grant_one((await waiting(house)).id, "ann")


async def test_of_two_who_let_it_go_on_the_first_does_not_agree_to_its_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        await house.grant(deny=True)
        async with house.s.begin() as tx:
            await controls.set_threshold(tx, usdt("0"), "root")
        await house.release(payout)
        await house.grant()
        await house.run(SOON_S)
        assert (await waiting(house)).asked_by == "ann"


async def test_of_one_payment_one_question_is_open_and_a_denial_is_the_end_of_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        for _ in range(3):
            before = await waiting(house)
            await house.release(payout)
            await house.run(SOON_S)
            assert (await waiting(house)).id > before.id
        await house.grant(deny=True)
        assert not await controls.approvals(house.s.read)
        for earlier in await controls.approvals(house.s.read, controls.ApprovalState.EXPIRED):
            with pytest.raises(Invalid, match="was withdrawn"):
                await house.grant_one(earlier.id)
        await house.run(SOON_S)
        assert await house.state(payout) is State.HELD
        assert not house.transfers(final=False)


@pytest.mark.parametrize("granted", [True, False])
async def test_what_an_earlier_version_asked_without_an_address_is_refused_and_asked_anew(
    stage: OpenStage, granted: bool
) -> None:
    async with open_house(stage) as house:
        payout = await above_the_limit(house)
        await house.s.owner.execute(
            """
            update payonce.approvals set subject = argument ->> 'swap_id',
                argument = json_build_object('swap_id', argument ->> 'swap_id', 'minor', argument ->> 'minor')
            """
        )
        old = await waiting(house)
        if granted:
            refused = await house.grant_one(old.id)
            assert refused.state is controls.ApprovalState.DENIED
            assert "a payment to no address" in refused.result
        await house.release(payout)
        await house.run(SOON_S)
        assert (await waiting(house)).id > old.id
        await is_asked_anew(house, payout)


async def test_a_payout_above_the_limit_of_a_payment_is_asked_for_whatever_it_is_split_into(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.025"))
        await limited(house, per_payment=eth("0.03"))
        payout = await house.order()
        await house.run(SOON_S)
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.LIMIT)
        assert f"{eth('0.04')} is above the" in (held.reason or "")
        assert not house.transfers(final=False)
        await house.grant()
        await house.run()
        assert [paid.amount for paid in house.transfers()] == [eth("0.02"), eth("0.02")]
        await house.sound(payout)


async def test_a_batch_is_held_to_the_limit_with_all_that_it_carries(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.045"))
        payouts = await small_payouts(house, "100", "30")
        assert [(await house.payout(each)).hold for each in payouts] == [Hold.LIMIT, Hold.LIMIT]
        assert (await waiting(house)).amounts == (eth("0.052"),)
        await house.grant()
        await house.run()
        assert [paid.amount for paid in house.transfers()] == [eth("0.052")]
        await house.sound(*payouts)


async def test_a_batch_to_one_address_in_two_spellings_goes_on_as_a_whole(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.045"))
        house.changenow.set_range(TO_USDC, eth("0.05").to_decimal(), None)
        house.worker = await house.another_worker(*HANDLERS, batch_client, look_for_batches)
        payouts = []
        for number, (price, address) in enumerate((("100", MIXED), ("30", MIXED.lower())), start=1):
            payouts.append(await house.order(number, price, usdc_to=address))
            await house.run(300.0)
        assert [(await house.payout(each)).hold for each in payouts] == [Hold.LIMIT, Hold.LIMIT]
        await house.grant()
        await house.run()
        assert [paid.amount for paid in house.transfers()] == [eth("0.052")]
        await house.sound(*payouts)
