"""What is done by the clock: a payout that nothing works on gets a message, and the list of currencies is kept."""

from collections.abc import Awaitable, Callable
from decimal import Decimal

import pytest

from payonce.engine.controls import submit
from payonce.engine.messages.model import Message
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.handlers.accumulation import LOOK
from payonce.services.payouts.invariants.payouts import INVARIANTS
from payonce.services.payouts.model import Hold, Payout, State
from payonce.services.payouts.policies import ESTIMATED, FOLLOW, HOSTPAY, KEEPING, SWAP, SWAPPED
from payonce.services.payouts.schedules import CURRENCIES, FORGOTTEN_AFTER_S, PUT_BACK, put_back_payouts
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.changenow.books import Fate
from tests.services.payouts.hostpay_stage import House, open_house
from tests.services.payouts.payouts_stage import TO_BTC, Office, open_office
from tests.services.payouts.test_hostpay_in_doubt import hold


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
        await office.s.owner.execute(
            "update payonce.messages set state = 'parked', last_error = 'the exchange is away' where queue = $1",
            SWAP.queue,
        )
        await office.s.admin.resume(SWAP.queue)
        await tick(office, PUT_BACK)
        payout = await office.payout(taken)
        assert payout.reason == "the exchange is away; its message is parked: release it when the cause is resolved"
        assert (payout.state, payout.hold, payout.held_from) == (State.REVIEW, Hold.GAVE_UP, State.PRICED)
        asked = Decision(payout_id=payout.id, seen=payout.revision, verdict=Verdict.RELEASE, note="repaired")
        async with office.s.begin() as tx:
            await submit(tx, decision_action(office.s.admin), asked, "ada", "repaired")
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert len(await office.hostpay_told()) == 1


async def test_without_the_janitor_the_invariant_tells(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order()
        await office.forget_messages()
        await office.s.clock.advance(3_600.0)
        assert list(await office.broken()) == ["every payout under way has a message, or gets one"]


async def stopped_on_its_way(house: House) -> Payout:
    """A person keeps it when its payment has left and is in no block yet."""
    payout = await house.waiting_for_hostpay()
    await house.drain()
    await hold(house, payout)
    assert (await house.payout(payout)).held_from is State.PAYING
    return payout


async def verifying(house: House) -> Payout:
    """It is paid, and the exchange asks who is behind the money."""
    payout = await house.waiting_for_hostpay()
    exchange_id = (await house.swap(payout)).cn_api_id
    assert exchange_id is not None
    house.changenow.decide(exchange_id, Fate.VERIFY)
    await house.run()
    assert (await house.payout(payout)).held_from is State.PAID_IN
    house.changenow.decide(exchange_id, Fate.FINISH)
    return payout


@pytest.mark.parametrize("kept", [stopped_on_its_way, verifying])
async def test_a_payment_is_followed_to_its_end_although_a_person_has_its_payout(
    stage: OpenStage, kept: Callable[[House], Awaitable[Payout]]
) -> None:
    async with open_house(stage) as house:
        payout = await kept(house)
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.clock.advance(FORGOTTEN_AFTER_S + 1)
        janitor = await house.another_worker(put_back_payouts)
        for _ in range(2):
            await house.s.feed.put([Message(queue=KEEPING.queue, payload={}, action=PUT_BACK)])
            while await janitor.step():
                pass
        queues = await house.s.owner.fetch("select queue from payonce.messages")
        assert [row["queue"] for row in queues] == [FOLLOW.queue], "it is looked at, by one message, and not paid anew"
        assert await house.state(payout) is State.HELD
        await house.run()
        await house.sound(payout)
        assert len(house.transfers()) == 1


async def test_without_the_janitor_the_invariant_tells_of_a_deposit_too(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await verifying(house)
        await house.s.owner.execute("delete from payonce.messages")
        await house.s.clock.advance(3_600.0)
        name = "every deposit at the exchange is looked at while a person has its payout, or will be"
        assert len(await house.s.owner.fetch(INVARIANTS[name])) == 1


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
