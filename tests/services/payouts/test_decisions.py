"""What a person decides about a payout is done once, for what they saw, and above a threshold only by two."""

from typing import Any

import pytest

from payonce.engine.audit import notes
from payonce.engine.controls import Approval, Executed, grant, set_threshold, submit
from payonce.engine.messages.model import Message
from payonce.engine.messages.transaction import Reader
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.payouts import ledger
from payonce.services.payouts.decisions.payouts import ACTION, Decision, Verdict, decision_action
from payonce.services.payouts.model import ETH, USDT, Hold, State
from payonce.services.payouts.policies import KEEPING, SWAP, SWAPPED
from payonce.services.payouts.schedules import CURRENCIES
from payonce.services.payouts.store import swap_details
from payonce.services.payouts.store.orders import Intake
from payonce.services.payouts.store.swap_details import SwapDetails
from payonce.services.payouts.store.timeline import available_verdicts, carrying_swaps
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import BTC_CLIENT, HOST_WALLET, TO_BTC, Office, eth, open_office, usdt

BAD_ADDRESS = "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"
"""It has the shape that we ask for, and not the one that the exchange does."""
BTC_ELSEWHERE = "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"
ETH_OLD, ETH_NEW = "0x" + "12" * 20, "0x" + "34" * 20
XRP_CLIENT, XRP_ELSEWHERE = "r" + "N" * 30, "r" + "M" * 30


async def decide(office: Office, taken: Intake, verdict: Verdict, **more: Any) -> Executed | Approval:
    seen = (await office.payout(taken)).revision
    asked = Decision(payout_id=taken.payout.id, seen=more.pop("seen", seen), verdict=verdict, note="looked", **more)
    async with office.s.begin() as tx:
        return await submit(tx, decision_action(office.s.admin), asked, "ada", "looked")


async def held_for_its_address(office: Office) -> Intake:
    taken = await office.order(wallet_address=BAD_ADDRESS)
    await office.run()
    assert await office.state(taken) is State.HELD
    return taken


async def empty(office: Office) -> None:
    """Nothing is owed any more, in either asset."""
    for asset in (USDT, ETH):
        assert not await office.balance(ledger.OWED, asset)
    assert await office.broken() == {}


async def test_with_another_address_it_is_paid(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office)
        assert isinstance(await decide(office, taken, Verdict.READDRESS, address=BTC_CLIENT), Executed)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        [swap] = await office.swaps(taken)
        assert swap.address == BTC_CLIENT
        kept = await office.s.owner.fetchval("select client_wallet_address from payouts.split_payout_request")
        assert kept == BTC_CLIENT
        [told] = [note for note in await notes(office.s.read, reference=taken.payout.id) if "brakes" in note.location]
        assert (told.actor, BTC_CLIENT in told.text) == ("ada", True)
        assert await office.broken() == {}


async def priced(office: Office, **fields: Any) -> Intake:
    """It has its price, and no exchange is ordered for it."""
    await office.s.admin.pause(SWAP.queue, "to stop it here")
    taken = await office.order(**fields)
    await office.drain()
    await office.s.admin.resume(SWAP.queue)
    assert await office.state(taken) is State.PRICED
    return taken


async def went_elsewhere(office: Office, taken: Intake, address: str) -> None:
    """Hostpay was told of one swap, to the new address, and the exchange was asked for no other."""
    [swap] = await office.swaps(taken)
    assert (swap.address, swap.round) == (address, 2)
    assert len(await office.hostpay_told()) == 1
    assert [entry.payout_address for entry in office.changenow.books.entries.values()] == (
        [] if swap.direct else [address]
    )
    assert await office.broken() == {}


@pytest.mark.parametrize(("coin", "old", "new"), [("btc", BTC_CLIENT, BTC_ELSEWHERE), ("eth", ETH_OLD, ETH_NEW)])
async def test_what_is_kept_before_anything_is_ordered_can_go_to_another_address(
    stage: OpenStage, coin: str, old: str, new: str
) -> None:
    async with open_office(stage) as office:
        taken = await priced(office, payout_currency=coin, payout_network=coin, wallet_address=old)
        await decide(office, taken, Verdict.HOLD)
        kept = await office.payout(taken)
        assert Verdict.READDRESS in available_verdicts(kept, await carrying_swaps(office.s.read, kept))
        await decide(office, taken, Verdict.READDRESS, address=new)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        await went_elsewhere(office, taken, new)


