"""What the demonstration of payouts asks the store; what else it promises is tested in tests/cli."""

from decimal import Decimal

from payonce.queues.cloudtasks.depths import SUSPICIOUS
from payonce.services.payouts.demo.run import ALONE, DONE
from payonce.services.payouts.model import Hold
from payonce.services.payouts.store import payouts
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import TO_BTC, open_office


async def test_a_payout_that_a_person_has_is_waited_for_while_money_of_it_is_under_way(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.set_range(TO_BTC, Decimal("0.001"), Decimal("0.02"))
        taken = await office.order()
        await office.run()
        first, second = await office.swaps(taken)
        await office.pay(first)
        async with office.s.begin() as tx:
            await payouts.hold_payout(
                tx, await payouts.locked(tx, taken.payout.id), Hold.VERIFYING, "papers are asked for"
            )
        assert await office.s.read.fetchval(DONE, [], []) == 0
        assert await office.s.read.fetchval(DONE, [], [first.cn_api_id]) == 1
        await office.pay(second)
        assert await office.s.read.fetchval(DONE, [], [first.cn_api_id]) == 0
        await office.finish(second)
        assert await office.s.read.fetchval(DONE, [], [first.cn_api_id]) == 1


async def test_nobody_is_killed_while_a_message_shows_its_own_fault(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order()
        assert not await office.s.read.fetchval(ALONE, SUSPICIOUS)
        await office.s.owner.execute("update payonce.messages set state = 'alone', crashes = $1", SUSPICIOUS)
        assert await office.s.read.fetchval(ALONE, SUSPICIOUS)
        await office.drain()
        assert not await office.s.read.fetchval(ALONE, SUSPICIOUS)
