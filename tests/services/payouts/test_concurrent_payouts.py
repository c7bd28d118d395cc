"""Many payouts at once through one worker: each is paid as its order demands, once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from payonce.engine import controls
from payonce.kit.money import Amount
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.handlers import hostpay
from payonce.services.payouts.handlers.accumulation import batch_client, look_for_batches
from payonce.services.payouts.handlers.hostpay import pay_swap
from payonce.services.payouts.model import ETH, Payout, State
from payonce.services.payouts.store import wallet_limits
from payonce.services.payouts.store.orders import receive
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, FaultPlan, Odds
from tests.services.payouts.hostpay_stage import (
    BTC_CLIENT,
    HANDLERS,
    PATIENCE_S,
    House,
    eth,
    open_house,
    usdt,
)
from tests.services.payouts.payouts_stage import TO_BTC

SMALL_CLIENTS: Final = (BTC_CLIENT, "bc1qmy5c5yx3kpe4sd7uf0v9mtryrv8neme8pgs93w")
OTHER_CLIENT: Final = "1BoatSLRHtKNngkdXEeobR76b53LETtpyT"
RUNS: Final = 8
PRICE: Final = "100"
"""0.04 ETH."""
FOR_THREE: Final = eth("0.14")
"""Three times that, and their gas."""


async def order(house: House, number: int, price: str = PRICE, to: str = OTHER_CLIENT) -> Payout:
    direct = to.startswith("0x")
    asked = PayoutOrder(
        f"pay-{number}",
        7_000_000_000 + number,
        f"-100{number}",
        to,
        None,
        False,
        "eth" if direct else "btc",
        "eth" if direct else "btc",
        usdt(price),
        usdt("0"),
        usdt(price),
    )
    async with house.s.begin() as tx:
        return (await receive(tx, asked)).payout


@asynccontextmanager
async def busy_house(stage: OpenStage, *also: Any, **how: Any) -> AsyncIterator[House]:
    async with open_house(stage, **how) as house:
        house.worker = await house.another_worker(*HANDLERS, *also)
        yield house


async def run(house: House, patience_s: float = PATIENCE_S) -> None:
    """As House.run, with a worker that takes all that is due at once."""
    running = asyncio.create_task(house.worker.run())

    async def drain() -> None:
        house.clock.now = await house.s.clock.now()
        for door in (house.node, house.context):
            await door.deliver()
        await house.bridge.carry(house.simulator)
        await eventually(house.s.clock.idle, 60.0, "nothing is due")

    await house.s.clock.run_to(await house.s.clock.now() + timedelta(seconds=patience_s), drain)
    await house.worker.stop()
    await running
    house.worker = await house.another_worker(*HANDLERS, batch_client, look_for_batches)


async def states(house: House, payouts: list[Payout]) -> Counter[State]:
    return Counter([await house.state(payout) for payout in payouts])


async def nonces_are_whole(house: House) -> None:
    """Neither gaps nor two owners."""
    rows = await house.s.owner.fetch("select nonce from payouts.wallet_payments order by nonce")
    assert [row["nonce"] for row in rows] == list(range(len(rows)))
    assert sorted(each.transaction.nonce for each in house.transfers()) == list(range(len(rows)))


async def test_payouts_of_all_kinds_end_as_their_orders_demand(stage: OpenStage) -> None:
    async with busy_house(stage, batch_client, look_for_batches) as house:
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.05"))
        plain = [await order(house, number) for number in range(14)]
        direct = [await order(house, 20 + number, to=f"0x{number + 1:040x}") for number in range(3)]
        split = [await order(house, 30 + number, "200") for number in range(3)]
        # Two of each client: of more, one might be left over by batches that are enough without it.
        small = [await order(house, 40 + number, "2.00", to=SMALL_CLIENTS[number % 2]) for number in range(4)]
        payouts = [*plain, *direct, *split, *small]
        await run(house)
        await house.sound(*payouts)
        await nonces_are_whole(house)
        paid = Counter(each.amount.to_text() for each in house.transfers())
        small_paid = sum((each.amount for each in house.transfers() if each.amount < eth("0.03")), Amount.zero(ETH))
        to_clients = {each.transaction.to for each in house.transfers()} & {f"0x{n + 1:040x}" for n in range(3)}
    assert paid[eth("0.04").to_text()] == len(plain) + len(direct) + 2 * len(split), paid
    assert small_paid == eth("0.0032"), "four of 0.0008, two of each client at once"
    assert len(to_clients) == len(direct)


async def test_of_those_that_pass_each_alone_no_more_pass_than_the_day_allows(stage: OpenStage) -> None:
    async with busy_house(stage) as house:
        async with house.s.begin() as tx:
            await wallet_limits.set_wallet_limit(tx, ETH, "ann", per_day=eth("0.12"))
        payouts = [await order(house, number) for number in range(RUNS)]
        await run(house)
        assert await states(house, payouts) == {State.FINISHED: 3, State.HELD: RUNS - 3}
        await house.sound()
        await nonces_are_whole(house)


async def for_three(house: House, payouts: list[Payout]) -> None:
    """Three of them are paid, and the others when the wallet is filled up; each once."""
    assert await states(house, payouts) == {State.FINISHED: 3, State.SWAPPED: RUNS - 3}
    assert await house.s.owner.fetchval("select count(*) from payouts.wallet_payments") == 3
    house.chain.arrive(house.wallet.address, eth("5"), "top-up")
    await house.run()
    assert await states(house, payouts) == {State.FINISHED: RUNS}
    assert len(house.transfers()) == RUNS
    await nonces_are_whole(house)


async def test_no_more_payments_are_signed_than_the_wallet_can_pay(stage: OpenStage) -> None:
    async with open_house(stage, opening=FOR_THREE) as house:
        payouts = [await house.waiting_for_hostpay(number) for number in range(RUNS)]
        workers = [await house.another_worker(pay_swap) for _ in payouts]
        looking, looked = asyncio.Barrier(RUNS), hostpay._check_funds

        async def look_together(*about: Any) -> None:
            await looked(*about)
            await looking.wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hostpay, "_check_funds", look_together)
            await asyncio.gather(*(worker.step() for worker in workers))
        assert await house.s.owner.fetchval("select count(*) from payouts.wallet_payments") == 3
        await house.run()
        await for_three(house, payouts)


async def test_no_more_leave_within_a_window_than_a_limit_allows(stage: OpenStage) -> None:
    async with busy_house(stage) as house:
        async with house.s.begin() as tx:
            await controls.set_limit(tx, eth("0.12"), "ann", window_s=86_400, vendor="evm")
        payouts = [await order(house, number) for number in range(RUNS)]
        await run(house)
        assert await states(house, payouts) == {State.FINISHED: 3, State.SWAPPED: RUNS - 3}
        assert len(house.transfers()) == 3
        await nonces_are_whole(house)


async def test_what_is_frozen_is_not_paid_beside_what_is_not(stage: OpenStage) -> None:
    async with busy_house(stage) as house:
        payouts = [await order(house, number) for number in range(RUNS)]
        async with house.s.begin() as tx:
            frozen = await controls.freeze(tx, by="ann", reason="court order", tenant=payouts[3].closed_channel_id)
        await run(house)
        others = [*payouts[:3], *payouts[4:]]
        assert await states(house, others) == {State.FINISHED: len(others)}
        assert await house.state(payouts[3]) is not State.FINISHED
        assert len(house.transfers()) == len(others)
        async with house.s.begin() as tx:
            await controls.lift(tx, frozen.id, "ann", "the order was lifted")
        await run(house)
        await house.sound(*payouts)
        await nonces_are_whole(house)


async def test_the_same_message_twice_at_once_pays_once(stage: OpenStage) -> None:
    async with busy_house(stage) as house:
        payouts = [await house.waiting_for_hostpay(number) for number in range(4)]
        for payout in payouts:
            await house.tell_again(payout)
        await run(house)
        await house.sound(*payouts)
        await nonces_are_whole(house)
        assert len(house.transfers()) == len(payouts)


async def test_on_a_bad_day_each_is_paid_once_all_the_same(stage: OpenStage) -> None:
    """Answers are lost, late or refused for some of them, and not for others."""
    weights = Odds(0.2).without(Fault.WRONG_ANSWER, Fault.DUPLICATE).weights
    doors = {"at_node": FaultPlan(12, 0.2, weights), "at_exchange": FaultPlan(11, 0.2, weights)}
    async with busy_house(stage, **doors) as house:
        payouts = [await order(house, number) for number in range(RUNS)]
        await run(house, timedelta(hours=6).total_seconds())
        await house.sound(*payouts)
        await nonces_are_whole(house)
        assert len(house.transfers()) == RUNS
