"""Hostpay pays a deposit once, whatever arrives twice, late or not at all, and sees it to its end."""

from decimal import Decimal

import pytest
from msgspec import structs

from payonce.engine.effects.model import State as EffectState
from payonce.engine.messages.model import Message
from payonce.services.payouts.domain.addresses import in_capitals
from payonce.services.payouts.model import Hold, State, SwapState
from payonce.services.payouts.policies import FOLLOW, GIVE_UP_AFTER_S, HOSTPAY
from payonce.services.payouts.store import payouts as store
from payonce.services.payouts.store import swaps
from payonce.testing import OpenStage
from payonce.vendors.changenow.books import Fate as ExchangeFate
from payonce.vendors.changenow.port import Exchange, Pair, Status
from tests.services.payouts.hostpay_stage import ETH_CLIENT, PARKING, House, eth, open_house

TO_BTC = Pair("eth", "eth", "btc", "btc")


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


async def test_a_message_that_comes_twice_at_any_time_changes_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        puts = iter(range(10, 500))

        async def tell_again() -> None:
            for swap in await swaps.active_swaps(house.s.read, payout.id):
                if swap.triggered_at is not None and swap.state is not SwapState.FINISHED:
                    await house.tell_again(payout, next(puts))

        house.hooks.append(tell_again)
        await house.run(1_200.0)
        assert next(puts) > 12
        await house.sound(payout)
        assert len(house.transfers()) == 1
        await house.tell_again(payout)
        await house.run(60.0)
        await house.sound(payout)


async def test_the_exchange_may_write_its_deposit_address_in_capitals(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.order()
        real = house.client.exchange

        async def exchange(exchange_id: str) -> Exchange | None:
            found = await real(exchange_id)
            return found and structs.replace(found, payin_address=in_capitals(found.payin_address))

        house.client.exchange = exchange  # type: ignore[method-assign]
        await house.run()
        await house.sound(payout)
        assert len(house.transfers()) == 1


async def stranger(house: House) -> dict[str, object]:
    return {
        "unique_id": "A" * 16,
        "cn_api_id": "deadbeefdeadbe",
        "from_currency": "eth",
        "from_network": "eth",
        "from_amount": "1.5",
        "payin_address": "0x" + "66" * 20,
    }


async def test_what_is_not_on_record_is_not_paid_whoever_asks_for_it(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.message(await stranger(house))
        await house.message({"unique_id": 5})
        await house.run(60.0)
        assert not house.chain.pool
        errors = await house.job_errors()
        assert "no swap 'deadbeefdeadbe'" in errors
        assert "the payload is not a valid HostPay" in errors


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
        told = {
            "unique_id": swap.unique_id,
            "cn_api_id": swap.cn_api_id,
            "from_currency": "eth",
            "from_network": "eth",
            "from_amount": swap.amount.to_text(),
            "payin_address": swap.payin_address,
        }
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
        async with house.s.begin() as tx:
            await store.hold_payout(tx, await house.payout(payout), Hold.PERSON, "let me look")
        await house.run(600.0)
        assert not house.transfers(final=False)
        held = await house.payout(payout)
        assert (held.state, held.held_from) == (State.HELD, State.PRICED), "it may be given back, too"
        await house.release(payout)
        await house.run()
        await house.sound(payout)


async def test_of_two_parts_one_may_be_swapped_anew_while_the_other_is_paid(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.03"))
        payout = await house.order()
        before = await house.another_worker(*PARKING)
        while await before.step():
            pass
        first, second = await swaps.active_swaps(house.s.read, payout.id)
        assert second.cn_api_id is not None
        house.changenow.decide(second.cn_api_id, ExchangeFate.REFUND)
        await house.run()
        rounds = [swap.round for swap in await swaps.active_swaps(house.s.read, payout.id)]
        assert rounds == [first.round, second.round + 1]
        assert len(house.transfers()) == 3
        await house.sound(payout)


async def test_an_exchange_that_sends_the_money_back_is_followed_by_another_swap(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        first = await house.swap(payout)
        assert first.cn_api_id is not None
        house.changenow.decide(first.cn_api_id, ExchangeFate.REFUND)
        await house.run()
        second = await house.swap(payout)
        assert (second.round, second.state) == (2, SwapState.FINISHED)
        returned = await swaps.swap(house.s.read, first.id)
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

        house.simulator.notify = nobody_tells  # type: ignore[method-assign]
        [entry] = house.changenow.books.entries.values()
        entry.valid_until = entry.valid_until.replace(year=2100)
        await house.run(900.0)
        assert await house.state(payout) is State.PAID_IN
        await house.s.clock.advance(5 * 3_600.0)
        await house.run(900.0)
        kept = await house.payout(payout)
        assert (kept.state, kept.hold) == (State.REVIEW, Hold.EXCHANGE_FAILED)
        await house.s.clock.advance(26 * 3_600.0)
        await house.run(900.0)
        assert await house.s.owner.fetchval("select queue from payonce.messages") == FOLLOW.queue, "still looked at"
        assert len(house.transfers()) == 1


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


async def test_a_payment_of_a_swap_that_nobody_knows_is_not_followed_and_its_message_is_parked(
    stage: OpenStage,
) -> None:
    async with open_house(stage) as house:
        await house.s.feed.put([Message(queue=FOLLOW.queue, payload={"swap_id": "nobody/1/1"})])
        await house.run()
        [left] = await house.s.owner.fetch("select state, last_error from payonce.messages")
        assert left["state"] == "parked"
        assert "there is no swap 'nobody/1/1' to follow" in left["last_error"]


async def test_a_message_that_is_given_up_and_names_no_payout_is_parked(stage: OpenStage) -> None:
    """Its payout could not be given to a person, so the message is."""
    async with open_house(stage) as house:
        await house.waiting_for_hostpay()
        await house.s.owner.execute("update payonce.messages set correlation_id = null where queue = $1", HOSTPAY.queue)
        house.changenow.take_down()
        await house.drain()
        await house.s.clock.advance(GIVE_UP_AFTER_S)
        await house.drain()
        [left] = await house.s.owner.fetch("select state, last_error from payonce.messages")
        assert left["state"] == "parked"
        assert "no payout is on record for the message: " in left["last_error"]
