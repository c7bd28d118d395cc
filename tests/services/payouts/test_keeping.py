"""What is done by the clock: a payout that nothing works on gets a message, and the list of currencies is kept."""

from decimal import Decimal

import pytest

from payonce.engine.brakes import ask
from payonce.engine.model import Message
from payonce.services.payouts.accumulating import LOOK
from payonce.services.payouts.decisions import Decision, Verdict, deciding
from payonce.services.payouts.keeping import CURRENCIES, FORGOTTEN_AFTER_S, PUT_BACK
from payonce.services.payouts.model import Hold, State
from payonce.services.payouts.policies import ESTIMATED, HOSTPAY, KEEPING, SWAP, SWAPPED
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from tests.services.payouts.payouts_stage import TO_BTC, Office, open_office


async def tick(office: Office, action: str) -> None:
    await office.s.feed.put([Message(queue=KEEPING.queue, payload={}, action=action)])
    await office.drain()


@pytest.mark.parametrize(
    ("paused", "state"),
    [
        (None, State.RECEIVED),
        (ESTIMATED.queue, State.RECEIVED),
        (SWAP.queue, State.PRICED),
        (SWAPPED.queue, State.SWAP_CREATING),
        (HOSTPAY.queue, State.SWAPPED),
    ],
)
async def test_a_payout_whose_message_was_lost_goes_on(stage: OpenStage, paused: str | None, state: State) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        if paused is not None:
            await office.s.admin.pause(paused, "to stop it here")
            await office.drain()
        await office.forget_messages()
        if paused is not None:
            await office.s.admin.resume(paused)
        assert await office.state(taken) is state
        await tick(office, PUT_BACK)
        # It may just be between two hops.
        assert (await office.payout(taken)).puts == 0
        await office.s.clock.advance(FORGOTTEN_AFTER_S + 1)
        await tick(office, PUT_BACK)
        assert (await office.payout(taken)).puts == 1
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert len(await office.hostpay_told()) == 1
        assert await office.broken() == {}


async def test_a_payout_that_has_a_message_is_left_alone(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        office.changenow.take_down(86_000.0)
        taken = await office.order()
        await office.run(3_600.0)
        await tick(office, PUT_BACK)
        assert (await office.payout(taken)).puts == 0


async def test_a_payout_whose_message_is_parked_is_before_a_person_too(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(SWAP.queue, "to stop it here")
        await office.drain()
        await office.s.owner.execute("update payonce.messages set state = 'parked' where queue = $1", SWAP.queue)
        await office.s.admin.resume(SWAP.queue)
        await tick(office, PUT_BACK)
        payout = await office.payout(taken)
        assert (payout.state, payout.hold, payout.held_from) == (State.REVIEW, Hold.GAVE_UP, State.PRICED)
        asked = Decision(payout_id=payout.id, seen=payout.revision, verdict=Verdict.RELEASE, note="repaired")
        async with office.s.begin() as tx:
            await ask(tx, deciding(office.s.admin), asked, "ada", "repaired")
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert len(await office.hostpay_told()) == 1


async def test_without_the_janitor_the_invariant_tells(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order()
        await office.forget_messages()
        await office.s.clock.advance(3_600.0)
        assert list(await office.broken()) == ["every payout under way has a message, or gets one"]


async def test_the_list_of_currencies_is_kept_and_refreshed(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await tick(office, CURRENCIES)
        rows = await office.s.owner.fetch("select * from payouts.currencies order by ticker, network")
        known = {(row["ticker"], row["network"]): row["has_extra_id"] for row in rows}
        assert known["btc", "btc"] is False
        assert known["xrp", "xrp"] is True
        await office.s.owner.execute("update payouts.currencies set name = 'old', ticker = 'gone' where ticker = 'btc'")
        await tick(office, CURRENCIES)
        assert len(await office.s.owner.fetch("select * from payouts.currencies")) == len(rows)


async def test_an_unreachable_exchange_leaves_the_list_as_it_is(stage: OpenStage) -> None:
    async with open_office(stage, Script([None, *[Fault.ERROR_BEFORE] * 9])) as office:
        await tick(office, CURRENCIES)
        before = await office.s.owner.fetchval("select count(*) from payouts.currencies")
        await tick(office, CURRENCIES)
        await office.run()
        assert await office.s.owner.fetchval("select count(*) from payouts.currencies") == before > 0


async def test_a_lower_minimum_lets_go_what_has_accumulated(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order(subscription_price="2.00")
        await office.run()
        assert await office.state(taken) is State.ACCUMULATING
        office.changenow.set_range(TO_BTC, Decimal("0.0001"), None)
        await tick(office, LOOK)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert await office.broken() == {}
