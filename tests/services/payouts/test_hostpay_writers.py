"""One process at a time writes for the wallet, a nonce has one payment, and all is on record before a byte leaves."""

import asyncio
from typing import Any

import asyncpg
import pytest

from payonce.engine.messages.model import Lease
from payonce.kit.outcomes import Retry
from payonce.services.payouts.decisions.payouts import Verdict
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.handlers.payment_follow import follow_payment
from payonce.services.payouts.handlers.wallet import LEASE_TTL_S, HostWallet
from payonce.services.payouts.model import State, SwapState
from payonce.services.payouts.store import swaps
from payonce.services.payouts.store import wallet as wallet_store
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.evm.chain import Fate
from payonce.vendors.evm.client import EvmClient
from payonce.vendors.evm.port import ETH, BroadcastResult, Payment, Signed
from tests.services.payouts.hostpay_stage import ETH_CLIENT, House, eth, open_house


def other_host(house: House) -> HostWallet:
    return HostWallet(house.wallet, house.s.database, "process-2", market_s=0.0)


async def signed_so_far(house: House) -> list[int]:
    rows = await house.s.owner.fetch("select nonce from payouts.wallet_payments order by nonce")
    return [row["nonce"] for row in rows]


async def test_while_one_process_writes_another_signs_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        await house.host.lease()
        other = await house.another_worker(pay_swap, follow_payment, host=other_host(house))
        await other.step()
        assert await signed_so_far(house) == []
        assert "another process writes for the wallet" in await house.job_errors()
        await house.run()
        await house.sound(payout)


async def test_a_dead_writer_is_replaced_when_its_lease_has_ended(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        await other_host(house).lease()
        await house.worker.step()
        assert await signed_so_far(house) == []
        await house.s.clock.advance_leases(LEASE_TTL_S + 1)
        await house.run()
        await house.sound(payout)


async def test_a_process_that_lost_the_wallet_without_knowing_signs_nothing(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        await house.host.lease()
        await house.s.clock.advance_leases(LEASE_TTL_S + 1)
        taken_over = other_host(house)
        await taken_over.lease()
        await house.worker.step()
        assert await signed_so_far(house) == []
        assert await house.state(payout) is State.SWAPPED
        await house.s.clock.advance_leases(LEASE_TTL_S + 1)
        await house.run()
        await house.sound(payout)


async def test_two_runs_at_once_in_one_process_have_a_nonce_each(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payouts = [await house.waiting_for_hostpay(number) for number in (1, 2, 3, 4)]
        workers = [await house.another_worker(pay_swap) for _ in payouts]
        await asyncio.gather(*(worker.step() for worker in workers))
        assert await signed_so_far(house) == [0, 1, 2, 3]
        await house.run()
        await house.sound(*payouts)


async def test_a_nonce_that_the_chain_forgot_is_not_given_to_another_payment(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.chain.fates.append(Fate.FORGOTTEN)
        payouts = [await house.waiting_for_hostpay(number) for number in (1, 2)]
        only_paying = await house.another_worker(pay_swap)
        while await only_paying.step():
            pass
        assert await signed_so_far(house) == [0, 1]
        await house.run()
        await house.sound(*payouts)


async def test_row_nonce_and_bytes_are_on_record_before_the_first_byte_leaves(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        seen: list[tuple[Any, ...]] = []
        send = EvmClient.broadcast

        async def look_and_send(wallet: EvmClient, signed: Signed) -> BroadcastResult:
            rows = await house.s.owner.fetch(
                """
                select h.tx_hash, a.raw, p.nonce, e.state from payouts.split_payout_hostpay h
                join payouts.wallet_attempts a on a.hash = h.tx_hash
                join payouts.wallet_payments p using (wallet, nonce)
                join payonce.effects e on e.kind = 'evm.pay' and e.key = p.swap_id || '/pay'
                """
            )
            seen.extend(tuple(row) for row in rows)
            assert (signed.hash, signed.raw, signed.nonce, "intended") in seen
            return await send(wallet, signed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EvmClient, "broadcast", look_and_send)
            await house.worker.step()
        assert seen
        await house.run()
        await house.sound(payout)


@pytest.mark.parametrize("held", [False, True])
async def test_a_swap_whose_payment_is_not_on_record_is_looked_at_now_and_then(stage: OpenStage, held: bool) -> None:
    """Nothing that hostpay does changes it: a person has to, and runs without a pause would help nobody."""
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        async with house.s.begin() as tx:
            await swaps.advance(tx, await house.swap(payout), SwapState.PAYING)
        if held:
            await house.decide(payout, Verdict.HOLD)
        await house.worker.step()
        assert "the effect that pays it is not on record" in await house.job_errors()
        assert await house.s.clock.idle()
        assert await signed_so_far(house) == []


async def test_a_swap_has_one_payment_and_a_payment_one_nonce(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        await house.worker.step()
        swap = await house.swap(payout)
        market = await house.wallet.market(ETH)
        payment = Payment.of(ETH_CLIENT, eth("1"))

        async def pay_again() -> None:
            async with house.s.begin() as tx:
                asked = wallet_store.PayRequest(swap.id, payment, market.fees, 0, 0, market.balance.to_minor_text())
                await wallet_store.sign_payment(tx, house.wallet, asked)

        with pytest.raises(asyncpg.UniqueViolationError, match="wallet_payments_pkey"):
            await pay_again()
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await house.s.read.fetch("update payouts.wallet_payments set nonce = 7")
        assert await signed_so_far(house) == [0]


async def test_a_late_run_does_not_take_a_final_payment_back_to_sent(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        payout = await house.waiting_for_hostpay()
        late = await house.another_worker(pay_swap)
        while await late.step():
            pass
        await house.tell_again(payout)
        lease, follower = house.host.lease, await house.another_worker(follow_payment)

        async def slow_lease() -> Lease:
            """Meanwhile the payment becomes final."""
            house.host.lease = lease  # type: ignore[method-assign]
            found = await lease()
            while (await house.swap(payout)).state is SwapState.PAYING:
                house.clock.now = await house.s.clock.advance(1.0)
                house.chain.mine(3)
                await house.simulator.notify()
                while await follower.step():
                    pass
            return found

        house.host.lease = slow_lease  # type: ignore[method-assign]
        while await late.step():
            pass
        row = await house.hostpay_row()
        assert (row["tx_status"], row["is_complete"]) == ("final", True)
        assert row["block_number"] is not None
        await house.run()
        await house.sound(payout)


async def test_who_looks_at_the_chain_while_another_does_hears_the_same(stage: OpenStage) -> None:
    """Also that it does not answer: one after the other, they would wait for as many time-outs."""
    async with open_house(stage, Script([Fault.TIMEOUT_BEFORE])) as house:
        host = HostWallet(house.wallet, house.s.database, "process-2")
        looks = await asyncio.gather(*(host.market(ETH) for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in looks] == [Retry] * 5
        found = await host.market(ETH)
        assert await host.market(ETH) is found
