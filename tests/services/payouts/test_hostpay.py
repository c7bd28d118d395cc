"""Hostpay pays a deposit once, whatever arrives twice, late or not at all, and sees it to its end."""

from decimal import Decimal

import pytest

from payonce.engine import brakes
from payonce.engine.effects.model import State as EffectState
from payonce.engine.transaction import Tx
from payonce.kit.money import Amount
from payonce.services.payouts import swap_store, wallet_limits
from payonce.services.payouts.model import ETH, Hold, State, SwapState
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, FaultPlan, Odds, Script
from payonce.vendors.changenow.books import Fate as ExchangeFate
from payonce.vendors.changenow.port import Status
from payonce.vendors.evm.chain import Conditions, Fate
from payonce.vendors.evm.port import Payment
from tests.services.payouts.hostpay_stage import ETH_CLIENT, House, eth, open_house

QUIET = Odds(share=0)
BEFORE_THE_BROADCAST: list[Fault | None] = [None, None]
"""Calls to the node: what the chain asks for, once to look at the funds and once for the payment."""


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


async def test_the_effect_says_what_it_moves(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        await house.run()
        rows = await house.s.owner.fetch("select * from payonce.effects where kind = 'evm.pay'")
        swap = await house.swap(payout)
        assert [(row["amount_minor"], row["asset"], row["safety"], row["scope"]) for row in rows] == [
            (swap.amount.minor, "ETH", "rebroadcast", swap.scope)
        ]
        assert rows[0]["vendor_ref"] == f"{house.wallet.address}:0"


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_in_the_broadcast_is_survived(stage: OpenStage, fault: Fault) -> None:
    async with open_house(stage, Script([*BEFORE_THE_BROADCAST, fault])) as house:
        payout = await house.order()
        await house.run()
        assert house.node.enacted == {fault: 1}
        await house.sound(payout)


@pytest.mark.parametrize("seed", range(3))
async def test_many_payouts_under_faults_of_chain_and_exchange_are_paid_once_each(stage: OpenStage, seed: int) -> None:
    creating = {"POST /v2/exchange": QUIET}
    conditions = Conditions(
        seed, {Fate.FORGOTTEN: 0.2, Fate.STUCK: 0.2, Fate.OLD_WINS: 0.1}, reorg_share=0.4
    )  # fmt: skip
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


async def test_a_message_that_comes_twice_at_any_time_changes_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        puts = iter(range(10, 500))

        async def tell_again() -> None:
            swap = await swap_store.active_swap(house.s.read, payout.unique_id, 1)
            if swap is not None and swap.triggered_at is not None and swap.state is not SwapState.FINISHED:
                await house.tell_again(payout, next(puts))

        house.hooks.append(tell_again)
        await house.run(1_200.0)
        assert next(puts) > 12
        await house.sound(payout)
        assert len(house.transfers()) == 1
        await house.tell_again(payout)
        await house.run(60.0)
        await house.sound(payout)


async def stranger(house: House) -> dict[str, object]:
    return {"unique_id": "A" * 16, "cn_api_id": "deadbeefdeadbe", "from_currency": "eth", "from_network": "eth",
            "from_amount": "1.5", "payin_address": "0x" + "66" * 20}  # fmt: skip


async def test_what_is_not_on_record_is_not_paid_whoever_asks_for_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.message(await stranger(house))
        await house.message({"unique_id": 5})
        await house.run(60.0)
        assert not house.chain.pool
        errors = await house.job_errors()
        assert "no swap 'deadbeefdeadbe'" in errors
        assert "the payload is no HostPay" in errors


@pytest.mark.parametrize(
    "changed",
    [{"payin_address": "0x" + "66" * 20}, {"from_amount": "0.0400000000000000001"}, {"from_currency": "btc"}],
)
async def test_a_message_that_differs_from_the_record_holds_the_payout(
    stage: OpenStage, changed: dict[str, str]
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        await house.s.owner.execute("delete from payonce.messages")
        told = {"unique_id": swap.unique_id, "cn_api_id": swap.cn_api_id, "from_currency": "eth", "from_network": "eth",
                "from_amount": swap.amount.to_text(), "payin_address": swap.payin_address}  # fmt: skip
        await house.message({**told, **changed})
        await house.run(60.0)
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.MISMATCH)
        assert not house.transfers(final=False)


async def test_an_exchange_that_asks_for_something_else_by_now_is_not_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        [entry] = house.changenow.books.entries.values()
        entry.expected_from += Decimal("0.001")
        await house.run(60.0)
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.MISMATCH)
        assert not house.transfers(final=False)