@pytest.mark.parametrize("order", ["performed", "unknown"])
async def test_what_may_be_ordered_keeps_its_address(stage: OpenStage, order: str) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(SWAPPED.queue, "to stop it here")
        await office.drain()
        await decide(office, taken, Verdict.HOLD)
        await office.s.owner.execute("update payouts.swaps set state = 'creating', cn_api_id = null")
        await office.s.owner.execute("update payonce.effects set state = $1 where kind = 'changenow.create'", order)
        kept = await office.payout(taken)
        assert Verdict.READDRESS not in available_verdicts(kept, await carrying_swaps(office.s.read, kept))
        with pytest.raises(Invalid, match="has a swap"):
            await decide(office, taken, Verdict.READDRESS, address=BTC_ELSEWHERE)


@pytest.mark.parametrize(("coin", "old", "new"), [("btc", BTC_CLIENT, BTC_ELSEWHERE), ("eth", ETH_OLD, ETH_NEW)])
async def test_a_run_that_had_read_the_old_address_orders_nothing_for_it(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch, coin: str, old: str, new: str
) -> None:
    async with open_office(stage) as office:
        taken = await priced(office, payout_currency=coin, payout_network=coin, wallet_address=old)

        see = swap_details.details_of_part

        async def seen_a_moment_before(read: Reader, unique_id: str, part: int) -> SwapDetails | None:
            seen = await see(read, unique_id, part)
            if (await office.payout(taken)).wallet_address == old:
                await decide(office, taken, Verdict.HOLD)
                await decide(office, taken, Verdict.READDRESS, address=new)
            return seen

        monkeypatch.setattr(swap_details, "details_of_part", seen_a_moment_before)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        await went_elsewhere(office, taken, new)


async def test_an_address_of_another_shape_is_refused(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office)
        with pytest.raises(Invalid, match="is not an address"):
            await decide(office, taken, Verdict.READDRESS, address="0x" + "12" * 20)
        assert await office.state(taken) is State.HELD


@pytest.mark.parametrize("address", [HOST_WALLET, "0x" + "AB" * 20])
async def test_the_wallet_that_pays_is_no_other_address(stage: OpenStage, address: str) -> None:
    async with open_office(stage) as office:
        taken = await priced(office, payout_currency="eth", payout_network="eth", wallet_address=ETH_OLD)
        await decide(office, taken, Verdict.HOLD)
        with pytest.raises(Invalid, match="is the wallet that pays, which cannot pay itself"):
            await decide(office, taken, Verdict.READDRESS, address=address)
        assert (await office.payout(taken)).wallet_address == ETH_OLD


async def test_the_wallet_that_pays_is_found_out_before_the_first_price(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(payout_currency="eth", payout_network="eth", wallet_address=ETH_OLD)
        await decide(office, taken, Verdict.HOLD)
        await decide(office, taken, Verdict.READDRESS, address=HOST_WALLET)
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold) == (State.HELD, Hold.BAD_ADDRESS)
        assert payout.reason == "wallet_address is the wallet that pays, which cannot pay itself"
        await decide(office, taken, Verdict.READDRESS, address=ETH_NEW)
        await office.run()
        assert await office.state(taken) is State.SWAPPED


async def held_with_a_memo(office: Office) -> Intake:
    taken = await office.order(payout_currency="xrp", payout_network="xrp", wallet_address=XRP_CLIENT, extra_id="777")
    await decide(office, taken, Verdict.HOLD)
    return taken


async def know_currencies(office: Office) -> None:
    await office.s.feed.put([Message(queue=KEEPING.queue, action=CURRENCIES, payload={})])
    await office.drain()


@pytest.mark.parametrize("known", [False, True])
async def test_another_address_does_not_lose_the_memo_by_silence(stage: OpenStage, known: bool) -> None:
    async with open_office(stage) as office:
        if known:
            await know_currencies(office)
        taken = await held_with_a_memo(office)
        with pytest.raises(Invalid, match="extra_id is missing"):
            await decide(office, taken, Verdict.READDRESS, address=XRP_ELSEWHERE)
        assert (await office.payout(taken)).wallet_address == XRP_CLIENT


@pytest.mark.parametrize(("given", "kept"), [("", None), ("42", "42")])
async def test_another_address_comes_with_its_memo_or_says_that_it_needs_none(
    stage: OpenStage, given: str, kept: str | None
) -> None:
    async with open_office(stage) as office:
        await know_currencies(office)
        taken = await held_with_a_memo(office)
        await decide(office, taken, Verdict.READDRESS, address=XRP_ELSEWHERE, extra_id=given)
        await office.run()
        [swap] = await office.swaps(taken)
        assert (swap.address, swap.extra_id) == (XRP_ELSEWHERE, kept)


@pytest.mark.parametrize("given", [" ", " 42", "42 ", "4\n2"])
async def test_a_memo_with_blanks_at_its_ends_is_refused(stage: OpenStage, given: str) -> None:
    async with open_office(stage) as office:
        taken = await held_with_a_memo(office)
        with pytest.raises(Invalid, match="without leading or trailing blanks"):
            await decide(office, taken, Verdict.READDRESS, address=XRP_ELSEWHERE, extra_id=given)
        assert (await office.payout(taken)).extra_id == "777"


