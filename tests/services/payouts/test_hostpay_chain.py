"""What the chain does to a payment: forgotten, stuck, replaced, reverted, dropped with its block. It is paid once."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pytest

from payonce.engine.audit import notes
from payonce.engine.messages.model import Message
from payonce.services.payouts.handlers import payment_follow
from payonce.services.payouts.handlers.payment_follow import LOST_LOOK_S, LOST_LOOKS
from payonce.services.payouts.model import ETH, Hold, State
from payonce.services.payouts.policies import KEEPING
from payonce.services.payouts.reconciliation import COMPARE, COMPARED_AFTER_S, compare_exchanges
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, FaultPlan, Odds, Script
from payonce.vendors.changenow.port import Pair
from payonce.vendors.evm.chain import Conditions, Fate
from payonce.vendors.evm.port import ChainStatus, Payment
from tests.services.payouts.hostpay_stage import ETH_CLIENT, PATIENCE_S, House, eth, open_house

QUIET = Odds(share=0)
TO_BTC = Pair("eth", "eth", "btc", "btc")
BEFORE_THE_BROADCAST: list[Fault | None] = [None, None]
"""Calls to the node: what the chain asks for, once to look at the funds and once for the payment."""


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_in_the_broadcast_is_survived(stage: OpenStage, fault: Fault) -> None:
    async with open_house(stage, Script([*BEFORE_THE_BROADCAST, fault])) as house:
        payout = await house.order()
        await house.run()
        assert house.node.enacted == {fault: 1}
        await house.sound(payout)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 2))])
async def test_many_payouts_under_faults_of_chain_and_exchange_are_paid_once_each(stage: OpenStage, seed: int) -> None:
    creating = {"POST /v2/exchange": QUIET}
    conditions = Conditions(seed, {Fate.FORGOTTEN: 0.2, Fate.STUCK: 0.2, Fate.OLD_WINS: 0.1}, reorg_share=0.4)
    async with open_house(
        stage, FaultPlan(seed, 0.3), FaultPlan(seed, 0.2, routes=creating), chain={"conditions": conditions}
    ) as house:
        payouts = [await house.order(number, f"{100 + number}", direct=number % 4 == 0) for number in range(1, 13)]
        await house.run(24 * 3_600.0)
        for payout in payouts:
            assert await house.state(payout) is State.FINISHED, await house.job_errors()
        clients = [each for each in house.transfers() if each.transaction.to == ETH_CLIENT]
        assert (len(clients), len(house.transfers())) == (3, 12)
        assert len({each.transaction.nonce for each in house.transfers()}) == 12
        deposits = house.deposits()
        assert len({each.address for each in deposits}) == len(deposits) == 9


async def test_a_part_that_a_person_has_keeps_the_payout_from_its_end(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.03"))
        house.chain.fates.append(Fate.REVERTED)
        payout = await house.order()
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PRICED)
        assert len(house.transfers()) == 1, "the other part is paid, and finished"
        await house.release(payout)
        await house.run()
        await house.sound(payout)


async def test_a_stuck_payment_is_bumped_with_its_nonce_and_paid_once(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates += [Fate.STUCK, Fate.STUCK, None]
        payout = await house.order()
        await house.run()
        assert await house.attempts(payout) == 3
        [transfer] = house.transfers()
        assert transfer.transaction.nonce == 0
        assert (await house.hostpay_row())["tx_hash"] == transfer.hash
        await house.sound(payout)


async def test_the_older_of_two_attempts_may_win_and_is_the_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates += [Fate.STUCK, Fate.OLD_WINS]
        payout = await house.order()
        await house.run()
        assert await house.attempts(payout) == 2
        [transfer] = house.transfers()
        assert (await house.hostpay_row())["tx_hash"] == transfer.hash
        await house.sound(payout)


async def test_at_the_cap_a_payment_waits_for_a_cheaper_chain(stage: OpenStage) -> None:
    async with open_house(stage, fee_cap_wei=22_000_000_000) as house:
        house.chain.set_base_fee(30_000_000_000)
        payout = await house.order()
        await house.run(1_200.0)
        assert (await house.attempts(payout), house.transfers(final=False)) == (1, [])
        house.chain.set_base_fee(9_000_000_000)
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize("forget", [False, True])
async def test_a_reorganisation_before_finality_costs_nothing_but_time(stage: OpenStage, forget: bool) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        looks: list[int] = []

        async def drop_once() -> None:
            """At the second look: hostpay has seen it in its block by then."""
            if found := house.transfers(final=False):
                looks.append(house.chain.height)
                if len(looks) == 2:
                    house.chain.reorganise(house.chain.height - found[0].block_number + 1, forget=forget)

        house.hooks.append(drop_once)
        await house.run()
        assert len(looks) > 2
        await house.sound(payout)


async def test_a_reverted_payment_goes_before_a_person_with_its_gas_in_the_books(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates.append(Fate.REVERTED)
        payout = await house.order()
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.MISMATCH, State.PRICED)
        assert (await house.hostpay_row())["tx_status"] == "reverted"
        assert not house.transfers()
        await house.sound()
        await house.run()
        assert not house.transfers(), "nothing pays it a second time by itself"
        await house.release(payout)
        await house.run()
        await house.sound(payout)


async def test_a_nonce_that_somebody_else_used_is_not_given_out_again(stage: OpenStage) -> None:
    async with open_house(stage, Script([*BEFORE_THE_BROADCAST, Fault.LATE])) as house:
        payout = await house.waiting_for_hostpay()
        await house.drain()
        house.node.held.clear()
        await house.s.clock.advance(1.0)
        fees = (await house.wallet.market(ETH)).fees
        foreign = house.wallet.sign(Payment.of("0x" + "77" * 20, eth("0.5")), 0, fees)
        await house.wallet.broadcast(foreign)
        await house.run(LOST_LOOKS * LOST_LOOK_S + PATIENCE_S)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.MISMATCH)
        assert [each.hash for each in house.transfers()] == [foreign.hash]
        other = await house.order(2)
        await house.run()
        assert await house.state(other) is State.FINISHED
        assert [each.transaction.nonce for each in house.transfers()] == [0, 1]


def hiding_receipts(house: House, times: int) -> list[datetime]:
    """So many looks at final receipts go to a node that does not have them yet. Answers when they were made."""
    real, hidden = house.wallet.status, list[datetime]()

    async def status(hashes: Sequence[str]) -> ChainStatus:
        found = await real(hashes)
        if len(hidden) >= times or not found.receipts or not found.receipts[0].final:
            return found
        hidden.append(house.clock.now)
        return ChainStatus((), found.next_nonce, found.final_nonce)

    house.wallet.status = status  # type: ignore[method-assign]
    return hidden


@pytest.mark.parametrize("times", [1, LOST_LOOKS - 1])
@pytest.mark.parametrize("direct", [False, True])
async def test_a_receipt_that_a_node_does_not_show_for_a_while_is_waited_for(
    stage: OpenStage, times: int, direct: bool
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay(direct=direct)
        hidden = hiding_receipts(house, times)
        await house.run(LOST_LOOKS * LOST_LOOK_S + PATIENCE_S)
        assert len(hidden) == times
        assert all(look - before >= timedelta(seconds=LOST_LOOK_S) for before, look in pairwise(hidden))
        await house.sound(payout)


async def test_what_the_exchange_has_seen_is_not_lost_whatever_the_node_shows(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        hidden = hiding_receipts(house, 50)
        await house.run(LOST_LOOKS * LOST_LOOK_S + PATIENCE_S)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.MISMATCH, State.PAYING)
        await house.release(payout)
        await house.run(LOST_LOOKS * LOST_LOOK_S)
        assert len(house.transfers()) == 1
        await house.run(6 * 3_600.0)
        assert len(hidden) == 50
        await house.sound(payout)


@pytest.mark.parametrize("direct", [False, True])
async def test_an_earlier_round_that_was_paid_after_all_keeps_the_next_from_being_paid(
    stage: OpenStage, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay(direct=direct)
        with monkeypatch.context() as patch:
            patch.setattr(payment_follow, "LOST_LOOKS", 1)
            patch.setattr(payment_follow, "_funded_exchange", nothing_seen)
            hiding_receipts(house, 1)
            await house.run(1_200.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.held_from) == (State.REVIEW, State.PRICED), "it is on record as lost"
        await house.release(payout)
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.MISMATCH)
        assert "of the earlier swap" in (kept.reason or "")
        assert len(house.transfers()) == 1
        if direct:
            return
        keeper = await house.another_worker(compare_exchanges)
        house.clock.now = await house.s.clock.advance(COMPARED_AFTER_S)
        await house.s.feed.put([Message(queue=KEEPING.queue, action=COMPARE, payload={})])
        while await keeper.step():
            pass
        [told] = [note.text for note in await notes(house.s.read) if note.location == "payouts.exchanges"]
        assert "we have it as returned" in told


async def nothing_seen(*_: object) -> None:
    return None