async def test_an_exchange_that_expired_unpaid_is_replaced_by_another(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        first = await house.swap(payout)
        house.clock.now = await house.s.clock.advance(3 * 3_600.0)
        await house.run()
        second = await house.swap(payout)
        assert (first.round, second.round) == (1, 2)
        assert [each.transaction.to for each in house.transfers()] == [second.payin_address]
        await house.sound(payout)


async def test_an_exchange_that_somebody_else_paid_goes_before_a_person(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        assert swap.payin_address is not None
        house.changenow.deposit(swap.payin_address, "eth", swap.amount.to_decimal(), "0x" + "99" * 32)
        await house.run(60.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.MISMATCH)
        assert not house.transfers(final=False)


async def test_what_a_person_has_is_not_paid_until_they_let_it_go_on(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        await house.s.owner.execute(
            "update payouts.payouts set state = 'held', held_from = 'swapped', hold = 'person', reason = 'look'"
        )
        await house.run(600.0)
        assert not house.transfers(final=False)
        await house.s.owner.execute(
            "update payouts.payouts set state = 'swapped', held_from = null, hold = null, reason = null"
        )
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
        await house.run(3_600.0)
        assert (await house.attempts(payout), house.transfers(final=False)) == (1, [])
        house.chain.set_base_fee(9_000_000_000)
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize("forget", [False, True])
async def test_a_reorganisation_before_finality_costs_nothing_but_time(stage: OpenStage, forget: bool) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        dropped: list[int] = []

        async def drop_once() -> None:
            if house.transfers(final=False) and not dropped:
                dropped.append(house.chain.height)
                house.chain.reorganise(1, forget=forget)

        house.hooks.append(drop_once)
        await house.run()
        assert dropped
        await house.sound(payout)


async def test_a_reverted_payment_goes_before_a_person_with_its_gas_in_the_books(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates.append(Fate.REVERTED)
        payout = await house.order()
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (State.REVIEW, Hold.MISMATCH, State.PAYING)
        assert (await house.hostpay_row())["tx_status"] == "reverted"
        assert not house.transfers()
        await house.sound()
        await house.tell_again(payout)
        await house.run()
        assert not house.transfers(), "nothing pays it a second time by itself"


async def test_a_nonce_that_somebody_else_used_is_not_given_out_again(stage: OpenStage) -> None:
    async with open_house(stage, Script([*BEFORE_THE_BROADCAST, Fault.LATE])) as house:
        payout = await house.waiting_for_hostpay()
        await house.drain()
        house.node.held.clear()
        await house.s.clock.advance(1.0)
        fees = (await house.wallet.market(ETH)).fees
        foreign = house.wallet.sign(Payment.of("0x" + "77" * 20, eth("0.5")), 0, fees)
        await house.wallet.broadcast(foreign)
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.MISMATCH)
        assert [each.hash for each in house.transfers()] == [foreign.hash]
        other = await house.order(2)
        await house.run()
        assert await house.state(other) is State.FINISHED
        assert [each.transaction.nonce for each in house.transfers()] == [0, 1]


async def test_an_exchange_that_sends_the_money_back_is_followed_by_another_swap(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        first = await house.swap(payout)
        assert first.cn_api_id is not None
        house.changenow.decide(first.cn_api_id, ExchangeFate.REFUND)
        await house.run()
        second = await house.swap(payout)
        assert (second.round, second.state) == (2, SwapState.FINISHED)
        returned = await swap_store.swap(house.s.read, first.id)
        assert returned.state is SwapState.RETURNED
        assert len(house.transfers()) == 2
        await house.sound(payout)


async def test_nothing_is_swapped_anew_before_the_refund_is_final_on_the_chain(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        first = await house.swap(payout)
        assert first.cn_api_id is not None
        house.changenow.decide(first.cn_api_id, ExchangeFate.REFUND)

        async def no_refunds() -> int:
            return 0

        carried = house.bridge.carry_refunds
        house.bridge.carry_refunds = no_refunds  # type: ignore[method-assign]
        await house.run()
        assert house.changenow.books.entries[first.cn_api_id].status is Status.REFUNDED
        assert (await house.swap(payout)).id == first.id
        house.bridge.carry_refunds = carried  # type: ignore[method-assign]
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize(
    ("fate", "state", "hold"),
    [
        (ExchangeFate.VERIFY, State.HELD, Hold.VERIFYING),
        (ExchangeFate.FAIL, State.REVIEW, Hold.EXCHANGE_FAILED),
    ],
)
async def test_an_exchange_that_does_not_go_on_is_told_and_never_paid_twice(
    stage: OpenStage, fate: ExchangeFate, state: State, hold: Hold
) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        assert swap.cn_api_id is not None
        house.changenow.decide(swap.cn_api_id, fate)
        await house.run()
        kept = await house.payout(payout)
        assert (kept.state, kept.hold, kept.held_from) == (state, hold, State.PAID_IN)
        await house.tell_again(payout)
        await house.run()
        assert len(house.transfers()) == 1
        house.changenow.decide(swap.cn_api_id, ExchangeFate.REFUND)
        await house.run()
        again = await house.payout(payout)
        assert (again.state, again.held_from) == (state, State.PRICED), "a person still has it"
        await house.sound()


async def test_what_is_verified_in_the_end_finishes_by_itself(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        swap = await house.swap(payout)
        assert swap.cn_api_id is not None
        house.changenow.decide(swap.cn_api_id, ExchangeFate.VERIFY)
        await house.run()
        assert await house.state(payout) is State.HELD
        house.changenow.decide(swap.cn_api_id, ExchangeFate.FINISH)
        await house.run()
        await house.sound(payout)


async def test_an_exchange_that_verifies_before_it_was_paid_is_not_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        [entry] = house.changenow.books.entries.values()
        entry.status = Status.VERIFYING
        await house.run(60.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.HELD, Hold.VERIFYING)
        assert not house.transfers(final=False)


async def test_a_deposit_that_the_exchange_does_not_see_goes_before_a_person(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()

        async def nobody_tells() -> None:
            return None

        house.simulator.tell = nobody_tells  # type: ignore[method-assign]
        [entry] = house.changenow.books.entries.values()
        entry.valid_until = entry.valid_until.replace(year=2100)
        await house.run(1.5 * 3_600.0)
        assert await house.state(payout) is State.PAID_IN
        await house.run(30 * 3_600.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.EXCHANGE_FAILED), "after a day it is still looked at"
        assert len(house.transfers()) == 1


async def test_a_wallet_that_is_too_empty_takes_no_nonce_until_it_is_filled_up(stage: OpenStage) -> None:
    async with open_house(stage, opening=eth("0.01")) as house:
        payout = await house.order()
        await house.run(3_600.0)
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        assert "fill it up" in await house.job_errors()
        house.chain.arrive(house.wallet.address, eth("5"), "top-up")
        await house.run()
        assert await house.state(payout) is State.FINISHED


async def test_a_frozen_wallet_pays_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        async with house.s.begin() as tx:
            frozen = await brakes.freeze(tx, by="ann", reason="look first", vendor="evm")
        payout = await house.order()
        await house.run(3_600.0)
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        async with house.s.begin() as tx:
            await brakes.lift(tx, frozen.id, "ann", "looked")
        await house.run()
        await house.sound(payout)


async def limited(house: House, **bounds: Amount) -> None:
    async with house.s.begin() as tx:
        await wallet_limits.set_wallet_limit(tx, ETH, "ann", **bounds)


async def test_a_payment_above_the_limit_waits_for_people_and_is_paid_once_they_agree(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.03"))
        payout = await house.order()
        await house.run()
        held = await house.payout(payout)
        assert (held.state, held.hold, held.held_from) == (State.HELD, Hold.LIMIT, State.SWAPPED)
        assert held.reason is not None
        assert "is above the 0.03" in held.reason
        assert not house.transfers(final=False)
        await house.grant()
        await house.run()
        await house.sound(payout)


async def test_a_payment_that_people_deny_stays_held(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_payment=eth("0.03"))
        payout = await house.order()
        await house.run()
        await house.grant(deny=True)
        await house.run()
        assert await house.state(payout) is State.HELD
        assert not house.transfers(final=False)


async def test_what_is_above_the_limit_of_a_day_waits_for_people(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await limited(house, per_day=eth("0.1"))
        payouts = [await house.order(number) for number in (1, 2, 3)]
        await house.run()
        states = sorted([await house.state(payout) for payout in payouts])
        assert states == [State.FINISHED, State.FINISHED, State.HELD]
        await house.grant()
        await house.run()
        await house.sound(*payouts)


async def test_an_asset_that_is_not_allowed_is_held_and_nobody_is_asked(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.s.owner.execute("delete from payouts.wallet_limits")
        payout = await house.order()
        await house.run()
        held = await house.payout(payout)
        assert (held.state, held.hold) == (State.HELD, Hold.LIMIT)
        assert not await brakes.approvals(house.s.read)


async def test_the_limit_of_a_day_holds_within_the_transaction_that_signs(stage: OpenStage) -> None:
    """Of two payments that pass each alone, the look before may miss the other; the intent does not."""
    async with open_house(stage) as house:
        await limited(house, per_day=eth("0.05"))
        payout = await house.waiting_for_hostpay()
        looked = wallet_limits.exceeded

        async def blind_before(read: object, swap: object) -> str:
            return await looked(read, swap) if isinstance(read, Tx) else ""  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wallet_limits, "exceeded", blind_before)
            await limited(house, per_day=eth("0.01"))
            for _ in range(3):
                await house.worker.step()
        assert await house.state(payout) is State.SWAPPED
        assert not await house.s.owner.fetchval("select count(*) from payouts.wallet_payments")
        await house.run(120.0)
        assert await house.state(payout) is State.HELD


async def test_the_effect_of_a_payment_is_performed_once_per_swap(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payouts = [await house.order(number) for number in range(1, 6)]
        await house.run()
        rows = await house.s.owner.fetch(
            "select state, count(*) from payonce.effects where kind = 'evm.pay' group by 1"
        )
        assert [tuple(row) for row in rows] == [(EffectState.PERFORMED, 5)]
        await house.sound(*payouts)
        assert [each.transaction.nonce for each in house.transfers()] == list(range(5))
