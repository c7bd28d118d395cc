"""What the store itself refuses, whatever the code above it believes."""

import asyncio
from decimal import Decimal
from functools import partial
from typing import Final

import asyncpg
import pytest

from payonce.kit.outcomes import Retry
from payonce.services.payouts.api.webhook import unique_id_of
from payonce.services.payouts.model import Hold, State, SwapState
from payonce.services.payouts.policies import SWAPPED
from payonce.services.payouts.store import payouts, swaps
from payonce.services.payouts.store.orders import UniqueIdCollision
from payonce.testing import OpenStage, eventually
from tests.services.payouts.payouts_stage import TO_BTC, open_office

WAITING: Final = """
    select exists (select from pg_locks l join pg_stat_activity a using (pid)
        where not l.granted and a.datname = current_database())"""


async def test_a_payout_that_has_moved_on_is_not_moved_by_a_stale_read(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        stale = taken.payout
        async with office.s.begin() as tx:
            await payouts.hold_payout(tx, stale, Hold.PERSON, "first")
        with pytest.raises(Retry, match="no longer received"):
            async with office.s.begin() as tx:
                await payouts.hold_payout(tx, stale, Hold.PERSON, "second")
        assert (await office.payout(taken)).reason == "first"


async def test_a_swap_that_has_moved_on_is_not_moved_by_a_stale_read(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        with pytest.raises(Retry, match="no longer created"):
            async with office.s.begin() as tx:
                await swaps.advance(tx, swap, SwapState.PAYING)


async def test_hostpay_is_not_told_of_a_swap_that_has_moved_on(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.pay(swap)
        with pytest.raises(Retry, match="no longer created"):
            async with office.s.begin() as tx:
                await swaps.trigger(tx, swap)


async def test_of_two_parts_that_move_at_once_the_later_sees_the_earlier(stage: OpenStage) -> None:
    """While it waits for the payout, the other part moves: what it read before that is not how things stand."""
    async with open_office(stage) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.03"))
        taken = await office.order()
        await office.run()
        async with office.s.begin() as tx:
            first, second = [await swaps.advance(tx, swap, SwapState.PAYING) for swap in await office.swaps(taken)]

        async def pay_second() -> None:
            async with office.s.begin() as tx:
                await swaps.advance(tx, second, SwapState.PAID_IN)

        async with office.s.begin() as tx:
            await swaps.advance(tx, first, SwapState.PAID_IN)
            behind = asyncio.create_task(pay_second())
            await eventually(partial(office.s.owner.fetchval, WAITING), what="the second waits for the first")
        await behind
        assert await office.state(taken) is State.PAID_IN


async def test_a_move_that_the_table_does_not_have_is_a_bug(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        with pytest.raises(AssertionError, match="does not go"):
            async with office.s.begin() as tx:
                await payouts.move(tx, taken.payout, State.FINISHED)


async def test_two_payments_never_have_one_unique_id(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.owner.execute("update payouts.payouts set unique_id = $1", unique_id_of("payment pay-2"))
        with pytest.raises(UniqueIdCollision, match="another payment"):
            await office.order(payment_id="pay-2")
        assert await office.s.owner.fetchval("select id from payouts.payouts") == taken.payout.id


async def test_a_part_never_has_two_active_swaps(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        payout = await office.payout(taken)
        assert payout.value is not None
        with pytest.raises(asyncpg.UniqueViolationError, match="one_active_swap_per_part"):
            async with office.s.begin() as tx:
                await swaps.begin_swap(tx, payout, 1, [(payout.id, 1, payout.value)])


async def test_what_hostpay_was_told_of_is_never_replaced(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        assert swap.triggered_at is not None
        with pytest.raises(asyncpg.CheckViolationError, match="replaced_only_before_hostpay"):
            async with office.s.begin() as tx:
                await swaps.replace(tx, swap, "a better rate")


async def test_before_hostpay_was_told_a_swap_may_be_replaced(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(SWAPPED.queue, "to be earlier than hostpay")
        await office.drain()
        [swap] = await office.swaps(taken)
        assert (swap.state, swap.triggered_at) == (SwapState.CREATED, None)
        async with office.s.begin() as tx:
            another = await swaps.replace(tx, swap, "it expires soon")
        assert another.round == swap.round + 1
        assert (await swaps.swap(office.s.read, swap.id)).state is SwapState.ABANDONED
        assert [each.id for each in await office.swaps(taken)] == [another.id]
        # The message about the first one finds it replaced.
        await office.s.admin.resume(SWAPPED.queue)
        await office.drain()
        assert not await office.hostpay_told()


async def test_what_has_a_row_of_hostpay_never_lapses(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        await office.s.owner.execute(
            """
            insert into payouts.split_payout_hostpay
                (unique_id, cn_api_id, from_currency, from_network, from_amount, payin_address)
            values ($1, $2, 'eth', 'eth', 1, 'x')
            """,
            swap.unique_id,
            swap.cn_api_id,
        )
        with pytest.raises(AssertionError, match="may have been paid"):
            async with office.s.begin() as tx:
                await swaps.lapse(tx, swap, "expired")


async def test_fee_and_rest_that_are_not_the_price_are_refused_by_the_store(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order()
        with pytest.raises(asyncpg.CheckViolationError, match="fee_and_rest_are_the_price"):
            await office.s.owner.execute("update payouts.payouts set fee_minor = fee_minor + 1")
