"""The exchange's list before a price is asked for: a payout that came in before the list was there is looked at."""

from typing import Any

import pytest

from payonce.engine.controls import submit
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.model import Hold, Payout, State
from payonce.services.payouts.store.currencies import replace_currencies
from payonce.testing import OpenStage
from payonce.testing.faults import Fault, Script
from payonce.vendors.changenow.port import Currency
from tests.services.payouts.payouts_stage import Office, keep_list, open_office

RIPPLE = {
    "payout_currency": "xrp",
    "payout_network": "xrp",
    "wallet_address": "rEb8TK3gBgk5auZkwc6sHnwrGVJH8DuaLh",
}


async def decide(office: Office, payout: Payout, **decision: Any) -> None:
    asked = Decision(payout_id=payout.id, seen=payout.revision, note="asked the client", **decision)
    async with office.s.begin() as tx:
        await submit(tx, decision_action(office.s.admin), asked, "ada", "asked the client")


async def test_a_payout_without_its_memo_is_held_when_it_came_before_the_list(stage: OpenStage) -> None:
    async with open_office(stage, listed=False) as office:
        taken = await office.order(**RIPPLE)
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold, payout.held_from) == (State.HELD, Hold.BAD_ADDRESS, State.RECEIVED)
        assert "extra_id is missing" in (payout.reason or "")
        assert not office.changenow.books.entries
        # Let go on as it is, it stops again; with its memo it is paid there.
        await decide(office, payout, verdict=Verdict.RELEASE)
        await office.run()
        payout = await office.payout(taken)
        assert payout.state is State.HELD
        await decide(office, payout, verdict=Verdict.READDRESS, address=RIPPLE["wallet_address"], extra_id="4711")
        await office.run()
        [swap] = await office.swaps(taken)
        assert (await office.state(taken), swap.extra_id) == (State.SWAPPED, "4711")
        assert await office.broken() == {}


@pytest.mark.parametrize(
    ("fields", "state", "hold"),
    [
        ({**RIPPLE, "extra_id": ""}, State.SWAPPED, None),
        ({**RIPPLE, "extra_id": "4711"}, State.SWAPPED, None),
        ({}, State.SWAPPED, None),
        ({"extra_id": "4711"}, State.HELD, Hold.BAD_ADDRESS),
        ({"payout_currency": "pepe"}, State.HELD, Hold.PAIR_INACTIVE),
    ],
)
async def test_what_came_before_the_list_goes_on_as_the_list_says(
    stage: OpenStage, fields: dict[str, Any], state: State, hold: Hold | None
) -> None:
    async with open_office(stage, listed=False) as office:
        taken = await office.order(**fields)
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold) == (state, hold)
        assert len(await office.hostpay_told()) == (1 if hold is None else 0)
        assert await office.broken() == {}


async def test_without_any_list_it_waits_and_the_estimator_gets_one(stage: OpenStage) -> None:
    async with open_office(stage, Script([Fault.ERROR_BEFORE] * 3), listed=False) as office:
        taken = await office.order()
        await office.run(150.0)
        assert await office.state(taken) is State.RECEIVED
        assert not await office.s.owner.fetchval("select count(*) from payouts.currencies")
        await office.run()
        assert await office.s.owner.fetchval("select count(*) from payouts.currencies") > 0
        assert await office.state(taken) is State.SWAPPED
        assert len(await office.hostpay_told()) == 1


async def test_what_is_switched_off_between_intake_and_price_is_held(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        async with office.s.begin() as tx:
            await replace_currencies(tx, [Currency("btc", "btc", "Bitcoin", False, buy=False)])
        await office.run()
        payout = await office.payout(taken)
        assert (payout.state, payout.hold) == (State.HELD, Hold.PAIR_INACTIVE)
        await keep_list(office.s)
        await decide(office, payout, verdict=Verdict.RELEASE)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
