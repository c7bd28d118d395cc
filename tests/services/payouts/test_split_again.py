"""The exchange's maximum moves while a payout is in parts: it is never split a second time."""

import asyncio
from decimal import Decimal

from payonce.engine.ledger import Account, balance
from payonce.kit.money import Amount
from payonce.services.payouts import ledger
from payonce.services.payouts.handlers.estimator import price_payout
from payonce.services.payouts.handlers.orchestrator import value_payout
from payonce.services.payouts.handlers.swapper import create_swap
from payonce.services.payouts.invariants.payouts import INVARIANTS
from payonce.services.payouts.model import ETH, Hold, State
from payonce.testing import OpenStage
from payonce.vendors.changenow.port import Order, Swap
from tests.services.payouts.hostpay_stage import House, eth, open_house
from tests.services.payouts.payouts_stage import TO_BTC

TOGETHER_S = 40.0


async def refuse_both_parts_at_once(house: House) -> None:
    """Two swappers each have a part at the exchange before either hears that it is too large by now."""
    first, second = await house.another_worker(create_swap), await house.another_worker(create_swap)
    await first.step()
    assert await parts(house) == [eth("0.02"), eth("0.02")]
    house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.019"))
    create, both = house.client.create, asyncio.Barrier(2)

    async def together(order: Order) -> Swap:
        async with asyncio.timeout(TOGETHER_S):
            await both.wait()
        return await create(order)

    house.client.create = together  # type: ignore[method-assign]
    await asyncio.gather(first.step(), second.step())
    house.client.create = create  # type: ignore[method-assign]


async def parts(house: House) -> list[Amount]:
    rows = await house.s.owner.fetch("select amount_minor from payouts.parts order by part")
    return [Amount(int(row["amount_minor"]), ETH) for row in rows]


async def broken(house: House) -> list[str]:
    return [name for name, query in INVARIANTS.items() if await house.s.owner.fetch(query)]


async def test_two_parts_that_are_both_too_large_by_now_are_reviewed_and_not_split_again(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.025"))
        payout = await house.order()
        before = await house.another_worker(price_payout, value_payout)
        while await before.step():
            pass
        await refuse_both_parts_at_once(house)
        now = await house.payout(payout)
        assert (now.state, now.hold, now.held_from) == (State.REVIEW, Hold.TOO_LARGE, State.PRICED)
        assert await parts(house) == [eth("0.02"), eth("0.02")]
        assert await broken(house) == []
        house.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.025"))
        await house.release(payout)
        await house.run()
        assert await house.state(payout) is State.FINISHED
        assert [paid.amount for paid in house.transfers()] == [eth("0.02"), eth("0.02")]
        assert await balance(house.s.read, Account(ledger.OWED, ETH)) == eth("0")
        assert await broken(house) == []