async def test_a_memo_for_a_coin_that_has_none_is_refused(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await know_currencies(office)
        taken = await held_for_its_address(office)
        with pytest.raises(Invalid, match="has no memos"):
            await decide(office, taken, Verdict.READDRESS, address=BTC_CLIENT, extra_id="42")


async def test_what_is_released_goes_on_where_it_stopped(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.switch(TO_BTC, active=False)
        taken = await office.order()
        await office.run()
        assert (await office.payout(taken)).hold is Hold.PAIR_INACTIVE
        office.changenow.switch(TO_BTC, active=True)
        await decide(office, taken, Verdict.RELEASE)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert await office.broken() == {}


@pytest.mark.full
async def test_what_was_given_up_unpriced_is_priced_when_it_is_released(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.take_down()
        taken = await office.order()
        await office.run(2 * 86_400.0)
        assert await office.state(taken) is State.REVIEW
        office.changenow.bring_up()
        await decide(office, taken, Verdict.RELEASE)
        await office.run()
        assert await office.state(taken) is State.SWAPPED


@pytest.mark.parametrize("priced", [False, True])
async def test_a_refund_undoes_everything_the_fee_included(stage: OpenStage, priced: bool) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office) if priced else await office.order()
        if not priced:
            await decide(office, taken, Verdict.HOLD)
        await decide(office, taken, Verdict.REFUND)
        assert await office.state(taken) is State.REFUNDED
        for path in (ledger.COLLECTED, ledger.FEES, ledger.CONVERSION):
            assert not await office.balance(path, USDT)
        assert not await office.balance(ledger.CONVERSION)
        await empty(office)


async def test_what_is_rejected_is_owed_to_nobody(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office)
        await decide(office, taken, Verdict.REJECT)
        assert await office.state(taken) is State.REJECTED
        assert await office.balance(ledger.REJECTED) == eth("-0.0388")
        assert await office.balance(ledger.FEES, USDT) == usdt("-3")
        await empty(office)


async def test_what_accumulates_can_be_refunded(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(subscription_price="2.00")
        await office.run()
        assert await office.state(taken) is State.ACCUMULATING
        await decide(office, taken, Verdict.REFUND)
        assert not await office.balance(ledger.client_account(taken.payout))
        await empty(office)


async def test_a_payout_that_is_held_by_a_person_is_not_told_to_hostpay(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await decide(office, taken, Verdict.HOLD)
        await office.run()
        assert await office.state(taken) is State.HELD
        assert not await office.hostpay_told()
        await decide(office, taken, Verdict.RELEASE)
        await office.run()
        assert len(await office.hostpay_told()) == 1


@pytest.mark.parametrize("verdict", [Verdict.REJECT, Verdict.REFUND, Verdict.RELEASE, Verdict.READDRESS])
async def test_what_is_under_way_is_decided_only_after_it_is_held(stage: OpenStage, verdict: Verdict) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        with pytest.raises(Invalid, match="requires"):
            await decide(office, taken, verdict, address=BTC_CLIENT)


@pytest.mark.parametrize("verdict", [Verdict.REJECT, Verdict.REFUND, Verdict.READDRESS])
async def test_what_hostpay_knows_of_is_neither_ended_nor_sent_elsewhere(stage: OpenStage, verdict: Verdict) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        await decide(office, taken, Verdict.HOLD)
        with pytest.raises(Invalid, match="swap"):
            await decide(office, taken, verdict, address=BTC_CLIENT)
        assert await office.state(taken) is State.HELD
        assert await office.broken() == {}


async def test_a_decision_about_what_has_changed_is_stale(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office)
        with pytest.raises(Stale, match="reload it"):
            await decide(office, taken, Verdict.REFUND, seen=taken.payout.revision)


async def test_above_a_threshold_a_second_person_must_agree(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await held_for_its_address(office)
        async with office.s.begin() as tx:
            await set_threshold(tx, Amount(96_000_000, USDT), "ada")
        asked = await decide(office, taken, Verdict.REFUND)
        assert isinstance(asked, Approval)
        assert await office.state(taken) is State.HELD
        actions = {ACTION: decision_action(office.s.admin)}
        with pytest.raises(Invalid, match="second person"):
            async with office.s.begin() as tx:
                await grant(tx, actions, asked.id, "ada")
        async with office.s.begin() as tx:
            await grant(tx, actions, asked.id, "bob")
        assert await office.state(taken) is State.REFUNDED
        await empty(office)


async def test_to_hold_something_needs_nobody_else(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        async with office.s.begin() as tx:
            await set_threshold(tx, Amount(0, USDT), "ada")
        taken = await office.order()
        assert isinstance(await decide(office, taken, Verdict.HOLD), Executed)
